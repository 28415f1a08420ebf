"""A consumer that is stopped in the middle, over Redis Streams and Kafka: the next one goes on, once and in order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest
import redis.asyncio as plain

from pillarbox.brokers.factory import receiver_from_url, transport_from_url
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.contracts.receiver import Receiver
from pillarbox.contracts.transport import Transport
from pillarbox.message import Message
from pillarbox.testing.samples import sample
from tests.support.kafka_cluster import KafkaCluster
from tests.support.redis_server import PrivateRedis, private_redis
from tests.support.writers.places import SqlitePlace

PATIENCE: Final = 60.0
KEYS: Final = 5
EACH: Final = 12


class Way:
    """From a transport to receivers of one group."""

    def __init__(self, url: str, *, sending: dict[str, object], receiving: dict[str, object]) -> None:
        self._url = url
        self._sending = sending
        self._receiving = receiving

    def transport(self) -> Transport:
        return transport_from_url(self._url, options=self._sending)

    def receiver(self) -> Receiver:
        return receiver_from_url(self._url, options=self._receiving)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[PrivateRedis]:
    with closing(private_redis("--save", "")) as server:
        yield server


@pytest.fixture(params=["redis", "kafka"])
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with _redis(request) if request.param == "redis" else _kafka() as way:
        yield way


@asynccontextmanager
async def _redis(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    server: PrivateRedis = request.getfixturevalue("redis_server")
    async with aclosing(plain.Redis(port=server.port, protocol=2)) as client:
        await client.flushall()
    receiving: dict[str, object] = {"stream": "orders", "group": "billing", "declare": True}
    yield Way(server.url, sending={"key": "orders"}, receiving=receiving)


@asynccontextmanager
async def _kafka() -> AsyncIterator[Way]:
    with KafkaCluster() as cluster:
        cluster.create("orders", partitions=3)
        receiving: dict[str, object] = {"topics": "orders", "group": "billing", "session_timeout": "4s"}
        yield Way(cluster.url, sending={"topic": "orders"}, receiving=receiving)


@pytest.fixture
def place(tmp_sqlite: Path) -> SqlitePlace:
    place = SqlitePlace(tmp_sqlite)
    place.install()
    return place


def consumer_of(way: Way, place: SqlitePlace) -> Consumer:
    # Few in hand, so that most is still to come when it is stopped.
    settings = ConsumerSettings(concurrency=2, prefetch=6)
    consumer = Consumer("billing", receiver=way.receiver(), database=place.path, settings=settings)

    @consumer.on("*")
    def bill(event: Any, tx: sqlite3.Connection) -> None:
        tx.execute("insert into orders (note) values (?)", (event["note"],))

    return consumer


def messages() -> list[Message]:
    names = [(f"key-{key}", number) for number in range(EACH) for key in range(KEYS)]
    return [sample(key=key, payload=b'{"note": "%s %d"}' % (key.encode(), number)) for key, number in names]


def notes(place: SqlitePlace) -> list[str]:
    return [row["note"] for row in place.query("select note from orders order by id")]


async def handled(place: SqlitePlace, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(await asyncio.to_thread(notes, place)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_one_leaves_the_next_does(way: Way, place: SqlitePlace) -> None:
    transport = way.transport()
    await transport.open()
    try:
        assert all(outcome.delivered for outcome in await transport.send(messages()))
    finally:
        await transport.close()
    for part in (1, 2, 3):
        async with consumer_of(way, place):
            await handled(place, KEYS * EACH * part // 3)
    found = notes(place)
    assert len(found) == len(set(found)) == KEYS * EACH
    for key in range(KEYS):
        assert [note for note in found if note.startswith(f"key-{key} ")] == [f"key-{key} {n}" for n in range(EACH)]
