"""Random malformed messages beside good ones, on every receiver: each good one is handled once, each bad one is kept
with a reason or rejected, and the consumer stays alive. `make fuzz` draws 10,000 for each."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import aio_pika
import aiohttp
import aiormq
import asyncpg
import pytest
import redis.asyncio as plain_redis
from confluent_kafka import Producer
from faststream import Context
from faststream.middlewares import AckPolicy
from faststream.rabbit import RabbitBroker, RabbitQueue
from msgspec.structs import replace

from pillarbox.cloudevents import AMQP, HTTP, KAFKA, NATS, REDIS, CloudEvent
from pillarbox.consumer import Consumer
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.contracts.receiver import FallbackIdentity
from pillarbox.integrations.faststream import InboxMiddleware
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.consumer.databases import ON_MARIADB, ON_POSTGRES
from tests.support.consumer.scene import QUICK, TYPES, Ticked, until
from tests.support.consumer.spoiled_messages import Raw, draw_messages, is_good
from tests.support.consumer.ways import Way, open_way
from tests.support.mariadb_server import scratch_mariadb
from tests.support.rabbitmq_topology import Topology

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(7_200)]

COUNT: Final = int(os.environ.get("PILLARBOX_FUZZ_COUNT", "150"))
SEED: Final = int(os.environ.get("PILLARBOX_FUZZ_SEED", random.SystemRandom().randrange(1_000_000)))
SETTINGS: Final = replace(QUICK, unknown="fail", retry=replace(QUICK.retry, attempts=1))
PATIENCE: Final = 60.0 + COUNT / 5
_PORTION: Final = 300
"""Messages that are under way at once: the Kafka cluster of tests drops the oldest beyond 5 MB."""

Send = Callable[[Way, Sequence[Raw]], Coroutine[Any, Any, int]]
"""Sends messages as they are, and returns how many the broker or the client's own code took."""


class Ends(ConsumerTelemetry):
    """What became of messages, by the broker's or the producer's id."""

    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.others = 0

    @property
    def count(self) -> int:
        return self.handled.total() + len(self.reasons) + self.others

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        self.handled[event.message_id] += 1

    def on_duplicate(self, consumer: str, event: CloudEvent) -> None:
        self.others += 1

    def on_failed(self, consumer: str, identity: FallbackIdentity, *, attempts: int, error: str) -> None:
        self.reasons.append(error)


# --- producers that send what they are given ---


def _to_wire(raw: Raw, prefix: str) -> dict[str, bytes]:
    return {**raw.headers, **{f"{prefix}{name}": value for name, value in raw.attributes.items()}}


