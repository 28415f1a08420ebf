"""The RabbitMQ transport keeps the contract, in both CloudEvents modes, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from pillarbox.brokers.rabbitmq import RabbitmqTransport
from pillarbox.cloudevents import AMQP, CloudEvent, read
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
from tests.support.rabbitmq_topology import Topology, proxied, transport_at


class Watched:
    """The real transport. When the far side has refused a message, it refuses no more."""

    def __init__(self, harness: RabbitmqHarness, transport: RabbitmqTransport) -> None:
        self._harness = harness
        self._transport = transport
        self.features = transport.features
        self.open = transport.open
        self.close = transport.close
        self.ping = transport.ping

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await self._transport.send(messages)
        if not all(outcome.delivered for outcome in outcomes):
            await self._harness.allow()
        return outcomes


class RabbitmqHarness(TransportHarness):
    def __init__(self, topology: Topology, proxy: FaultProxy, *, mode: str) -> None:
        self._topology = topology
        self._proxy = proxy
        self._fitted = 0
        self._small: str | None = None
        """The queue that messages go to while one of them is to be refused."""
        url = proxied(topology.url, proxy)
        self.transport = Watched(self, transport_at(url, exchange=topology.exchange, mode=mode))

    def fit(self, message: Message) -> Message:
        self._fitted += 1
        return message

    async def received(self) -> Sequence[CloudEvent]:
        messages = await self._topology.taken()
        return [read({**one.headers, "content-type": one.content_type}, one.body, binding=AMQP) for one in messages]

    async def refuse_next(self) -> None:
        """All messages that were made go to a queue that is full when the last of them comes."""
        self._small = await self._topology.small_queue(self._fitted - 1)
        await self._topology.move("#", to=self._small)

    async def allow(self) -> None:
        if self._small is not None:
            self._small = None
            await self._topology.move("#", to=self._topology.queue)

    async def reject_next(self, message: Message) -> Message:
        """Its routing key is longer than AMQP can carry."""
        return msgspec.structs.replace(message, topic="x" * 300)

    async def cut_next(self) -> None:
        """Not a message's first byte reaches the broker."""
        self._proxy.hang()
        self._proxy.requested.clear()
        self._cutting = asyncio.create_task(self._cut())

    async def _cut(self) -> None:
        await self._proxy.requested.wait()
        self._proxy.cut()
        self._proxy.heal()

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        self._proxy.heal()
        await self._proxy.up()

    async def hang(self) -> asyncio.Event:
        self._proxy.hang()
        self._proxy.requested.clear()
        return self._proxy.requested


@asynccontextmanager
async def _opened(url: str, mode: str) -> AsyncIterator[RabbitmqHarness]:
    async with Topology.declared(url) as topology, FaultProxy(*topology.address) as proxy:
        await topology.bind("#")
        harness = RabbitmqHarness(topology, proxy, mode=mode)
        try:
            await harness.transport.open()
            yield harness
        finally:
            await harness.transport.close()


class TestRabbitmqTransport(TransportContract):
    @pytest.fixture
    async def harness(self, rabbitmq_url: str) -> AsyncIterator[RabbitmqHarness]:
        async with _opened(rabbitmq_url, "binary") as harness:
            yield harness


class TestStructuredRabbitmqTransport(TransportContract):
    @pytest.fixture
    async def harness(self, rabbitmq_url: str) -> AsyncIterator[RabbitmqHarness]:
        async with _opened(rabbitmq_url, "structured") as harness:
            yield harness
