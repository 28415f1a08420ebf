"""What a client is left with when nobody waits for it any more. Here it would try for a minute, if it were let."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import pytest

from pillarbox.errors import TransportUnavailable
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.transports.kafka import KafkaSettings
from pillarbox.transports.kafka.client_settings import ClientConfig, producer_config
from pillarbox.transports.kafka.link import Link
from pillarbox.transports.kafka.records import Record
from pillarbox.transports.kafka.verdicts import DELIVERED, SILENT, Answer, Verdict
from tests.kafka_cluster import KafkaCluster, arrivals

_PATIENT: Final[ClientConfig] = {"message.timeout.ms": 60_000, "socket.timeout.ms": 60_000}
_FIRST, _LATE, _NEXT = (Record("orders", None, value, []) for value in (b"first", b"late", b"next"))


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
async def _linked(proxy: FaultProxy, *, seconds: float) -> AsyncIterator[Link]:
    """Has sent one record, and reaches the cluster."""
    settings = KafkaSettings(url=f"kafka://{proxy.host}:{proxy.port}")
    link = Link(producer_config(settings) | _PATIENT, where="kafka", seconds=seconds, hide=str)
    async with asyncio.timeout(30):
        while await link.send([_FIRST]) != [DELIVERED]:
            pass
    try:
        yield link
    finally:
        link.drop("the test is over")


@pytest.fixture
async def hasty(proxy: FaultProxy) -> AsyncIterator[Link]:
    """Waits for a second."""
    async with _linked(proxy, seconds=1) as link:
        yield link


@pytest.fixture
async def patient(proxy: FaultProxy) -> AsyncIterator[Link]:
    """Waits for half a minute."""
    async with _linked(proxy, seconds=30) as link:
        yield link


async def _values(link: Link, cluster: KafkaCluster, proxy: FaultProxy) -> list[bytes]:
    """What arrived in the end. A client that was kept would send what it has before what it is given now."""
    await proxy.up()
    async with asyncio.timeout(30):
        while True:
            with suppress(TransportUnavailable):
                if await link.send([_NEXT]) == [DELIVERED]:
                    break
    cluster.advertise(cluster.host, cluster.port)
    return [record.value for record in await arrivals(cluster, "orders")]


async def test_a_send_ends_in_time_whatever_the_client_does(hasty: Link, proxy: FaultProxy) -> None:
    proxy.hang()
    async with asyncio.timeout(30):
        assert await hasty.send([_LATE]) == [SILENT]


async def test_what_an_outage_kept_back_is_not_sent_after_it(
    hasty: Link, proxy: FaultProxy, cluster: KafkaCluster
) -> None:
    await proxy.down()
    assert await hasty.send([_LATE]) == [SILENT]
    assert hasty.down
    assert await _values(hasty, cluster, proxy) == [_FIRST.value, _NEXT.value]


async def test_what_was_cancelled_is_not_sent_later(patient: Link, proxy: FaultProxy, cluster: KafkaCluster) -> None:
    await proxy.down()
    sending = asyncio.create_task(patient.send([_LATE]))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()
    assert await _values(patient, cluster, proxy) == [_FIRST.value, _NEXT.value]


async def test_what_was_dropped_is_not_sent_later(patient: Link, proxy: FaultProxy, cluster: KafkaCluster) -> None:
    await proxy.down()
    sending = asyncio.create_task(patient.send([_LATE]))
    await asyncio.sleep(0)
    patient.drop("somebody closed it")
    assert await sending == [Answer(Verdict.LOST, "somebody closed it")]
    assert await _values(patient, cluster, proxy) == [_FIRST.value, _NEXT.value]