async def _send_rabbitmq(way: Way, messages: Sequence[Raw]) -> int:
    connection = await aiormq.connect(way.url)
    # Confirmed, because a close of the connection drops what its writer has not written yet.
    channel = await connection.channel(publisher_confirms=True)
    confirmed: list[Any] = []
    for number, raw in enumerate(messages):
        headers: dict[str, Any] = {
            name: value.decode() if _is_utf8(value) else bytearray(value)
            for name, value in _to_wire(raw, AMQP.prefix).items()
            if name != "content-type"
        }
        if not is_good(str(headers.get(f"{AMQP.prefix}id"))) and number % 4 == 0:
            # AMQP has types of its own.
            odd = (
                None,
                True,
                -1,
                2**62,
                1.5,
                Decimal("1.5"),
                {"a": {"b": [1]}},
                [1, [2]],
                datetime(1970, 1, 1, tzinfo=UTC),
            )
            headers[f"{AMQP.prefix}{('time', 'id', 'extension')[number % 3]}"] = odd[number // 4 % len(odd)]
        content_type = _to_text(raw.headers.get("content-type", b""))[:80]
        properties = aiormq.spec.Basic.Properties(headers=headers, content_type=content_type, message_type="tick")
        publish = channel.basic_publish(raw.body, exchange="", routing_key=way.address, properties=properties)
        confirmed.append(asyncio.ensure_future(publish))
        if len(confirmed) >= _PORTION:
            await asyncio.gather(*confirmed)
            confirmed.clear()
    await asyncio.gather(*confirmed)
    await channel.close()
    await connection.close()
    return len(messages)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _to_text(value: bytes) -> str:
    return value.decode(errors="replace")


async def _send_kafka(way: Way, messages: Sequence[Raw]) -> int:
    producer = Producer({"bootstrap.servers": urlsplit(way.url).netloc})
    errors: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    for raw in messages:
        headers = [(name, value) for name, value in _to_wire(raw, KAFKA.prefix).items() if "\0" not in name]
        key = raw.attributes.get("partitionkey")
        producer.produce(way.address, raw.body or None, key=key, headers=headers, on_delivery=note)  # type: ignore[arg-type]
        producer.poll(0)
    assert await asyncio.to_thread(producer.flush, 60) == 0
    assert not errors
    return len(messages)


async def _send_nats(way: Way, messages: Sequence[Raw]) -> int:
    """Write the protocol by hand: the client refuses most of these headers, and other clients do not."""
    parts = urlsplit(way.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 4222)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n')
    for raw in messages:
        lines = [name.encode() + b": " + value for name, value in _to_wire(raw, NATS.prefix).items()]
        block = b"NATS/1.0\r\n" + b"".join(line.replace(b"\r\n", b"") + b"\r\n" for line in lines) + b"\r\n"
        head = f"HPUB {way.address}.ticks {len(block)} {len(block) + len(raw.body)}\r\n".encode()
        writer.write(head + block + raw.body + b"\r\n")
        await writer.drain()
    writer.write(b"PING\r\n")
    while (line := await reader.readline()) and not line.startswith(b"PONG"):
        assert not line.startswith(b"-ERR"), line
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
    writer.close()
    return len(messages)


async def _send_redis(way: Way, messages: Sequence[Raw]) -> int:
    client = plain_redis.Redis(port=urlsplit(way.url).port or 6379, protocol=2)
    for raw in messages:
        fields: list[str | bytes] = ["data", raw.body]
        for name, value in _to_wire(raw, REDIS.prefix).items():
            fields += (name, value)
        await client.execute_command(  # type: ignore[no-untyped-call]
            "XADD", way.address, "*", *fields
        )
    await client.aclose()
    return len(messages)


async def _send_http(way: Way, messages: Sequence[Raw]) -> int:
    """Send each until it is handled, kept or refused; count those that reached the consumer."""
    slots, taken = asyncio.Semaphore(50), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def post(raw: Raw) -> None:
            nonlocal taken
            headers = {
                name: value.decode("latin-1").replace("\r", "").replace("\n", "")
                for name, value in _to_wire(raw, HTTP.prefix).items()
            }
            async with slots:
                try:
                    async with client.post(
                        f"{way.url}{way.address}", data=raw.body, headers={**headers, "idempotency-key": uuid4().hex}
                    ) as response:
                        taken += response.ok
                        assert response.status < 500, await response.text()
                except (ValueError, aiohttp.ClientError):
                    # The client or the server refuses such a header; a good message has none.
                    assert not is_good(_to_text(raw.attributes.get("id", b"")))

        await asyncio.gather(*(post(raw) for raw in messages))
    return taken


# --- databases: where texts and sizes may be refused ---


@asynccontextmanager
async def _open_postgres(request: pytest.FixtureRequest, name: str) -> AsyncIterator[tuple[object, str | None, bool]]:
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    await open_schema(parse_store_url(url), names=Names(schema)).install()
    kind, is_async = ON_POSTGRES[name]
    async with kind(url, schema) as database:
        yield database, schema, is_async


@asynccontextmanager
async def _open_mariadb(request: pytest.FixtureRequest, name: str) -> AsyncIterator[tuple[object, str | None, bool]]:
    with scratch_mariadb(request.getfixturevalue("mariadb_server")) as url:
        await open_schema(parse_store_url(url), names=Names()).install()
        kind, is_async = ON_MARIADB[name]
        async with kind(url, "") as database:
            yield database, None, is_async


CASES: Final = {
    "rabbitmq": ("quorum", _send_rabbitmq, _open_postgres, "asyncpg-pool"),
    "kafka": ("kafka", _send_kafka, _open_mariadb, "sessions"),
    "nats": ("nats", _send_nats, _open_postgres, "sessions"),
    "redis": ("redis", _send_redis, _open_mariadb, "asyncmy-pool"),
    "http": ("http", _send_http, _open_postgres, "async-sessions"),
}


@pytest.mark.parametrize("case", CASES)
async def test_malformed_messages_stop_nobody(case: str, request: pytest.FixtureRequest) -> None:
    place, send, open_database, handle = CASES[case]
    messages = list(draw_messages(SEED, COUNT))
    good = {_to_text(raw.attributes["id"]) for raw in messages if is_good(_to_text(raw.attributes.get("id", b"")))}
    ends = Ends()
    async with open_way(place, request) as way, open_database(request, handle) as (database, schema, is_async):
        consumer = Consumer(
            "clock", receiver=way.receiver(), database=database, schema=schema, settings=SETTINGS, types=TYPES,
            telemetry=ends,
        )  # fmt: skip

        async def handle_async(event: Ticked) -> None: ...
        def handle_sync(event: Ticked) -> None: ...

        consumer.on(Ticked)(handle_async if is_async else handle_sync)
        async with consumer:
            sent = 0
            for start in range(0, len(messages), _PORTION):
                sent += await send(way, messages[start : start + _PORTION])
                await _wait_for(consumer, ends, sent)
    seen = {message_id: count for message_id, count in ends.handled.items() if is_good(message_id)}
    assert seen == dict.fromkeys(good, 1), f"seed {SEED}"
    assert all(ends.reasons), f"seed {SEED}"
    assert ends.count == sent, f"seed {SEED}: something was delivered again"


async def _wait_for(consumer: Consumer, ends: Ends, sent: int) -> None:
    assert consumer._task is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while ends.count < sent:
                if consumer._task.done():
                    await consumer._task
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"seed {SEED}: only {ends.count} of {sent} messages came to an end")


