"""The RabbitMQ receiver keeps the contract, on quorum and classic queues of a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal
from uuid import uuid4

import aio_pika
import aio_pika.abc
import msgspec
import pytest

from pillarbox.brokers.rabbitmq import RabbitmqReceiver, RabbitmqReceiverSettings, RabbitmqTransport
from pillarbox.contracts.receiver import Receiver
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness
from tests.support.rabbitmq_topology import Topology, opened, proxied

QueueType = Literal["quorum", "classic"]


class RabbitmqHarness(ReceiverHarness):
    """The receiver declares its queue itself."""

    def __init__(
        self, topology: Topology, proxy: FaultProxy, *, queue_type: QueueType, transport: RabbitmqTransport,
        closing: AsyncExitStack,
    ) -> None:  # fmt: skip
        self._topology = topology
        self._proxy = proxy
        self._transport = transport
        self._closing = closing
        self._settings = RabbitmqReceiverSettings(
            url=topology.url, queue=f"{topology.queue}-{queue_type}", queue_type=queue_type, declare=True,
            exchange=topology.exchange,
        )  # fmt: skip
        closing.push_async_callback(topology.channel.queue_delete, self._settings.queue)
        self.receiver = self._made(proxied(topology.url, proxy))

    async def publish(self, message: Message) -> None:
        (outcome,) = await self._transport.send([message])
        assert outcome.delivered

    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        """Producers that want their messages told apart give them an id."""
        content_type = headers.get("content-type")
        others: dict[str, aio_pika.abc.FieldValue] = {k: v for k, v in headers.items() if k != "content-type"}
        message = aio_pika.Message(body, headers=others, content_type=content_type, message_id=str(uuid4()))
        exchange = await self._topology.channel.get_exchange(self._topology.exchange)
        await exchange.publish(message, "plain")

    async def open_another(self) -> Receiver:
        other = self._made(self._topology.url)
        await other.open()
        return other

    async def die(self) -> None:
        self._proxy.cut()

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        await self._proxy.up()

    def _made(self, url: str) -> RabbitmqReceiver:
        receiver = RabbitmqReceiver(msgspec.structs.replace(self._settings, url=url))
        self._closing.push_async_callback(receiver.close)
        return receiver


@asynccontextmanager
async def _opened(url: str, queue_type: QueueType) -> AsyncIterator[RabbitmqHarness]:
    async with (
        Topology.declared(url) as topology,
        opened(url, exchange=topology.exchange) as transport,
        FaultProxy(*topology.address) as proxy,
        AsyncExitStack() as closing,
    ):
        harness = RabbitmqHarness(topology, proxy, queue_type=queue_type, transport=transport, closing=closing)
        await harness.receiver.open()
        yield harness


class TestRabbitmqReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self, rabbitmq_url: str) -> AsyncIterator[RabbitmqHarness]:
        async with _opened(rabbitmq_url, "quorum") as harness:
            yield harness


class TestClassicRabbitmqReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self, rabbitmq_url: str) -> AsyncIterator[RabbitmqHarness]:
        async with _opened(rabbitmq_url, "classic") as harness:
            yield harness
