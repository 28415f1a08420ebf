"""The HTTP receiver keeps the contract behind a real web server, in both CloudEvents modes, signed and not."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

import aiohttp
import pytest

from pillarbox.brokers.http import HttpReceiver, HttpSettings, HttpTransport, signing
from pillarbox.contracts.receiver import Receiver
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness
from tests.support.http_sender import Door, Letter, Sender

Mode = Literal["binary", "structured"]
SECRET = "whsec_" + "c2VjcmV0" * 6
PATIENCE = timedelta(minutes=1)


class HttpHarness(ReceiverHarness):
    """Each receiver stands behind a web server of its own, in a thread and loop of its own."""

    receiver: HttpReceiver

    def __init__(self, sender: Sender, *, mode: Mode, secret: str | None, closing: AsyncExitStack) -> None:
        self._sender = sender
        self._mode = mode
        self._secrets = [secret] if secret else []
        self._closing = closing

    async def start(self) -> None:
        self._client = await self._closing.enter_async_context(aiohttp.ClientSession())
        self._first = await self._door()
        self.receiver = self._first.receiver

    async def publish(self, message: Message) -> None:
        async def attempt(door: Door) -> bool:
            transport = HttpTransport(
                HttpSettings(
                    url=f"{door.server.url}/hooks", mode=self._mode, allow_private=True, timeout=PATIENCE,
                    secret=tuple(map(Secret, self._secrets)),
                )
            )  # fmt: skip
            try:
                await transport.open()
                (outcome,) = await transport.send([message])
            except TransportUnavailable:
                return False
            finally:
                await transport.close()
            return outcome.delivered

        await self._sender.post(Letter(str(message.message_id), attempt))

    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        """Producers that want their messages told apart give them an id."""
        message_id = secrets.token_hex(8)

        async def attempt(door: Door) -> bool:
            lines = {**headers, **self._identified(message_id, body)}
            try:
                async with self._client.post(f"{door.server.url}/hooks", data=body, headers=lines) as response:
                    return response.ok
            except aiohttp.ClientError:
                return False

        await self._sender.post(Letter(message_id, attempt))

    def _identified(self, message_id: str, body: bytes) -> dict[str, str]:
        if not self._secrets:
            return {"idempotency-key": message_id}
        keys, now = [signing.signing_key(secret) for secret in self._secrets], datetime.now(UTC)
        return {
            signing.ID: message_id,
            signing.TIMESTAMP: str(int(now.timestamp())),
            signing.SIGNATURE: signing.sign(keys, message_id=message_id, at=now, body=body),
        }

    async def open_another(self) -> Receiver:
        return (await self._door()).receiver

    async def die(self) -> None:
        await self._first.server.die()

    async def go_down(self) -> None:
        await self._first.server.stop()

    async def come_back(self) -> None:
        await self._first.server.start()

    async def _door(self) -> Door:
        receiver = HttpReceiver(secrets=self._secrets, timeout=PATIENCE)
        door = Door(receiver, sender=self._sender)
        await door.server.start()
        await receiver.open()
        self._sender.doors.append(door)
        self._closing.push_async_callback(receiver.close)
        return door


@asynccontextmanager
async def _opened(mode: Mode, secret: str | None) -> AsyncIterator[HttpHarness]:
    async with AsyncExitStack() as closing, Sender() as sender:
        harness = HttpHarness(sender, mode=mode, secret=secret, closing=closing)
        await harness.start()
        yield harness


class TestHttpReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[HttpHarness]:
        async with _opened("structured", SECRET) as harness:
            yield harness


class TestUnsignedHttpReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[HttpHarness]:
        async with _opened("binary", None) as harness:
            yield harness
