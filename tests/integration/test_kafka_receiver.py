"""The Kafka receiver: what it commits and when, partitions that change hands, and what it says when there is no way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.kafka import KafkaReceiver, poller
from pillarbox.brokers.kafka.settings import build_consumer_config
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.decoding import to_cloudevent
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.receiver_contract import assert_nothing_more, take
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_gate import Gate, gated

PATIENCE: Final = 40.0
OFFSET_COMMIT: Final = 8
JOIN_GROUP: Final = 11
NOT_ALLOWED, REBALANCING = 30, 27


@pytest.fixture
async def cluster() -> AsyncIterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        cluster.create("orders", partitions=2)
        yield cluster


@pytest.fixture
async def gate(cluster: KafkaCluster) -> AsyncIterator[Gate]:
    async with gated(cluster) as gate:
        yield gate


def receiver_at(url: str, /, **options: object) -> KafkaReceiver:
    receiver = receiver_from_url(url, options=options)
    assert isinstance(receiver, KafkaReceiver)
    return receiver


@asynccontextmanager
async def opened(
    url: str, *, name: str = "first", told: Mapping[str, str] = MappingProxyType({}), **options: object
) -> AsyncIterator[KafkaReceiver]:
    usual = {"topics": "orders", "group": "billing", "session_timeout": "4s", "timeout": "30s"}
    quick = {"fetch.wait.max.ms": "20", "client.id": name}
    receiver = receiver_at(url, **{**usual, **options, "client": {**quick, **told}})
    await receiver.open()
    try:
        yield receiver
    finally:
        await receiver.close()


async def put(cluster: KafkaCluster, *values: str, partition: int = 0, **record: Any) -> None:
    await asyncio.to_thread(_put, cluster, values, partition, record)


def _put(cluster: KafkaCluster, values: Sequence[str], partition: int, record: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": cluster.address, "log_level": 0})
    for value in values:
        producer.produce("orders", value, partition=partition, **record)
    assert producer.flush(30) == 0


async def committed(cluster: KafkaCluster, partition: int = 0) -> tuple[int, str | None]:
    """What the cluster keeps for the group, asked by a plain client."""
    return await asyncio.to_thread(_committed, cluster, partition)


def _committed(cluster: KafkaCluster, partition: int) -> tuple[int, str | None]:
    consumer = Consumer({"bootstrap.servers": cluster.address, "group.id": "billing", "log_level": 0})
    try:
        (place,) = consumer.committed([TopicPartition("orders", partition)], 30)
        return place.offset, place.metadata
    finally:
        consumer.close()


def bodies(received: Sequence[IncomingMessage]) -> list[bytes]:
    return [one.body for one in received]


# --- what is committed -----------------------------------------------------------------------------------


async def test_an_acknowledgement_is_committed_when_it_returns(cluster: KafkaCluster) -> None:
    async with opened(cluster.url) as one:
        await put(cluster, "a", "b", "c")
        for number, received in enumerate(await take(one, 3), start=1):
            await one.acknowledge(received)
            assert (await committed(cluster))[0] == number


async def test_the_lowest_that_is_not_settled_is_committed(cluster: KafkaCluster) -> None:
    """So the later ones come again, and the inbox knows them."""
    async with opened(cluster.url) as one:
        await put(cluster, "a", "b", "c")
        a, b, c = await take(one, 3)
        await one.acknowledge(c)
        await one.acknowledge(b)
        assert (await committed(cluster))[0] == 0
        await one.acknowledge(a)
        assert (await committed(cluster))[0] == 3


async def test_what_may_have_been_handed_out_is_committed_before_it_is(cluster: KafkaCluster) -> None:
    """By which the next owner knows what a dead one may have had. Not even trouble changes the order."""
    cluster.fail_next(REBALANCING, REBALANCING, request=OFFSET_COMMIT)
    async with opened(cluster.url) as one:
        await put(cluster, "a")
        (received,) = await take(one, 1)
        assert not received.redelivered
        assert await committed(cluster) == (0, "pillarbox:1000")


async def test_a_commit_that_fails_in_passing_is_repeated(cluster: KafkaCluster) -> None:
    async with opened(cluster.url) as one:
        await put(cluster, "a")
        (received,) = await take(one, 1)
        cluster.fail_next(REBALANCING, REBALANCING, request=OFFSET_COMMIT)
        await one.acknowledge(received)
        assert (await committed(cluster))[0] == 1


async def test_a_commit_that_is_forbidden_is_said(cluster: KafkaCluster) -> None:
    cluster.fail_next(NOT_ALLOWED, request=OFFSET_COMMIT)
    async with opened(cluster.url) as one:
        await put(cluster, "a")
        with pytest.raises(TransportUnavailable, match="offsets cannot be committed"):
            async with asyncio.timeout(PATIENCE):
                await one.receive(limit=1)
        assert bodies(await take(one, 1)) == [b"a"]


def test_nothing_is_committed_but_by_us_and_transactions_are_respected() -> None:
    config = build_consumer_config(receiver_at("kafka://k.example", topics="a,b", group="g").settings, environ={})
    expected = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "allow.auto.create.topics": False,
    }
    assert expected.items() <= config.items()


# --- partitions that change hands ------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
async def test_when_another_joins_each_message_is_handled_by_somebody(
    cluster: KafkaCluster, gate: Gate, assignor: str
) -> None:
    """One partition goes to the other: what was settled in it is committed, what was not comes again there."""
    async with opened(gate.url, assignor=assignor) as one:
        for partition in (0, 1):
            await put(cluster, f"{partition}-done", f"{partition}-open", partition=partition)
        mine = {received.body: received for received in await take(one, 4)}
        for partition in (0, 1):
            await one.acknowledge(mine[b"%d-done" % partition])
        async with opened(gate.url, name="other", assignor=assignor) as other:
            (came, *_) = await asyncio.gather(take(other, 1), polled(one, until=other))
            (moved,) = came
            assert moved.body in (b"0-open", b"1-open")
            assert moved.redelivered
            partition = int(moved.body[:1])
            await one.acknowledge(mine[moved.body])  # too late: it is another's, and not said to be done by this
            assert (await committed(cluster, partition))[0] == 1
            await other.acknowledge(moved)
            assert (await committed(cluster, partition))[0] == 2


async def polled(receiver: KafkaReceiver, *, until: KafkaReceiver) -> None:
    """Ask for messages as a consumer does, until the other has a partition."""
    async with asyncio.timeout(PATIENCE):
        while not (until._connection.current and until._connection.current._poller._partitions):
            with contextlib.suppress(TimeoutError, TransportUnavailable):
                async with asyncio.timeout(0.2):
                    await receiver.receive(limit=1)


async def test_what_is_settled_is_committed_before_a_partition_goes(
    cluster: KafkaCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what could not be at once, and would be tried again much later. The mock cluster refuses it at this time,
    where Kafka does not; so what is looked at is that it is asked before the partition is given up."""
    monkeypatch.setattr(poller, "_COMMIT_RETRY", 1_000.0)
    async with opened(gate.url, assignor="range") as one:
        await put(cluster, "a")
        (received,) = await take(one, 1)
        cluster.fail_next(REBALANCING, request=OFFSET_COMMIT)
        acknowledging = asyncio.create_task(one.acknowledge(received))
        async with opened(gate.url, name="other", assignor="range") as other:
            await polled(one, until=other)
            await acknowledging
    asked = [number for who, number in gate.asked if who == "first" and number in (JOIN_GROUP, OFFSET_COMMIT)]
    rejoined = asked.index(JOIN_GROUP, asked.index(OFFSET_COMMIT))
    assert asked[:rejoined].count(OFFSET_COMMIT) == 3  # the mark, the one that failed, and this


