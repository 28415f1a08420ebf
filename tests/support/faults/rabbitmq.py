"""RabbitMQ under every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import msgspec

from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival
from tests.support.private_rabbitmq import MAX_MESSAGE, PrivateRabbitmq
from tests.support.rabbitmq_server import found_rabbitmq, private_rabbitmq
from tests.support.rabbitmq_topology import Topology, proxied, transport_at

__all__ = ["Rabbitmq"]

_KEYS: Final = "faults.#"
_OURS: Final = frozenset({Fault.RESTART, Fault.TOO_LARGE})
"""Faults that need a server of our own: to be killed, or with a known limit."""


class RunningRabbitmq(RunningBroker):
    """An exchange and a durable queue behind it."""

    def __init__(self, topology: Topology, proxy: FaultProxy, server: PrivateRabbitmq | None) -> None:
        self.topic = "faults.numbered"
        self.proxy = proxy
        self._topology = topology
        self._server = server

    def make_transport(self) -> Transport:
        url = proxied(self._topology.url, self.proxy)
        return transport_at(url, exchange=self._topology.exchange, timeout="1s")

    async def read_received(self) -> Sequence[Arrival]:
        messages = await self._topology.taken(self._topology.queue)
        return [parse_arrival(message.body, message.message_id or "") for message in messages]

    async def stop(self) -> None:
        assert self._server is not None
        await self._topology.disconnect()
        await asyncio.to_thread(self._server.kill)
        await self.proxy.down()

    async def start(self) -> None:
        """Reachable again once it leads messages to the queue: after SIGKILL it may recover that late, or never."""
        assert self._server is not None
        await asyncio.to_thread(self._server.start)
        await self._topology.connect()
        await self._topology.bind(_KEYS)
        await self.proxy.up()

    async def refuse(self) -> None:
        """They go into a queue that is always full."""
        await self._topology.move(_KEYS, to=await self._topology.small_queue(0))

    async def allow(self) -> None:
        await self._topology.move(_KEYS, to=self._topology.queue)

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        if fault is Fault.TOO_LARGE:
            return msgspec.structs.replace(draft, padding=MAX_MESSAGE)
        return msgspec.structs.replace(draft, topic="nobody.listens")


class Rabbitmq(BrokerUnderTest):
    name = "RabbitMQ"

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        server = await asyncio.to_thread(private_rabbitmq) if fault in _OURS else None
        with found_rabbitmq() if server is None else nullcontext(server.url) as url:
            async with Topology.declared(url) as topology, FaultProxy(*topology.address) as proxy:
                await topology.bind(_KEYS)
                yield RunningRabbitmq(topology, proxy, server)
