"""Kafka: confluent-kafka's producer, idempotent, and a mock cluster in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from benchmarks.brokers.broker import Row, make_attribute_builder
from benchmarks.brokers.runner import measure
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport

__all__ = ["Kafka", "kafka"]

_attributes: Final = make_attribute_builder("ce_")
_CLUSTER: Final = """
import sys
from tests.support.kafka_cluster import KafkaCluster

with KafkaCluster() as cluster:
    cluster.create("orders", partitions=6)
    print(cluster.address, flush=True)
    sys.stdin.read()
"""


class Kafka:
    """One broker with six partitions. It drops old messages by itself."""

    name = "kafka"
    messages = 60_000

    def __init__(self) -> None:
        self._cluster: Process | None = None
        self._address = ""
        self._producer: Producer | None = None

    async def open(self) -> None:
        self._cluster = await asyncio.create_subprocess_exec(sys.executable, "-c", _CLUSTER, stdin=PIPE, stdout=PIPE)
        assert self._cluster.stdout is not None
        self._address = (await self._cluster.stdout.readline()).decode().strip()
        self._producer = Producer(
            {
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "message.timeout.ms": 9_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    async def close(self) -> None:
        self._producer = None
        if self._cluster is not None:
            await self._cluster.communicate(b"")

    async def send(self, rows: Sequence[Row]) -> None:
        assert self._producer is not None
        answers: list[KafkaError | None] = []

        def answered(error: KafkaError | None, _: object) -> None:
            answers.append(error)

        produce: Any = self._producer.produce
        for row in rows:
            headers = _attributes(row)
            headers["content-type"] = row.content_type
            produce(row.topic, row.payload, row.key, headers=headers, on_delivery=answered)
        # There is nothing else to do meanwhile, so this may block.
        self._producer.flush(10)
        assert answers == [None] * len(rows)

    async def empty(self) -> None: ...

    def transport(self) -> Transport:
        return transport_from_url(f"kafka://{self._address}")


async def kafka() -> None:
    """`kafka`."""
    await measure(Kafka())