async def test_what_stays_ours_is_not_disturbed(cluster: KafkaCluster, gate: Gate) -> None:
    """Partitions move one by one: the handlers of those that stay go on, and what they did counts."""
    async with opened(gate.url) as one:
        for partition in (0, 1):
            await put(cluster, f"{partition}", partition=partition)
        mine = {received.body: received for received in await take(one, 2)}
        async with opened(gate.url, name="other") as other:
            ((moved,), *_) = await asyncio.gather(take(other, 1), polled(one, until=other))
            kept = 1 - int(moved.body)
            await one.acknowledge(mine[b"%d" % kept])
            assert (await committed(cluster, kept))[0] == 1
            await assert_nothing_more(one)


async def test_a_lost_partition_is_not_committed(cluster: KafkaCluster, gate: Gate) -> None:
    """Its owner was silent for too long. It wakes up, says that it is done with more than the next one is, in vain."""
    async with opened(gate.url) as one:
        await put(cluster, "a", "b")
        first, second = await take(one, 2)
        gate.hold("first")
        async with opened(gate.url, name="other") as other:
            again = await take(other, 2)
            assert bodies(again) == [b"a", b"b"]
            assert all(received.redelivered for received in again)
            await other.acknowledge(again[0])
            gate.release("first")
            await one.acknowledge(first)
            await one.acknowledge(second)
            assert (await committed(cluster))[0] == 1


