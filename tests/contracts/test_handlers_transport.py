"""The handlers transport keeps the contract, with async functions and with functions in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.cloudevents import CloudEvent, from_message
from pillarbox.errors import MessageRejected
from pillarbox.events import Types
from pillarbox.message import Message
from pillarbox.testing.transport_contract import TransportContract, TransportHarness


class _Recorder(TransportHarness):
    """Fails as told, or records the message."""

    def __init__(self) -> None:
        self._handlers = Handlers(types=Types())
        self._taken: list[Message] = []
        self._failures: list[Exception] = []
        self.transport = HandlersTransport(self._handlers)

    def fit(self, message: Message) -> Message:
        """A handler gets its event decoded, so what claims to be JSON must be."""
        if message.payload == b"\xff{":
            return msgspec.structs.replace(message, content_type="application/octet-stream")
        return message

    async def received(self) -> Sequence[CloudEvent]:
        return [from_message(message) for message in self._taken]

    async def refuse_next(self) -> None:
        self._failures.append(ValueError("not now"))

    async def reject_next(self, message: Message) -> Message:
        self._failures.append(MessageRejected("never"))
        return message

    def _record(self, message: Message) -> None:
        if self._failures:
            raise self._failures.pop()
        self._taken.append(message)


class AsyncHarness(_Recorder):
    def __init__(self) -> None:
        super().__init__()
        self._moves = asyncio.Event()
        self._moves.set()
        self._came = asyncio.Event()
        self._handlers.on("*")(self._handle)

    async def _handle(self, _event: object, message: Message) -> None:
        self._came.set()
        await self._moves.wait()
        self._record(message)

    async def hang(self) -> asyncio.Event:
        self._moves.clear()
        self._came.clear()
        return self._came

    async def come_back(self) -> None:
        self._moves.set()


class ThreadHarness(_Recorder):
    def __init__(self) -> None:
        super().__init__()
        self._moves = threading.Event()
        self._moves.set()
        self._came = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handlers.on("*")(self._handle)

    def _handle(self, _event: object, message: Message) -> None:
        self._loop.call_soon_threadsafe(self._came.set)
        self._moves.wait()
        self._record(message)

    async def hang(self) -> asyncio.Event:
        self._moves.clear()
        self._came.clear()
        return self._came

    async def come_back(self) -> None:
        self._moves.set()


@pytest.fixture(params=[AsyncHarness, ThreadHarness])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[AsyncHarness | ThreadHarness]:
    harness: AsyncHarness | ThreadHarness = request.param()
    await harness.transport.open()
    yield harness
    await harness.come_back()
    await harness.transport.close()


class TestHandlersTransport(TransportContract):
    """Nothing is between a function and its caller that could go down or break."""
