"""Redis Streams under every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from types import MappingProxyType

import msgspec

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival
from tests.support.redis_server import PrivateRedis, private_redis

__all__ = ["Redis"]

_LIMIT = 1024 * 1024
"""Bytes. Redis has no lower one."""
_SETTINGS = ("--proto-max-bulk-len", str(_LIMIT), "--appendfsync", "always")
"""With `everysec`, a killed server loses now and then what it has acknowledged."""


class RunningRedis(RunningBroker):
    """A server of our own, and a stream that the first message makes."""

    def __init__(self, server: PrivateRedis, proxy: FaultProxy) -> None:
        self.topic = "faults.numbered"
        self.proxy = proxy
        self._server = server

    def make_transport(self) -> Transport:
        return transport_from_url(f"redis://{self.proxy.host}:{self.proxy.port}?timeout=1s")

    async def read_received(self) -> Sequence[Arrival]:
        return await asyncio.to_thread(self._read_received)

    def _read_received(self) -> Sequence[Arrival]:
        with closing(self._server.client()) as client:
            return [
                parse_arrival(fields[b"data"], fields[b"ce-id"].decode()) for _, fields in client.xrange(self.topic)
            ]

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def refuse(self) -> None:
        """Its memory is full."""
        await asyncio.to_thread(self._limit, "1")

    async def allow(self) -> None:
        await asyncio.to_thread(self._limit, "0")

    def _limit(self, memory: str) -> None:
        with closing(self._server.client()) as client:
            client.config_set("maxmemory", memory)

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        return msgspec.structs.replace(draft, padding=_LIMIT)


class Redis(BrokerUnderTest):
    name = "Redis Streams"
    exempt = MappingProxyType(
        {
            Fault.UNROUTABLE: "Redis makes the stream that is missing; with create=false messages wait for it.",
        }
    )

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        with closing(await asyncio.to_thread(private_redis, *_SETTINGS)) as server:
            async with FaultProxy("127.0.0.1", server.port) as proxy:
                yield RunningRedis(server, proxy)