async def test_a_slow_consumer_stays_in_the_group(cluster: KafkaCluster) -> None:
    """It asks for nothing for longer than the client may go unasked: its partitions are paused, not given up."""
    async with opened(cluster.url, session_timeout="4s", told={"max.poll.interval.ms": "4000"}) as one:
        await put(cluster, "a", "b", *(["c"] * 50))
        (slow,) = await take(one, 1, limit=1)
        await asyncio.sleep(6)
        assert one._connection.current is not None
        assert len(one._connection.current._poller._fetched) < 5  # it does not pile up what nobody asks for
        await one.acknowledge(slow)
        assert (await committed(cluster))[0] == 1
        second, *_ = await take(one, 51)
        assert (second.body, second.redelivered) == (b"b", False)
        await assert_nothing_more(one)


async def test_what_was_paused_goes_on_when_a_partition_is_added(cluster: KafkaCluster, gate: Gate) -> None:
    """It asked for nothing for a while, then another left it a partition: the one that it had is not forgotten."""
    async with opened(gate.url) as one:
        async with opened(gate.url, name="other") as other:
            await until(lambda: has(one, 1) and has(other, 1))
            assert one._connection.current is not None
            await until(lambda: one._connection.current._poller._is_paused)  # type: ignore[union-attr]
        await until(lambda: has(one, 2))
        for partition in (0, 1):
            await put(cluster, f"{partition}", partition=partition)
        assert sorted(bodies(await take(one, 2))) == [b"0", b"1"]


def has(receiver: KafkaReceiver, partitions: int) -> bool:
    return (
        receiver._connection.current is not None and len(receiver._connection.current._poller._partitions) == partitions
    )


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_all_topics_come_together(cluster: KafkaCluster) -> None:
    cluster.create("returns")
    async with opened(cluster.url, topics="orders,returns") as one:
        await put(cluster, "a")
        producer = Producer({"bootstrap.servers": cluster.address, "log_level": 0})
        producer.produce("returns", "b")
        assert await asyncio.to_thread(producer.flush, 30) == 0
        came = {received.fallback.topic: received.body for received in await take(one, 2)}
    assert came == {"orders": b"a", "returns": b"b"}


async def test_latest_leaves_out_what_was_there(cluster: KafkaCluster) -> None:
    await put(cluster, "before")
    async with opened(cluster.url, start="latest") as one:
        waiting = asyncio.create_task(take(one, 1))
        async with asyncio.timeout(PATIENCE):
            while not waiting.done():
                await put(cluster, "after")
                await asyncio.wait({waiting}, timeout=0.2)
    assert bodies(await waiting) == [b"after"]


# --- what comes ------------------------------------------------------------------------------------------


async def test_a_plain_record_is_known_by_its_place_and_key(cluster: KafkaCluster) -> None:
    async with opened(cluster.url) as one:
        await put(cluster, "a", "b", partition=1, key="customer-1")
        _, second = await take(one, 2)
    plain = second.fallback
    assert (plain.source, plain.message_id, plain.topic, plain.key) == (
        "kafka:orders",
        "orders/1/1",
        "orders",
        "customer-1",
    )


async def test_the_key_of_a_record_is_that_of_its_event(cluster: KafkaCluster) -> None:
    """Other producers write it there alone, as the binding lets them."""
    headers = {"ce_specversion": "1.0", "ce_id": "e-1", "ce_source": "/shop", "ce_type": "placed"}
    async with opened(cluster.url) as one:
        await put(cluster, "{}", key="customer-1", headers=headers)
        (received,) = await take(one, 1)
    assert to_cloudevent(received).key == "customer-1"


async def test_any_record_comes(cluster: KafkaCluster) -> None:
    """One without a value, with a key and headers that are no text."""
    async with opened(cluster.url) as one:
        await put(cluster, "", key=b"\xff", headers={"h": b"\xfe", "n": None})
        (received,) = await take(one, 1)
    assert (received.body, received.fallback.key, received.headers) == (b"", None, {"h": b"\xfe", "n": ""})


# --- no way there ----------------------------------------------------------------------------------------


