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
from tests.support.faults.faults import Arrival, BrokerUnderTest, Draft, FarSide, Fault, arrival
from tests.support.nats_server import PrivateNats, private_nats, stream_named

__all__ = ["broker"]

_LIMIT = 64 * 1024
_STREAM = "faults"


class NatsFarSide(FarSide):
    """A server of our own with one stream."""

    def __init__(self, server: PrivateNats, proxy: FaultProxy) -> None:
        self.topic = f"{_STREAM}.numbered"
        self.proxy = proxy
        self._server = server

    def transport(self) -> Transport:
        return transport_from_url(f"nats://{self.proxy.host}:{self.proxy.port}?timeout=1s&stream={_STREAM}")

    async def received(self) -> Sequence[Arrival]:
        async with stream_named(self._server.url, _STREAM) as stream:
            return [arrival(one.data or b"", (one.headers or {})["Nats-Msg-Id"]) for one in await stream.messages()]

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

    def spoiled(self, fault: Fault, draft: Draft) -> Draft:
        return msgspec.structs.replace(draft, padding=_LIMIT)


class Nats(BrokerUnderTest):
    name = "NATS JetStream"
    exempt = MappingProxyType(
        {
            Fault.UNROUTABLE: "A subject that no stream has is missing topology: an outage, until somebody creates it.",
        }
    )

    @asynccontextmanager
    async def far_side(self, fault: Fault) -> AsyncIterator[FarSide]:
        with closing(await asyncio.to_thread(private_nats, f"max_payload: {_LIMIT}")) as server:
            async with (
                stream_named(server.url, _STREAM, discard=DiscardPolicy.NEW),
                FaultProxy("127.0.0.1", server.port) as proxy,
            ):
                yield NatsFarSide(server, proxy)


def broker() -> BrokerUnderTest:
    return Nats()
