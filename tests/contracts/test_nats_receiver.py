"""The NATS receiver keeps the contract on real servers: the one that is found, and the newest one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import timedelta
from urllib.parse import urlsplit

import msgspec
import pytest

from pillarbox.brokers.nats import NatsReceiver, NatsReceiverSettings, NatsSettings, NatsTransport
from pillarbox.contracts.receiver import Receiver
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness
from tests.support.nats_server import NatsServer, Stream, private_nats, stream_at
from tests.support.servers import found


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


@pytest.fixture(scope="module")
def newest_url() -> Iterator[str]:
    with closing(private_nats()) as server:
        yield server.url


class NatsHarness(ReceiverHarness):
    """The receiver declares its durable consumer itself."""

    def __init__(self, url: str, stream: Stream, proxy: FaultProxy, *, closing: AsyncExitStack) -> None:
        self._stream = stream
        self._proxy = proxy
        self._closing = closing
        self._url = url
        # Long enough for a busy machine to say that it lives, and short enough to wait for.
        self._settings = NatsReceiverSettings(
            url=url, stream=stream.name, durable="contract", declare=True, ack_wait=timedelta(seconds=6)
        )
        self.transport = NatsTransport(NatsSettings(url=url, stream=stream.name, subject=f"{stream.name}.{{topic}}"))
        self.receiver = self._made(f"nats://{proxy.host}:{proxy.port}")

    async def publish(self, message: Message) -> None:
        (outcome,) = await self.transport.send([message])
        assert outcome.delivered

    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        await self._stream.js.publish(f"{self._stream.name}.plain", body, headers=dict(headers))

    async def open_another(self) -> Receiver:
        other = self._made(self._url)
        await other.open()
        return other

    async def die(self) -> None:
        self._proxy.cut()

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        await self._proxy.up()

    def _made(self, url: str) -> NatsReceiver:
        receiver = NatsReceiver(msgspec.structs.replace(self._settings, url=url))
        self._closing.push_async_callback(receiver.close)
        return receiver


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[NatsHarness]:
    where = urlsplit(url)
    async with (
        stream_at(url) as stream,
        FaultProxy(where.hostname or "", where.port or 4222) as proxy,
        AsyncExitStack() as closing,
    ):
        harness = NatsHarness(url, stream, proxy, closing=closing)
        closing.push_async_callback(harness.transport.close)
        await harness.transport.open()
        await harness.receiver.open()
        yield harness


class TestNatsReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self, nats_url: str) -> AsyncIterator[NatsHarness]:
        async with _opened(nats_url) as harness:
            yield harness


class TestNewestNatsReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self, newest_url: str) -> AsyncIterator[NatsHarness]:
        async with _opened(newest_url) as harness:
            yield harness
