"""Kafka's protocol as a second implementation beside librdkafka's mock speaks it: a broker that is killed in between.

`make test-servers` runs it, and brings the broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final, Literal, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from pillarbox import Outbox, Relay, open_schema
from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.kafka import KafkaReceiver, KafkaSettings, KafkaTransport
from pillarbox.cloudevents import KAFKA, read
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.contracts.transport import Outcome
from pillarbox.testing.samples import sample
from tests.support.tansu_server import PrivateTansu, StorageGate

if "PILLARBOX_TEST_TANSU" not in os.environ:
    pytest.skip("It takes minutes and a download: make test-servers ROWS=kafka runs it.", allow_module_level=True)

PARTITIONS: Final = 2
PATIENCE: Final = 120.0
DELIVERED: Final = Outcome(delivered=True)


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateTansu]:
    with closing(PrivateTansu.opened()) as broker:
        yield broker


@pytest.fixture
def topic(broker: PrivateTansu, request: pytest.FixtureRequest) -> str:
    if broker.pid is None:
        broker.start()
    name = f"orders-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}"
    broker.create(name, partitions=PARTITIONS)
    return name


class Record:
    """A record as a plain client reads it."""

    def __init__(self, key: bytes | None, value: bytes, headers: dict[str, str]) -> None:
        self.key, self.value, self.headers = key, value, headers


async def read_records(broker: PrivateTansu, topic: str, count: int) -> Sequence[Record]:
    """Return the records of a topic, in order within a partition, once there are so many distinct ones."""
    return await asyncio.to_thread(_read_records, broker.address, topic, count)


def _read_records(address: str, topic: str, count: int, *, partitions: int = PARTITIONS) -> Sequence[Record]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "log_level": 0})
    found: list[Record] = []
    quiet, deadline = 0, time.monotonic() + PATIENCE
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while quiet < 3 or len({one.value for one in found}) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
            messages = consumer.consume(num_messages=500, timeout=1.0)
            quiet = 0 if messages else quiet + 1
            for one in messages:
                assert one.error() is None, one.error()
                headers = cast("dict[str, bytes]", dict(one.headers() or []))
                texts = {name: value.decode() for name, value in headers.items()}
                found.append(Record(one.key(), one.value() or b"", texts))
    finally:
        consumer.close()
    return found


@asynccontextmanager
async def opened(
    broker: PrivateTansu, mode: Literal["binary", "structured"] = "binary"
) -> AsyncIterator[KafkaTransport]:
    transport = KafkaTransport(KafkaSettings(url=broker.url, mode=mode))
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_a_message_arrives_whole(broker: PrivateTansu, topic: str, mode: Literal["binary", "structured"]) -> None:
    message = sample(key="customer-1", topic=topic, headers={"tenant": "shop-1"}, payload=b'{"n": "\xc3\xa9"}')
    async with opened(broker, mode) as transport:
        assert await transport.send([message]) == [DELIVERED]
    (record,) = await read_records(broker, topic, 1)
    cloudevent = read(record.headers, record.value, binding=KAFKA)

    assert record.key == b"customer-1"
    assert (cloudevent.message_id, cloudevent.payload) == (str(message.message_id), message.payload)


async def test_a_key_stays_in_its_partition_and_in_order(broker: PrivateTansu, topic: str) -> None:
    messages = [sample(key=f"key-{n % 7}", topic=topic, payload=b"%d" % n) for n in range(300)]
    async with opened(broker) as transport:
        assert await transport.send(messages) == [DELIVERED] * 300
    records = await read_records(broker, topic, 300)

    assert len(records) == 300
    assert _count_inversions(records) == 0


async def test_a_relay_delivers_while_the_broker_is_killed(broker: PrivateTansu, topic: str, tmp_path: Path) -> None:
    store, count = f"sqlite:///{tmp_path / 'shop.db'}", 1_000
    await open_schema(store).install()
    outbox = Outbox(routes="kafka", source="/shop")
    relay = Relay(store, {"kafka": f"{broker.url}?timeout=5s"})

    def write(numbers: range) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db", timeout=30)) as connection, connection:
            for number in numbers:
                outbox.publish(
                    connection, b"%d" % number, type="orders.placed", content_type="text/plain", topic=topic,
                    key=f"key-{number % 7}", destinations=["kafka"],
                )  # fmt: skip

    write(range(count // 2))
    running = asyncio.create_task(relay.run())
    for _ in range(2):
        await read_records(broker, topic, 1)
        broker.kill()
        await asyncio.to_thread(broker.start)
    write(range(count // 2, count))
    records = await read_records(broker, topic, count)
    relay.stop()
    await running

    assert {one.value for one in records} == {b"%d" % number for number in range(count)}
    assert _count_inversions(records) == 0


async def test_a_receiver_goes_on_where_it_had_committed(broker: PrivateTansu, topic: str) -> None:
    @asynccontextmanager
    async def received() -> AsyncIterator[KafkaReceiver]:
        receiver = receiver_from_url(broker.url, options={"topics": topic, "group": topic, "timeout": "60s"})
        assert isinstance(receiver, KafkaReceiver)
        await receiver.open()
        try:
            yield receiver
        finally:
            await receiver.close()

    async with opened(broker) as transport:
        await transport.send([sample(key="one", topic=topic, payload=b"%d" % n) for n in range(20)])
    async with received() as receiver:
        first = await take_slowly(receiver, 20)
        for one in first[:10]:
            await receiver.acknowledge(one)
    broker.kill()
    await asyncio.to_thread(broker.start)
    async with received() as receiver:
        again = await take_slowly(receiver, 10)

    assert [one.body for one in first] == [b"%d" % n for n in range(20)]
    assert [one.body for one in again] == [b"%d" % n for n in range(10, 20)]


@pytest.mark.parametrize(
    ("is_idempotent", "found"),
    [
        pytest.param(True, [b"stored", b"stored later"], id="its-sequence-was-stored"),
        pytest.param(False, [b"stored", b"sent when it was killed", b"stored later"], id="it-has-no-sequence"),
    ],
)
def test_the_broker_takes_a_repeat_for_a_duplicate_of_what_it_never_stored(
    is_idempotent: bool, found: Sequence[bytes]
) -> None:
    """A bare producer loses what docs/clusters.md counts as lost. This test fails when the broker is mended."""
    reports: dict[bytes | None, KafkaError | None] = {}

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        reports[message.value()] = error

    with closing(PrivateTansu(PrivateTansu.found(), gate := StorageGate.opened()).started()) as broker:
        broker.create("bare")
        producer = Producer(
            {"bootstrap.servers": broker.address, "enable.idempotence": is_idempotent, "acks": "all", "log_level": 0}
        )
        producer.produce("bare", b"stored", on_delivery=on_delivery)
        assert producer.flush(PATIENCE) == 0

        gate.holds_records = True
        producer.produce("bare", b"sent when it was killed", on_delivery=on_delivery)
        producer.poll(0)
        assert gate.held.wait(PATIENCE)
        broker.kill()
        gate.holds_records = False
        broker.start()
        assert producer.flush(PATIENCE) == 0
        producer.produce("bare", b"stored later", on_delivery=on_delivery)
        assert producer.flush(PATIENCE) == 0
        records = _read_records(broker.address, "bare", len(found), partitions=1)

    assert reports == {b"stored": None, b"sent when it was killed": None, b"stored later": None}
    assert [one.value for one in records] == found


async def take_slowly(receiver: KafkaReceiver, count: int) -> list[IncomingMessage]:
    """Receive so many. Joining a group takes this broker about 20 seconds."""
    taken: list[IncomingMessage] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            taken += await receiver.receive(limit=count - len(taken))
    return taken


def _count_inversions(records: Sequence[Record]) -> int:
    """Return how many records came first after a later one of their key. A repeat is none."""
    latest: Counter[bytes | None] = Counter()
    seen: set[bytes] = set()
    inversions = 0
    for one in records:
        if one.value in seen:
            continue
        seen.add(one.value)
        inversions += int(one.value) < latest[one.key]
        latest[one.key] = max(latest[one.key], int(one.value))
    return inversions
