"""Kafka under every fault: librdkafka's mock cluster, so a restart is a broker that is away and has lost nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport
from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival
from tests.support.kafka_cluster import KafkaCluster, arrivals

__all__ = ["Kafka"]

_THROTTLED: Final = 89
_MANY: Final = 1_000


class RunningKafka(RunningBroker):
    """A topic with one partition, so that all arrivals have one order."""

    def __init__(self, cluster: KafkaCluster, proxy: FaultProxy) -> None:
        self.topic = "numbered"
        self.proxy = proxy
        self._cluster = cluster
        cluster.create(self.topic)
        cluster.advertise(proxy.host, proxy.port)

    def make_transport(self) -> Transport:
        return KafkaTransport(
            KafkaSettings(url=f"kafka://{self.proxy.host}:{self.proxy.port}", timeout=timedelta(seconds=1))
        )

    async def read_received(self) -> Sequence[Arrival]:
        self._cluster.advertise(self._cluster.host, self._cluster.port)
        taken = await arrivals(self._cluster, self.topic)
        return [parse_arrival(record.value, record.headers["ce_id"]) for record in taken]

    async def stop(self) -> None:
        self._cluster.stop()

    async def start(self) -> None:
        self._cluster.start()

    async def refuse(self) -> None:
        self._cluster.fail_next(*[_THROTTLED] * _MANY)

    async def allow(self) -> None:
        self._cluster.heal()

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        if fault is Fault.TOO_LARGE:
            return msgspec.structs.replace(draft, padding=1_000_000)
        return msgspec.structs.replace(draft, topic="no topic can have this name")


class Kafka(BrokerUnderTest):
    name = "Kafka (mock cluster)"

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        with KafkaCluster() as cluster:
            async with FaultProxy(cluster.host, cluster.port) as proxy:
                yield RunningKafka(cluster, proxy)