async def test_a_topic_that_is_not_there_is_named(cluster: KafkaCluster) -> None:
    with pytest.raises(TransportUnavailable, match=r"does not let the topic nowhere be read .* create it"):
        await receiver_at(cluster.url, topics="orders,nowhere", group="g", timeout="30s").open()


class StuckClient:
    """A real client that fails once and then never leaves its group, as librdkafka was seen to do."""

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self.left = threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def poll(self, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FAIL, "it broke"))

    def close(self) -> None:
        self.left.wait()
        self._client.close()


async def test_a_client_that_never_leaves_its_group_ends_all_the_same(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for an answer of the client waited for ever."""
    receiver = receiver_at(cluster.url, topics="orders", group="g", timeout="30s")
    clients: list[StuckClient] = []
    build = poller._build_consumer

    def build_stuck(config: dict[str, Any], *, sanitize: Callable[[str], str]) -> StuckClient:
        clients.append(StuckClient(build(config, sanitize=sanitize)))
        return clients[-1]

    monkeypatch.setattr(poller, "_build_consumer", build_stuck)
    monkeypatch.setattr(poller, "_CLOSE_TIMEOUT", 0.2)
    try:
        async with asyncio.timeout(PATIENCE):
            await receiver.open()
            with pytest.raises(TransportUnavailable):
                await receiver.receive(limit=1)
            await receiver.close()
    finally:
        for client in clients:
            client.left.set()
        for thread in threading.enumerate():
            if thread.name == "pillarbox-kafka-close":
                thread.join()
    assert len(clients) == 1


async def test_nobody_there_is_said() -> None:
    with KafkaCluster() as gone:
        url = gone.url
    with pytest.raises(TransportUnavailable, match="cannot be reached"):
        await receiver_at(url, topics="orders", group="g", timeout="2s").open()


async def test_who_waits_hears_without_asking_that_the_cluster_went(gate: Gate) -> None:
    async with opened(gate.url) as one:
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)
        await gate.down()
        with pytest.raises(TransportUnavailable, match="broke"):
            async with asyncio.timeout(PATIENCE):
                await waiting


async def test_closing_commits_what_nobody_waited_for(cluster: KafkaCluster) -> None:
    """Also when that takes more than one try."""
    async with opened(cluster.url) as one:
        await put(cluster, "a", "b", "c")
        taken = await take(one, 3)
        cluster.fail_next(REBALANCING, request=OFFSET_COMMIT)
        acknowledging = [asyncio.create_task(one.acknowledge(received)) for received in taken]
        await asyncio.sleep(0)
    await asyncio.gather(*acknowledging)
    assert (await committed(cluster))[0] == 3


async def test_closing_while_somebody_waits_ends_the_wait(cluster: KafkaCluster) -> None:
    async with opened(cluster.url) as one:
        waiting = asyncio.create_task(one.receive(limit=1))
        await asyncio.sleep(0.1)
    with pytest.raises(TransportUnavailable):
        async with asyncio.timeout(PATIENCE):
            await waiting


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": "g"}, "needs topics"),
        ({"topics": "t"}, "needs group"),
        ({"topics": "a b", "group": "g"}, "option topics"),
        ({"topics": "^a.*", "group": "g"}, "option topics"),
        ({"topics": "t", "group": ""}, "option group"),
        ({"topics": "t", "group": "g", "session_timeout": "0s"}, "session_timeout"),
        ({"topics": "t", "group": "g", "client": {"enable.auto.commit": "true"}}, "cannot be set"),
        ({"topics": "t", "group": "g", "client": {"isolation.level": "read_uncommitted"}}, "cannot be set"),
        ({"topics": "t", "group": "g", "client": {"group.id": "h"}}, "use the option group"),
        ({"topics": "t", "group": "g", "client": {"no.such": "1"}}, "does not take its settings"),
        ({"topics": "t", "group": "g", "user": "u"}, "a user and a password"),
        ({"topics": "t", "group": "g", "verify": False}, "insecure=true"),
        ({"topics": "t", "group": "g", "colour": "red"}, "no option 'colour'"),
        ({"topics": "t", "group": "g", "url": "kafka://x"}, "twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        receiver_at("kafka://kafka.example", **options)


def test_nothing_shows_a_secret() -> None:
    one = receiver_at("kafka://shop:canary-1234@kafka.example", topics="t", group="g", tls=True)
    assert "canary" not in f"{one!r} {one.settings!r} {one.settings}"
