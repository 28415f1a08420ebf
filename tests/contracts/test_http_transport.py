"""The HTTP transport keeps the contract, in both CloudEvents modes, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from aiohttp import web

from pillarbox.brokers.http import HttpSettings, HttpTransport
from pillarbox.cloudevents import HTTP, CloudEvent, read
from pillarbox.message import Message
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
from tests.support.http_endpoint import Endpoint


class HttpHarness(TransportHarness):
    def __init__(self, endpoint: Endpoint, *, mode: Literal["binary", "structured"]) -> None:
        self._endpoint = endpoint
        self.transport = HttpTransport(HttpSettings(url=endpoint.url, mode=mode, allow_private=True))

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


@asynccontextmanager
async def _opened(mode: Literal["binary", "structured"]) -> AsyncIterator[HttpHarness]:
    endpoint = Endpoint()
    await endpoint.start()
    harness = HttpHarness(endpoint, mode=mode)
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
