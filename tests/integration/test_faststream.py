"""FastStream's subscribers with an inbox, on a real RabbitMQ and PostgreSQL: once in effect, whatever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import aio_pika
import asyncpg
import pytest
from confluent_kafka import Producer
from faststream import Context, StreamMessage
from faststream.confluent import KafkaBroker
from faststream.exceptions import AckMessage
from faststream.middlewares import AckPolicy
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from pillarbox import Outbox
from pillarbox.cloudevents import AMQP, CloudEvent, to_binary
from pillarbox.errors import ConfigError, DecodeError
from pillarbox.events import Types
from pillarbox.integrations import faststream
from pillarbox.integrations.faststream import InboxMiddleware
from pillarbox.message import Names
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.kafka_cluster import KafkaCluster
from tests.support.nats_server import NatsServer, stream_at
from tests.support.processes import end_process
from tests.support.rabbitmq_topology import Topology
from tests.support.servers import found
from tests.support.writers.places import PostgresPlace

PATIENCE: Final = 60.0


@pytest.fixture
async def topology(rabbitmq_url: str) -> AsyncIterator[Topology]:
    async with Topology.declared(rabbitmq_url) as topology:
        yield topology


@pytest.fixture
def place(postgres_url: str, postgres_schema: str) -> PostgresPlace:
    place = PostgresPlace(postgres_url, Names(schema=postgres_schema))
    place.install()
    return place


@pytest.fixture
async def pool(place: PostgresPlace) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(place.url, min_size=1, max_size=4) as pool:
        yield pool


def broker_at(topology: Topology, place: PostgresPlace, *, database: object) -> RabbitBroker:
    inbox = InboxMiddleware("billing", database=database, schema=place.names.schema)
    # It ends when what is in hand is acknowledged, so that what is left was not.
    return RabbitBroker(topology.url, middlewares=[inbox], logger=None, graceful_timeout=PATIENCE)


def queue_of(topology: Topology) -> RabbitQueue:
    return RabbitQueue(topology.queue, durable=True, declare=False)


@asynccontextmanager
async def running(broker: RabbitBroker) -> AsyncIterator[None]:
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


async def put(topology: Topology, body: str, **properties: Any) -> None:
    message = aio_pika.Message(body.encode(), content_type="text/plain", **properties)
    await topology.channel.default_exchange.publish(message, routing_key=topology.queue)


async def left(topology: Topology) -> int:
    """Messages that wait. Those in hand are not counted."""
    queue = await topology.channel.declare_queue(topology.queue, passive=True)
    return queue.declaration_result.message_count or 0


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def notes(place: PostgresPlace) -> list[str]:
    return [row["note"] for row in place.query(f"select note from {place.orders} order by id")]


def inbox(place: PostgresPlace) -> list[tuple[str, str, int]]:
    rows = place.query("select consumer, message_id, duplicates from pillarbox_inbox order by message_id")
    return [(row["consumer"], row["message_id"], row["duplicates"]) for row in rows]


# --- a process that dies ---------------------------------------------------------------------------------


class Service:
    """The service as a process of its own."""

    def __init__(self, topology: Topology, place: PostgresPlace, *, point: str) -> None:
        schema = place.names.schema or ""
        module = "tests.support.faststream_child"
        self._words = (sys.executable, "-m", module, topology.url, topology.queue, place.url, schema, point)

    async def __aenter__(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(*self._words)
        return self._process

    async def __aexit__(self, *_: object) -> None:
        await end_process(self._process)


@pytest.mark.parametrize(("point", "duplicates"), [("before commit", 0), ("after commit", 1)])
async def test_a_process_that_dies_bills_once(
    topology: Topology, place: PostgresPlace, point: str, duplicates: int
) -> None:
    await put(topology, "order-1", message_id="m-1", delivery_mode=2)
    async with Service(topology, place, point=point) as dying, asyncio.timeout(PATIENCE):
        assert await dying.wait() == -signal.SIGKILL
    assert notes(place) == ["order-1"] * duplicates
    await until(lambda: _has(topology, 1))  # the broker takes back what was not acknowledged
    async with Service(topology, place, point="none") as living:
        await until(lambda: _billed(place, duplicates))
        living.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await living.wait() == 0
    assert notes(place) == ["order-1"]
    assert [row["type"] for row in place.query("select type from pillarbox_outbox")] == ["billed"]
    await until(lambda: _has(topology, 0))


async def _has(topology: Topology, count: int) -> bool:
    return await left(topology) == count


async def _billed(place: PostgresPlace, duplicates: int) -> bool:
    found = await asyncio.to_thread(inbox, place)
    return found == [("billing.Bill", "m-1", duplicates)]


# --- in this process -------------------------------------------------------------------------------------


async def test_a_duplicate_is_acknowledged_without_calling_the_handler(
    topology: Topology, place: PostgresPlace, pool: Any
) -> None:
    broker = broker_at(topology, place, database=pool)
    calls: list[str] = []

    @broker.subscriber(queue_of(topology))
    async def bill(note: str) -> None:
        calls.append(note)

    await put(topology, "a", message_id="m-1")
    async with running(broker):
        await until(_seen(place, [("billing.Bill", "m-1", 0)]))  # handlers run side by side: the first is the first
        for body, message_id in (("again", "m-1"), ("b", "m-2")):
            await put(topology, body, message_id=message_id)
        await until(_seen(place, [("billing.Bill", "m-1", 1), ("billing.Bill", "m-2", 0)]))
    assert calls == ["a", "b"]
    assert await left(topology) == 0  # what had not been acknowledged would be back


def _seen(place: PostgresPlace, expected: list[tuple[str, str, int]]) -> Callable[[], Awaitable[bool]]:
    async def seen() -> bool:
        return await asyncio.to_thread(inbox, place) == expected

    return seen


async def test_a_handler_that_raises_undoes_all_and_is_called_again(
    topology: Topology, place: PostgresPlace, pool: Any
) -> None:
    """By FastStream's policy, which is to give it back here."""
    broker = broker_at(topology, place, database=pool)
    outbox = Outbox(routes="broker", source="/billing", schema=place.names.schema, types=Types())
    calls: list[str] = []

    @broker.subscriber(queue_of(topology), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
        calls.append(note)
        await tx.execute(f"insert into {place.orders} (note) values ($1)", f"{note}-{len(calls)}")
        await outbox.publish(tx, {"note": note}, type="billed")
        if len(calls) < 3:
            raise ValueError("not yet")

    await put(topology, "a", message_id="m-1")
    async with running(broker):
        await until(_seen(place, [("billing.Bill", "m-1", 0)]))
    assert notes(place) == ["a-3"]
    assert len(place.query("select 1 from pillarbox_outbox")) == 1


async def test_what_is_rejected_is_not_remembered(topology: Topology, place: PostgresPlace, pool: Any) -> None:
    broker = broker_at(topology, place, database=pool)
    raised = asyncio.Event()

    @broker.subscriber(queue_of(topology), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
        await tx.execute(f"insert into {place.orders} (note) values ($1)", note)
        raised.set()
        raise ValueError("never")

    await put(topology, "a", message_id="m-1")
    async with running(broker), asyncio.timeout(PATIENCE):
        await raised.wait()
    assert (notes(place), inbox(place), await left(topology)) == ([], [], 0)


async def test_a_handler_that_says_it_is_done_keeps_what_it_wrote(
    topology: Topology, place: PostgresPlace, pool: Any
) -> None:
    broker = broker_at(topology, place, database=pool)

    @broker.subscriber(queue_of(topology), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
        await tx.execute(f"insert into {place.orders} (note) values ($1)", note)
        raise AckMessage

    await put(topology, "a", message_id="m-1")
    async with running(broker):
        await until(_seen(place, [("billing.Bill", "m-1", 0)]))
    assert (notes(place), await left(topology)) == (["a"], 0)


async def test_a_transaction_that_met_another_is_repeated(topology: Topology, place: PostgresPlace, pool: Any) -> None:
    """The default policy would throw the message away."""
    broker = broker_at(topology, place, database=pool)
    calls: list[str] = []

    @broker.subscriber(queue_of(topology))
    async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
        calls.append(note)
        await tx.execute(f"insert into {place.orders} (note) values ($1)", note)
        if len(calls) == 1:
            raise asyncpg.DeadlockDetectedError("deadlock detected")

    await put(topology, "a", message_id="m-1")
    async with running(broker):
        await until(_seen(place, [("billing.Bill", "m-1", 0)]))
    assert (notes(place), calls) == (["a"], ["a", "a"])


@pytest.mark.parametrize("policy", [AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR])
async def test_a_database_that_is_away_is_waited_for(
    topology: Topology, place: PostgresPlace, policy: AckPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """Every policy would throw messages away, or have them delivered again and again up to the delivery limit."""
    parts = urlsplit(place.url)
    async with FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        login = parts.netloc.rpartition("@")[0] or "postgres"
        url = parts._replace(netloc=f"{login}@{proxy.host}:{proxy.port}").geturl()
        async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
            broker = broker_at(topology, place, database=pool)

            @broker.subscriber(queue_of(topology), ack_policy=policy)
            async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
                await tx.execute(f"insert into {place.orders} (note) values ($1)", note)

            await proxy.down()
            async with running(broker):
                for number in range(3):
                    await put(topology, f"order-{number}", message_id=f"m-{number}")
                await until(lambda: _is_waited_for(caplog))
                await proxy.up()
                await until(_seen(place, [("billing.Bill", f"m-{number}", 0) for number in range(3)]))
    assert sorted(notes(place)) == ["order-0", "order-1", "order-2"]
    assert await left(topology) == 0


async def _is_waited_for(caplog: pytest.LogCaptureFixture) -> bool:
    return caplog.text.count("is away, trying again") > 5


async def test_what_cannot_be_read_is_rejected_once(
    topology: Topology, place: PostgresPlace, pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that put it back would deliver it again at once."""
    broker = broker_at(topology, place, database=pool)
    calls: list[str] = []

    @broker.subscriber(queue_of(topology), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(note: str) -> None:
        calls.append(note)

    await put(topology, "bad", message_id="m-1", headers={"cloudEvents:specversion": "1.0", "cloudEvents:id": "x"})
    await put(topology, "good", message_id="m-2")
    async with running(broker):
        await until(_seen(place, [("billing.Bill", "m-2", 0)]))
    assert (calls, await left(topology)) == (["good"], 0)
    assert caplog.text.count("is rejected, because it cannot be read") == 1


async def test_a_swallowed_error_is_no_commit(topology: Topology, place: PostgresPlace, pool: Any) -> None:
    broker = broker_at(topology, place, database=pool)
    calls: list[str] = []

    @broker.subscriber(queue_of(topology), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
        calls.append(note)
        if len(calls) == 1:
            with pytest.raises(asyncpg.PostgresError):
                await tx.execute("select no_such_column")
        else:
            await tx.execute(f"insert into {place.orders} (note) values ($1)", note)

    await put(topology, "a", message_id="m-1")
    async with running(broker):
        await until(_seen(place, [("billing.Bill", "m-1", 0)]))
    assert (notes(place), len(calls)) == (["a"], 2)


async def test_the_handler_has_the_session_the_event_and_the_chain(topology: Topology, place: PostgresPlace) -> None:
    """A message of ours is known by its CloudEvents id, and what it causes says so."""
    engine = create_async_engine(place.url.replace("postgresql://", "postgresql+asyncpg://", 1))
    broker = broker_at(topology, place, database=async_sessionmaker(engine))
    outbox = Outbox(routes="broker", source="/billing", schema=place.names.schema, types=Types())
    message = sample(source="/shop", correlation_id="request-1")
    events: list[CloudEvent] = []

    @broker.subscriber(queue_of(topology), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(
        session: Annotated[AsyncSession, Context("transaction")], event: Annotated[CloudEvent, Context("event")]
    ) -> None:
        events.append(event)
        await session.execute(text(f"insert into {place.orders} (note) values ('billed')"))
        await outbox.publish(session, {}, type="billed")

    headers, body = to_binary(message, binding=AMQP)
    content_type = headers.pop("content-type")
    sent = aio_pika.Message(body, headers=dict(headers), content_type=content_type)
    await topology.channel.default_exchange.publish(sent, routing_key=topology.queue)
    async with running(broker):
        await until(_seen(place, [("billing.Bill", str(message.message_id), 0)]))
    await engine.dispose()
    assert [(event.source, event.type, event.payload) for event in events] == [("/shop", message.type, message.payload)]
    (row,) = place.query("select correlation_id, causation_id from pillarbox_outbox")
    assert (row["correlation_id"], row["causation_id"]) == ("request-1", str(message.message_id))


async def test_two_subscribers_both_handle_the_same_message(
    topology: Topology, place: PostgresPlace, pool: Any
) -> None:
    """Each is a consumer of its own: what one has done, the other has not."""
    broker = broker_at(topology, place, database=pool)
    other = await topology.small_queue(100)

    @broker.subscriber(queue_of(topology))
    async def bill(note: str) -> None: ...

    @broker.subscriber(RabbitQueue(other, durable=True, declare=False))
    async def ship(note: str) -> None: ...

    for queue in (topology.queue, other):
        sent = aio_pika.Message(b"a", content_type="text/plain", message_id="m-1")
        await topology.channel.default_exchange.publish(sent, routing_key=queue)
    async with running(broker):
        await until(_both(place))


def _both(place: PostgresPlace) -> Callable[[], Awaitable[bool]]:
    async def seen() -> bool:
        return sorted(await asyncio.to_thread(inbox, place)) == [("billing.Bill", "m-1", 0), ("billing.Ship", "m-1", 0)]

    return seen


async def test_an_answer_to_a_question_of_ours_goes_by_the_inbox(
    topology: Topology, place: PostgresPlace, pool: Any
) -> None:
    broker = broker_at(topology, place, database=pool)

    @broker.subscriber(queue_of(topology))
    async def double(number: int) -> int:
        return 2 * number

    async with running(broker):
        answer = await broker.request(21, topology.queue, timeout=PATIENCE)
        assert await answer.decode() == 42
    assert len(inbox(place)) == 1  # the question


# --- other brokers ---------------------------------------------------------------------------------------


@pytest.fixture
def nats_url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


async def test_a_plain_message_of_jetstream_is_known_by_its_place(
    nats_url: str, place: PostgresPlace, pool: Any
) -> None:
    """The broker delivers it again, and it is the same."""
    async with stream_at(nats_url) as stream:
        inbox_of = InboxMiddleware("billing", database=pool, schema=place.names.schema)
        broker = NatsBroker(nats_url, middlewares=[inbox_of], logger=None, graceful_timeout=PATIENCE)
        calls: list[str] = []

        @broker.subscriber(
            f"{stream.name}.orders", stream=JStream(stream.name, declare=False), durable="billing", pull_sub=True,
            ack_policy=AckPolicy.NACK_ON_ERROR,
        )  # fmt: skip
        async def bill(note: str, tx: Annotated[Any, Context("transaction")]) -> None:
            calls.append(note)
            await tx.execute(f"insert into {place.orders} (note) values ($1)", note)
            if len(calls) == 1:
                raise ValueError("not yet")

        await broker.start()
        try:
            await stream.js.publish(f"{stream.name}.orders", b"a")
            await until(_seen(place, [("billing.Bill", f"{stream.name}/1", 0)]))
        finally:
            await broker.stop()
    assert (notes(place), calls) == (["a"], ["a", "a"])


async def test_a_plain_record_of_kafka_is_known_by_its_place(
    place: PostgresPlace, pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And a subscriber that acknowledges first, as is the default there, is warned of."""
    with KafkaCluster() as cluster:
        cluster.create("orders")
        inbox_of = InboxMiddleware("billing", database=pool, schema=place.names.schema)
        broker = KafkaBroker(cluster.address, middlewares=[inbox_of], logger=None, graceful_timeout=PATIENCE)

        @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
        async def bill(note: str) -> None: ...

        await broker.start()
        try:
            producer = Producer({"bootstrap.servers": cluster.address, "log_level": 0})
            producer.produce("orders", "a")
            assert await asyncio.to_thread(producer.flush, 30) == 0
            await until(_seen(place, [("billing.Bill", "orders/0/0", 0)]))
        finally:
            await broker.stop()
    assert "billing.Bill acknowledges first" in caplog.text


# --- what it cannot do -----------------------------------------------------------------------------------


def test_batches_are_refused() -> None:
    with pytest.raises(DecodeError, match="one message at a time"):
        faststream._to_incoming(StreamMessage(raw_message=(b"1", b"2"), body=b""))


def test_transactions_that_block_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="needs transactions that are awaited"):
        InboxMiddleware("billing", database=tmp_path / "shop.db")


def test_a_wrong_name_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="not usable"):
        InboxMiddleware("", database=async_sessionmaker())
