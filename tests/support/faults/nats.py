"""NATS JetStream under every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from types import MappingProxyType

import msgspec
from nats.js.api import DiscardPolicy

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival
from tests.support.nats_server import PrivateNats, private_nats, stream_named

__all__ = ["Nats"]

_LIMIT = 64 * 1024
_STREAM = "faults"


class RunningNats(RunningBroker):
    """A server of our own with one stream."""

    def __init__(self, server: PrivateNats, proxy: FaultProxy) -> None:
        self.topic = f"{_STREAM}.numbered"
        self.proxy = proxy
        self._server = server

    def make_transport(self) -> Transport:
        return transport_from_url(f"nats://{self.proxy.host}:{self.proxy.port}?timeout=1s&stream={_STREAM}")

    async def read_received(self) -> Sequence[Arrival]:
        async with stream_named(self._server.url, _STREAM) as stream:
            return [
                parse_arrival(one.data or b"", (one.headers or {})["Nats-Msg-Id"]) for one in await stream.messages()
            ]

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def refuse(self) -> None:
        """The stream is full."""
        await self._limit(1)

    async def allow(self) -> None:
        await self._limit(-1)

    async def _limit(self, messages: int) -> None:
        async with stream_named(self._server.url, _STREAM) as stream:
            await stream.change(max_msgs=messages)

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        return msgspec.structs.replace(draft, padding=_LIMIT)


class Nats(BrokerUnderTest):
    name = "NATS JetStream"
    exempt = MappingProxyType(
        {
            Fault.UNROUTABLE: "Messages for a subject that no stream has wait until somebody makes one; none fails.",
        }
    )

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        with closing(await asyncio.to_thread(private_nats, f"max_payload: {_LIMIT}")) as server:
            async with (
                stream_named(server.url, _STREAM, discard=DiscardPolicy.NEW),
                FaultProxy("127.0.0.1", server.port) as proxy,
            ):
                yield RunningNats(server, proxy)
