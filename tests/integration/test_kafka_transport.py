"""The Kafka transport against librdkafka's mock cluster: what is on the wire, and each kind of error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import msgspec
import pytest
from confluent_kafka import KafkaError

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.kafka_cluster import INIT_PRODUCER_ID, KafkaCluster, arrivals

_DELIVERED: Final = Outcome(delivered=True)
_QUICK: Final = timedelta(seconds=2)


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
async def proxy(cluster: KafkaCluster) -> AsyncIterator[FaultProxy]:
    """Stands between the transport and the cluster."""
    async with FaultProxy(cluster.host, cluster.port) as proxy:
        cluster.advertise(proxy.host, proxy.port)
        yield proxy


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaTransport]:
    transport = KafkaTransport(settings)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


def messages(count: int, *, topic: str = "orders") -> list[Message]:
    return [sample(key=f"key-{number}", topic=topic, payload=b"%d" % number) for number in range(count)]


def through(proxy: FaultProxy) -> KafkaSettings:
    return KafkaSettings(url=f"kafka://{proxy.host}:{proxy.port}", timeout=_QUICK)


# --- on the wire ---


async def test_a_plain_consumer_reads_body_key_and_headers(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    message = sample(key="customer-1", headers={"tenant": "shop-1"})
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        assert await transport.send([message]) == [_DELIVERED]
    (record,) = await arrivals(cluster, "orders")
    assert (record.key, record.value) == ("customer-1", message.payload)
    assert record.headers == {
        "tenant": "shop-1",
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": str(message.message_id),
        "ce_source": "/shop",
        "ce_type": "orders.placed",
        "ce_time": "2025-12-31T23:59:59.123456Z",
        "ce_partitionkey": "customer-1",
        "ce_correlationid": str(message.message_id),
        "ce_topic": "orders",
        "ce_kind": "event",
    }


async def test_a_message_without_a_key_has_none(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        await transport.send([sample(key=None)])
    (record,) = await arrivals(cluster, "orders")
    assert record.key is None


@pytest.mark.parametrize(
    ("key", "hashed"),
    [("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536), ("abc", 479470107)],
)
async def test_a_key_goes_where_java_clients_send_it(cluster: KafkaCluster, key: str, hashed: int) -> None:
    """The numbers are those of Kafka's own tests of its partitioner."""
    cluster.create("orders", partitions=50)
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        await transport.send([sample(key=key)])
    (record,) = await arrivals(cluster, "orders")
    assert record.partition == (hashed & 0x7FFF_FFFF) % 50


async def test_the_topic_is_made_by_a_template(cluster: KafkaCluster) -> None:
    cluster.create("shop-orders.placed")
    async with opened(KafkaSettings(url=cluster.url, topic="shop-{type}")) as transport:
        assert await transport.send([sample(type="orders.placed")]) == [_DELIVERED]
    assert len(await arrivals(cluster, "shop-orders.placed")) == 1


async def test_one_of_several_servers_is_enough(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    transport = transport_from_url(f"kafka://127.0.0.1:1,{cluster.address}?timeout=5s")
    await transport.open()
    try:
        assert await transport.send([sample()]) == [_DELIVERED]
    finally:
        await transport.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compressed_records_arrive(cluster: KafkaCluster, compression: str) -> None:
    cluster.create("orders")
    settings = msgspec.convert({"url": cluster.url, "compression": compression}, KafkaSettings)
    async with opened(settings) as transport:
        await transport.send([sample(payload=b"x" * 10_000)])
    (record,) = await arrivals(cluster, "orders")
    assert record.value == b"x" * 10_000


# --- what is no message's fault ---


async def test_a_missing_topic_is_named_and_waited_for(cluster: KafkaCluster) -> None:
    """The mock cluster would create it, if it were asked to."""
    async with opened(KafkaSettings(url=cluster.url, timeout=_QUICK)) as transport:
        (missing,) = await transport.send([sample()])
        assert (missing.not_now, missing.missing) == (True, True)
        assert "the topic orders does not exist: create it" in (missing.error or "")
        cluster.create("orders")
        assert await transport.send([sample()]) == [_DELIVERED]
    assert len(await arrivals(cluster, "orders")) == 1


async def test_a_missing_topic_costs_messages_of_others_nothing(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url, timeout=_QUICK)) as transport:
        for _ in range(2):
            found, missing = await transport.send([sample(), sample(topic="refunds")])
            assert found.delivered
            assert (missing.delivered, missing.rejected) == (False, False)
            assert "the topic refunds does not exist" in (missing.error or "")