async def test_malformed_messages_stop_no_subscriber_of_faststream(
    rabbitmq_url: str, postgres_url: str, postgres_schema: str
) -> None:
    await open_schema(parse_store_url(postgres_url), names=Names(postgres_schema)).install()
    messages = list(draw_messages(SEED, COUNT))
    good = {_to_text(raw.attributes["id"]) for raw in messages if is_good(_to_text(raw.attributes.get("id", b"")))}
    handled: Counter[str] = Counter()
    async with (
        Topology.declared(rabbitmq_url) as topology,
        asyncpg.create_pool(postgres_url, min_size=1, max_size=4) as pool,
    ):
        inbox = InboxMiddleware("clock", database=pool, schema=postgres_schema)
        broker = RabbitBroker(topology.url, middlewares=[inbox], logger=None, graceful_timeout=PATIENCE)
        queue = RabbitQueue(topology.queue, durable=True, declare=False)

        @broker.subscriber(queue, ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def handle(body: dict[str, Any], event: Annotated[CloudEvent, Context("event")]) -> None:
            handled[event.message_id] += 1

        way = Way("rabbitmq", rabbitmq_url, sending={}, receiving={}, address=topology.queue)
        await _send_rabbitmq(way, messages)
        await broker.start()
        try:
            await until(lambda: good <= set(handled), within=PATIENCE)
            await until(lambda: _is_empty(rabbitmq_url, topology.queue))
        finally:
            await broker.stop()
        assert await _is_empty(rabbitmq_url, topology.queue), "something was given back"
    assert {name: count for name, count in handled.items() if is_good(name)} == dict.fromkeys(good, 1), f"seed {SEED}"


async def _is_empty(url: str, queue: str) -> bool:
    async with await aio_pika.connect(url) as connection:
        declared = await (await connection.channel()).declare_queue(queue, passive=True)
        return not declared.declaration_result.message_count
