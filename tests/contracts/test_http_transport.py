"""The HTTP transport keeps the contract, in both CloudEvents modes, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import pytest
from aiohttp import web

from pillarbox.brokers.http import HttpSettings, HttpTransport
from pillarbox.cloudevents import HTTP, CloudEvent, from_structured, read
from pillarbox.message import Message
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
from tests.support.http_endpoint import Arrival, Endpoint


class HttpHarness(TransportHarness):
    def __init__(self, endpoint: Endpoint, *, mode: Literal["binary", "structured"], batch: bool = False) -> None:
        self._endpoint = endpoint
        self.transport = HttpTransport(HttpSettings(url=endpoint.url, mode=mode, batch=batch, allow_private=True))

    async def received(self) -> Sequence[CloudEvent]:
        return [read(arrival.headers, arrival.body, binding=HTTP) for arrival in self._endpoint.taken]

    async def refuse_next(self) -> None:
        self._endpoint.answers.append(web.Response(status=503))

    async def reject_next(self, message: Message) -> Message:
        self._endpoint.answers.append(web.Response(status=422))
        return message

    async def cut_next(self) -> None:
        self._endpoint.cuts += 1

    async def go_down(self) -> None:
        await self._endpoint.stop()

    async def come_back(self) -> None:
        self._endpoint.moves.set()
        if not self._endpoint.is_up:
            await self._endpoint.start()

    async def hang(self) -> asyncio.Event:
        self._endpoint.moves.clear()
        self._endpoint.came.clear()
        return self._endpoint.came


class BatchHarness(HttpHarness):
    """An endpoint that takes batches, all of one or nothing."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, mode="structured", batch=True)
        self._is_refusing = False
        self._rejected: set[str] = set()
        endpoint.judge = self._judge

    async def received(self) -> Sequence[CloudEvent]:
        return [event for arrival in self._endpoint.taken for event in _read_events(arrival)]

    async def refuse_next(self) -> None:
        self._is_refusing = True

    async def reject_next(self, message: Message) -> Message:
        self._rejected.add(str(message.message_id))
        return message

    async def come_back(self) -> None:
        await super().come_back()
        self._endpoint.forget_cut()  # a run comes again as the same batch

    def _judge(self, arrival: Arrival) -> web.Response | None:
        events = _read_events(arrival)
        if self._rejected.intersection(event.message_id for event in events):
            return web.Response(status=422)
        if not self._is_refusing:
            return None
        self._is_refusing = len(events) > 1  # a batch comes again, message by message
        return web.Response(status=503)


def _read_events(arrival: Arrival) -> list[CloudEvent]:
    if not arrival.headers["content-type"].startswith("application/cloudevents-batch"):
        return [read(arrival.headers, arrival.body, binding=HTTP)]
    return [from_structured(bytes(event)) for event in msgspec.json.decode(arrival.body, type=list[msgspec.Raw])]


@asynccontextmanager
async def _opened(mode: Literal["binary", "structured"], *, batch: bool = False) -> AsyncIterator[HttpHarness]:
    endpoint = Endpoint()
    await endpoint.start()
    harness = BatchHarness(endpoint) if batch else HttpHarness(endpoint, mode=mode)
    try:
        await harness.transport.open()
        yield harness
    finally:
        await harness.transport.close()
        await endpoint.stop()


class TestHttpTransport(TransportContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[HttpHarness]:
        async with _opened("binary") as harness:
            yield harness


class TestStructuredHttpTransport(TransportContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[HttpHarness]:
        async with _opened("structured") as harness:
            yield harness


class TestBatchHttpTransport(TransportContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[HttpHarness]:
        async with _opened("structured", batch=True) as harness:
            yield harness
