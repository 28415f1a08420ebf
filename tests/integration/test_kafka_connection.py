"""What a client is left with when nobody waits for it any more. Here it would try for a minute, if it were let."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from pillarbox.brokers.kafka import KafkaSettings
from pillarbox.brokers.kafka import connection as connection_module
from pillarbox.brokers.kafka.connection import ProducerConnection
from pillarbox.brokers.kafka.encoding import EncodedMessage
from pillarbox.brokers.kafka.errors import DELIVERED, TIMED_OUT, DeliveryReport, DeliveryStatus
from pillarbox.brokers.kafka.settings import ClientConfig, build_producer_config
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.kafka_cluster import KafkaCluster, arrivals

_PATIENT: Final[ClientConfig] = {"message.timeout.ms": 60_000, "socket.timeout.ms": 60_000}
_FIRST, _LATE, _NEXT = (EncodedMessage("orders", None, value, []) for value in (b"first", b"late", b"next"))


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        cluster.create("orders")
        yield cluster


@pytest.fixture
async def proxy(cluster: KafkaCluster) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(cluster.host, cluster.port) as proxy:
        cluster.advertise(proxy.host, proxy.port)
        yield proxy


@asynccontextmanager
async def _connect(proxy: FaultProxy, *, seconds: float) -> AsyncIterator[ProducerConnection]:
    """Connect, and send one record until it is delivered."""
    settings = KafkaSettings(url=f"kafka://{proxy.host}:{proxy.port}")
    connection = ProducerConnection(
        build_producer_config(settings) | _PATIENT, where="kafka", seconds=seconds, hide=str
    )
    async with asyncio.timeout(30):
        while await connection.send([_FIRST]) != [DELIVERED]:
            pass
    try:
        yield connection
    finally:
        connection.drop("the test is over")


@pytest.fixture
async def hasty(proxy: FaultProxy) -> AsyncIterator[ProducerConnection]:
    """Waits for a second."""
    async with _connect(proxy, seconds=1) as connection:
        yield connection


@pytest.fixture
async def patient(proxy: FaultProxy) -> AsyncIterator[ProducerConnection]:
    """Waits for half a minute."""
    async with _connect(proxy, seconds=30) as connection:
        yield connection


async def _values(connection: ProducerConnection, cluster: KafkaCluster, proxy: FaultProxy) -> list[bytes]:
    """Values that arrived in the end. A client that was kept would send what it has before what it is given now.

    Each value counts once: a send that takes longer than the connection waits is repeated, and arrives twice.
    """
    await proxy.up()
    async with asyncio.timeout(30):
        while True:
            with suppress(TransportUnavailable):
                if await connection.send([_NEXT]) == [DELIVERED]:
                    break
    cluster.advertise(cluster.host, cluster.port)
    return list(dict.fromkeys(record.value for record in await arrivals(cluster, "orders")))


async def test_a_new_producer_meets_the_cluster_before_it_is_given_messages(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would look for a connection only half a second after a message that came too early."""
    calls: list[str] = []
    for name in ("check_topic", "send"):
        original = getattr(connection_module._AsyncProducer, name)

        def note(self: object, *args: object, name: str = name, original: Any = original, **options: object) -> Any:
            calls.append(name)
            return original(self, *args, **options)

        monkeypatch.setattr(connection_module._AsyncProducer, name, note)
    async with _connect(proxy, seconds=10) as connection:
        assert calls[:2] == ["check_topic", "send"]
        calls.clear()
        await connection.send([_NEXT])
        assert calls == ["send"]


async def test_a_send_ends_in_time_whatever_the_client_does(hasty: ProducerConnection, proxy: FaultProxy) -> None:
    proxy.hang()
    async with asyncio.timeout(30):
        assert await hasty.send([_LATE]) == [TIMED_OUT]


async def test_what_an_outage_kept_back_is_not_sent_after_it(
    hasty: ProducerConnection, proxy: FaultProxy, cluster: KafkaCluster
) -> None:
    await proxy.down()
    async with asyncio.timeout(30):
        while not hasty.down:  # the client may need longer than one send to notice
            assert await hasty.send([_LATE]) == [TIMED_OUT]
    assert await _values(hasty, cluster, proxy) == [_FIRST.value, _NEXT.value]


async def test_what_was_cancelled_is_not_sent_later(
    patient: ProducerConnection, proxy: FaultProxy, cluster: KafkaCluster
) -> None:
    await proxy.down()
    sending = asyncio.create_task(patient.send([_LATE]))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()
    assert await _values(patient, cluster, proxy) == [_FIRST.value, _NEXT.value]


async def test_what_was_dropped_is_not_sent_later(
    patient: ProducerConnection, proxy: FaultProxy, cluster: KafkaCluster
) -> None:
    await proxy.down()
    sending = asyncio.create_task(patient.send([_LATE]))
    await asyncio.sleep(0)
    patient.drop("somebody closed it")
    assert await sending == [DeliveryReport(DeliveryStatus.LOST, "somebody closed it")]
    assert await _values(patient, cluster, proxy) == [_FIRST.value, _NEXT.value]