async def test_a_forbidden_topic_is_waited_for(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    cluster.break_topic("orders", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    async with opened(KafkaSettings(url=cluster.url, timeout=_QUICK)) as transport:
        (denied,) = await transport.send([sample()])
        assert (denied.not_now, denied.missing) == (True, True)
        assert "the login may not write to the topic orders" in (denied.error or "")
        cluster.break_topic("orders", 0)
        assert await transport.send([sample()]) == [_DELIVERED]


async def test_a_refused_write_is_waited_for(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    cluster.fail_next(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    async with opened(KafkaSettings(url=cluster.url, timeout=_QUICK)) as transport:
        (denied,) = await transport.send([sample()])
        assert (denied.not_now, denied.missing) == (True, True)
        assert "the login may not write to the topic orders" in (denied.error or "")


async def test_a_login_that_may_not_write_idempotently_is_an_outage(cluster: KafkaCluster) -> None:
    """Only an idempotent producer asks for an id of its own; without it, this would be delivered."""
    cluster.create("orders")
    cluster.fail_next(*[KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 1_000, request=INIT_PRODUCER_ID)
    async with opened(KafkaSettings(url=cluster.url, timeout=_QUICK)) as transport:
        with pytest.raises(TransportUnavailable):
            await transport.send([sample()])
        cluster.heal(INIT_PRODUCER_ID)
        await _until_delivered(transport, sample())


async def test_a_client_that_breaks_for_good_is_replaced(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        await transport.send([sample()])
        cluster.fail_next(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(TransportUnavailable) as broken:
            await transport.send([sample()])
        assert broken.value.mid_send
        assert await transport.send([sample()]) == [_DELIVERED]


# --- what is a message's own fault ---


async def test_a_message_too_large_for_us_is_rejected(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url, max_message_bytes=2_000)) as transport:
        small, large = await transport.send([sample(), sample(payload=b"x" * 2_001)])
    assert small.delivered
    assert large.rejected
    assert "max_message_bytes" in (large.error or "")


async def test_of_a_request_that_is_too_large_only_the_guilty_are_rejected(cluster: KafkaCluster) -> None:
    """The cluster refuses all messages of a request, so they go again, each in a request of its own."""
    too_large = KafkaError.MSG_SIZE_TOO_LARGE
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url, client={"linger.ms": Secret("50")})) as transport:
        cluster.fail_next(too_large, 0, too_large, 0)
        outcomes = await transport.send(messages(3))
    assert [(outcome.delivered, outcome.rejected) for outcome in outcomes] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert "larger than the topic orders" in (outcomes[1].error or "")
    assert len(await arrivals(cluster, "orders")) == 2


async def test_a_record_the_topic_does_not_take_is_rejected(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        cluster.fail_next(KafkaError.INVALID_RECORD, KafkaError.INVALID_RECORD)
        (outcome,) = await transport.send([sample()])
    assert outcome.rejected


@pytest.mark.parametrize("topic", ["two words", "ž", "x" * 250, ".."])
async def test_what_is_no_topic_name_is_rejected(cluster: KafkaCluster, topic: str) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        bad, good = await transport.send([sample(topic=topic), sample(key=None)])
    assert bad.rejected
    assert "is no name for a Kafka topic" in (bad.error or "")
    assert good.delivered


# --- what may work later ---


async def test_errors_that_pass_are_waited_out(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url)) as transport:
        cluster.fail_next(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS)
        assert await transport.send(messages(5)) == [_DELIVERED] * 5
    assert len(await arrivals(cluster, "orders")) == 5


async def test_errors_that_stay_are_no_delivery(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(KafkaSettings(url=cluster.url, timeout=_QUICK)) as transport:
        cluster.fail_next(*[KafkaError.NOT_ENOUGH_REPLICAS] * 1_000)
        (outcome,) = await transport.send([sample()])
        assert (outcome.delivered, outcome.rejected, outcome.lost) == (False, False, False)
        assert "no answer" in (outcome.error or "")
        cluster.heal()
        assert await transport.send([sample()]) == [_DELIVERED]


async def test_a_full_client_is_waited_for(cluster: KafkaCluster) -> None:
    cluster.create("orders")
    full = {"queue.buffering.max.messages": Secret("10")}
    async with opened(KafkaSettings(url=cluster.url, client=full)) as transport:
        assert await transport.send(messages(200)) == [_DELIVERED] * 200
    assert len(await arrivals(cluster, "orders")) == 200


async def test_a_hung_broker_is_answered_for_in_time(proxy: FaultProxy, cluster: KafkaCluster) -> None:
    cluster.create("orders")
    async with opened(through(proxy)) as transport:
        await transport.send([sample()])
        proxy.hang()
        async with asyncio.timeout(20):
            outcomes = await _whatever_comes(transport, messages(3))
        assert not any(outcome.delivered or outcome.rejected for outcome in outcomes)
        proxy.heal()
        await _until_delivered(transport, sample())


async def test_a_lost_acknowledgement_is_a_repeat_and_no_loss(proxy: FaultProxy, cluster: KafkaCluster) -> None:
    cluster.create("orders")
    sent = messages(5)
    async with opened(through(proxy)) as transport:
        await transport.send([sample()])
        proxy.drop_answers()
        proxy.answered.clear()
        sending = asyncio.create_task(_sent(transport, sent))
        async with asyncio.timeout(20):
            await proxy.answered.wait()
        proxy.heal()
        proxy.cut()
        assert await sending == [_DELIVERED] * 5
    cluster.advertise(cluster.host, cluster.port)
    arrived = [record.headers["ce_id"] for record in await arrivals(cluster, "orders")]
    assert {str(message.message_id) for message in sent} <= set(arrived)


async def test_closing_ends_what_is_under_way(proxy: FaultProxy, cluster: KafkaCluster) -> None:
    cluster.create("orders")
    transport = KafkaTransport(KafkaSettings(url=f"kafka://{proxy.host}:{proxy.port}", timeout=timedelta(minutes=10)))
    await transport.open()
    await transport.send([sample()])
    proxy.hang()
    sending = asyncio.create_task(_sent(transport, messages(2)))
    await asyncio.sleep(0)
    await transport.close()
    async with asyncio.timeout(20):
        with pytest.raises(TransportUnavailable, match="closed"):
            await sending


async def _sent(transport: KafkaTransport, batch: list[Message]) -> list[Outcome]:
    return list(await transport.send(batch))


async def _whatever_comes(transport: KafkaTransport, batch: list[Message]) -> list[Outcome]:
    """Whether a hung broker is one that cannot be reached depends on what the client finds out in time."""
    try:
        return list(await transport.send(batch))
    except TransportUnavailable:
        return [Outcome(delivered=False, lost=True)] * len(batch)


async def _until_delivered(transport: KafkaTransport, message: Message) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TransportUnavailable):
                (outcome,) = await transport.send([message])
                assert not outcome.rejected
                if outcome.delivered:
                    return
            await asyncio.sleep(0.05)
