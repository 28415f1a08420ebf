"""The Kafka receiver keeps the contract, against librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta

import msgspec
import pytest
from confluent_kafka import Producer

from pillarbox.brokers.kafka import KafkaReceiver, KafkaReceiverSettings, KafkaSettings, KafkaTransport
from pillarbox.contracts.receiver import Receiver
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_gate import Gate, gated

_TOPIC = "contract"


class _Joined(KafkaReceiver):
    """Opened again, it waits until it has its partition: that nothing comes says something only then."""

    has_been_open = False

    async def open(self) -> None:
        await super().open()
        async with asyncio.timeout(40):
            connection = self._connection
            while self.has_been_open and not (connection.current and connection.current._poller._partitions):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        self.has_been_open = True


class KafkaHarness(ReceiverHarness):
    """One partition, so that all of it is in order. Every way leads through the gate, which knows who comes."""

    def __init__(self, cluster: KafkaCluster, gate: Gate, *, closing: AsyncExitStack) -> None:
        self._cluster = cluster
        self._gate = gate
        self._closing = closing
        # The mock cluster waits for a second less than this before it shares partitions out anew.
        self._settings = KafkaReceiverSettings(
            url=gate.url, topics=(_TOPIC,), group="contract", session_timeout=timedelta(seconds=4),
            timeout=timedelta(seconds=30), client={"fetch.wait.max.ms": Secret("20")},
        )  # fmt: skip
        self.transport = KafkaTransport(KafkaSettings(url=gate.url, topic=_TOPIC))
        self.receiver = self._made("first")

    async def publish(self, message: Message) -> None:
        async with asyncio.timeout(40):
            while not (await self.transport.send([message]))[0].delivered:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        await asyncio.to_thread(self._produced, headers, body)

    def _produced(self, headers: Mapping[str, str], body: bytes) -> None:
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{self._gate.port}", "log_level": 0})
        producer.produce(_TOPIC, body, headers=dict(headers))
        assert producer.flush(30) == 0

    async def open_another(self) -> Receiver:
        other = self._made("other")
        await other.open()
        return other

    async def die(self) -> None:
        self._gate.kill("first")

    async def go_down(self) -> None:
        """And wait until the receiver has noticed: its client heals what is short by itself, and loses nothing."""
        await self._gate.down()
        async with asyncio.timeout(40):
            while True:
                try:
                    await self.receiver.ping()
                except TransportUnavailable:
                    return

    async def come_back(self) -> None:
        await self._gate.up()

    def _made(self, name: str) -> KafkaReceiver:
        client = {**self._settings.client, "client.id": Secret(name)}
        receiver = _Joined(msgspec.structs.replace(self._settings, client=client))
        self._closing.push_async_callback(receiver.close)
        return receiver


class TestKafkaReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[KafkaHarness]:
        with KafkaCluster() as cluster:
            cluster.create(_TOPIC)
            async with gated(cluster) as gate, AsyncExitStack() as closing:
                harness = KafkaHarness(cluster, gate, closing=closing)
                closing.push_async_callback(harness.transport.close)
                await harness.transport.open()
                await harness.receiver.open()
                yield harness
