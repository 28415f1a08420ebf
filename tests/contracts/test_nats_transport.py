"""The contract on real NATS servers: the one that is found, and the newest one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import count
from typing import Literal
from urllib.parse import urlsplit

import msgspec
import pytest
from nats.js.api import DiscardPolicy

from pillarbox.brokers.nats import NatsSettings, NatsTransport
from pillarbox.cloudevents import NATS, CloudEvent, read
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
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


_MOST = 10
"""Messages of a subject that the stream takes: more than a run of the contract has."""


class NatsHarness(TransportHarness):
    """A stream that takes few messages of each subject, and a subject for each message or run."""

    def __init__(self, proxy: FaultProxy, stream: Stream, settings: NatsSettings) -> None:
        self.transport = _Watched(settings, self)
        self._proxy = proxy
        self._stream = stream
        self._numbers = count()
        self._last = ""
        self._in_the_way: list[int] = []

    def fit(self, message: Message) -> Message:
        self._last = f"{self._stream.name}.{next(self._numbers)}.{message.topic}"
        return msgspec.structs.replace(message, topic=self._last)

    async def received(self) -> Sequence[CloudEvent]:
        stored = await self._stream.messages()
        return [
            read(one.headers or {}, one.data or b"", binding=NATS) for one in stored if one.seq not in self._in_the_way
        ]

    async def refuse_next(self) -> None:
        """The subject is full."""
        self._in_the_way = [await self._stream.put(self._last) for _ in range(_MOST)]

    async def refused(self) -> None:
        """Once is enough."""
        for number in self._in_the_way:
            await self._stream.js.delete_msg(self._stream.name, number)
        self._in_the_way = []

    async def reject_next(self, message: Message) -> Message:
        return msgspec.structs.replace(message, payload=b"x" * 1024 * 1024)

    async def cut_next(self) -> None:
        self._proxy.cut_after(1)

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        self._proxy.heal()
        await self._proxy.up()

    async def hang(self) -> asyncio.Event:
        self._proxy.hang()
        self._proxy.requested.clear()
        return self._proxy.requested


class _Watched(NatsTransport):
    """Tells the harness when a message was refused."""

    def __init__(self, settings: NatsSettings, harness: NatsHarness) -> None:
        super().__init__(settings)
        self._harness = harness

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await super().send(messages)
        if not all(outcome.delivered for outcome in outcomes):
            await self._harness.refused()
        return outcomes


@asynccontextmanager
async def _opened(url: str, *, mode: Literal["binary", "structured"] = "binary") -> AsyncIterator[NatsHarness]:
    where = urlsplit(url)
    limits = {
        "max_msgs_per_subject": _MOST,
        "discard": DiscardPolicy.NEW,
        "discard_new_per_subject": True,
        "allow_atomic": True,
    }
    async with (
        stream_at(url, **limits) as stream,
        FaultProxy(where.hostname or "", where.port or 4222) as proxy,
    ):
        settings = NatsSettings(url=f"nats://{proxy.host}:{proxy.port}", mode=mode, stream=stream.name)
        harness = NatsHarness(proxy, stream, settings)
        try:
            await harness.transport.open()
            yield harness
        finally:
            await harness.transport.close()


class TestNatsTransport(TransportContract):
    @pytest.fixture
    async def harness(self, nats_url: str) -> AsyncIterator[NatsHarness]:
        async with _opened(nats_url) as harness:
            yield harness


class TestStructuredNatsTransport(TransportContract):
    @pytest.fixture
    async def harness(self, nats_url: str) -> AsyncIterator[NatsHarness]:
        async with _opened(nats_url, mode="structured") as harness:
            yield harness


class TestNewestNatsTransport(TransportContract):
    @pytest.fixture
    async def harness(self, newest_url: str) -> AsyncIterator[NatsHarness]:
        async with _opened(newest_url) as harness:
            yield harness
