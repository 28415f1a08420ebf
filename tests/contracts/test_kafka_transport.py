"""The Kafka transport keeps the contract, in both CloudEvents modes, against librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, Literal

import msgspec
import pytest

from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport
from pillarbox.cloudevents import KAFKA, CloudEvent, read
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.transport_contract import ArrivalContract, TransportContract, TransportHarness
from tests.support.kafka_cluster import KafkaCluster, arrivals

_TOPICS: Final = ("orders", "orders.eu")
_THROTTLED: Final = 89
_TOO_LARGE: Final = b"x" * 1_000_001
_TIMEOUT: Final = timedelta(seconds=6)
"""The client gives a message up a second before, and a request after half of that: a busy machine takes its time."""


class KafkaHarness(TransportHarness):
    """Behind a proxy. The client sends one message per request, so that an error of a request is one message's."""

    def __init__(self, cluster: KafkaCluster, proxy: FaultProxy, *, mode: Literal["binary", "structured"]) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._back: asyncio.Task[None] | None = None
        self.transport = KafkaTransport(
            KafkaSettings(
                url=f"kafka://{proxy.host}:{proxy.port}",
                mode=mode,
                timeout=_TIMEOUT,
                client={"batch.num.messages": Secret("1")},
            )
        )

    async def received(self) -> Sequence[CloudEvent]:
        self._cluster.advertise(self._cluster.host, self._cluster.port)
        try:
            taken = await arrivals(self._cluster, *_TOPICS)
        finally:
            self._cluster.advertise(self._proxy.host, self._proxy.port)
        return [read(arrival.headers, arrival.value, binding=KAFKA) for arrival in taken]

    async def refuse_next(self) -> None:
        self._cluster.fail_next(_THROTTLED)

    async def reject_next(self, message: Message) -> Message:
        return msgspec.structs.replace(message, payload=_TOO_LARGE)

    async def cut_next(self) -> None:
        """The client heals a cut by itself while it has time, so the broker is away until it has given up."""
        self._proxy.requested.clear()
        self._back = asyncio.create_task(self._away_for_a_while())

    async def _away_for_a_while(self) -> None:
        await self._proxy.requested.wait()
        await self._proxy.down()
        await asyncio.sleep(_TIMEOUT.total_seconds() + 0.5)
        await self._proxy.up()

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
async def _opened(mode: Literal["binary", "structured"]) -> AsyncIterator[KafkaHarness]:
    with KafkaCluster() as cluster:
        cluster.create(*_TOPICS)
        async with FaultProxy(cluster.host, cluster.port) as proxy:
            cluster.advertise(proxy.host, proxy.port)
            harness = KafkaHarness(cluster, proxy, mode=mode)
            try:
                await harness.transport.open()
                yield harness
            finally:
                await harness.transport.close()


class TestKafkaTransport(TransportContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[KafkaHarness]:
        async with _opened("binary") as harness:
            yield harness


class TestStructuredKafkaTransport(ArrivalContract):
    """The mode changes what arrives, and nothing else."""

    @pytest.fixture
    async def harness(self) -> AsyncIterator[KafkaHarness]:
        async with _opened("structured") as harness:
            yield harness
