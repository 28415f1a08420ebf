"""Measures the consumer of a broker: messages handled per second, with one insert in the handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from uuid import uuid4

import asyncpg
import msgspec

from benchmarks.brokers.broker import Row
from benchmarks.comparison import at_least, compare
from benchmarks.database import KEYS, PAYLOAD, URL, Admin, create_tables
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.contracts.receiver import Receiver
from pillarbox.events import Types
from pillarbox.message import Names

__all__ = ["Handle", "Source", "Workers", "build_orders", "measure"]

Handle = Callable[[bytes], Awaitable[None]]
"""Handles the body of a message, and commits."""


class Source(Protocol):
    """A broker to consume from. It makes its own queue or stream, and removes it when it is closed."""

    name: str
    """The end of its name in `make bench ONLY=consumer.…`."""

    async def open(self) -> None:
        """Connect, and create the queue or stream."""

    async def close(self) -> None:
        """Delete it, and disconnect."""

    async def fill(self, messages: int) -> None:
        """Leave exactly so many messages waiting, as CloudEvents producers send them, with keys in turn."""

    def receiver(self) -> Receiver:
        """Return our receiver, with default settings."""

    async def bare(self, handle: Handle, *, messages: int, concurrency: int) -> None:
        """Connect, have the broker's own client handle so many messages, so many at once, acknowledging each after it
        was handled; disconnect. With the prefetch that our receiver has."""


T = TypeVar("T")


class Workers(Generic[T]):
    """Handles messages in tasks, `concurrency` at a time, as an application without our consumer would."""

    def __init__(self, handle: Callable[[T], Awaitable[None]], *, messages: int, concurrency: int) -> None:
        self._handle = handle
        self._left = messages
        self._concurrency = concurrency
        self._waiting: asyncio.Queue[T] = asyncio.Queue()
        self._done = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def put(self, message: T) -> None:
        self._waiting.put_nowait(message)

    async def wait_for_room(self, limit: int) -> None:
        """Wait until fewer than `limit` messages wait."""
        while self._waiting.qsize() >= limit:
            self._room.clear()
            await self._room.wait()

    async def wait_until_done(self) -> None:
        """Wait until all are handled; raise what went wrong with one."""
        waiting = asyncio.ensure_future(self._done.wait())
        await asyncio.wait([*self._tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            self._room.set()
            await self._handle(message)
            self._left -= 1
            if not self._left:
                self._done.set()


_MESSAGES: Final = 2_000
_RUNS: Final = 11
_CONCURRENCY: Final = ConsumerSettings().concurrency
_TABLE: Final = """
    create table invoice (
        id bigint generated always as identity primary key, order_id text, customer text, total text)"""
_INSERT: Final = "insert into invoice (order_id, customer, total) values ($1, $2, $3)"
_TYPES: Final = Types()


@_TYPES.event("orders.placed", topic="orders")
class OrderPlaced(msgspec.Struct):
    """The part of an order that an invoice needs."""

    order_id: str
    customer: str
    total: str


def build_orders(messages: int) -> Sequence[Row]:
    """Build events as an outbox has them."""
    now = datetime.now(UTC)
    return [
        Row(number, uuid4(), "event", "orders.placed", "orders", f"key-{number % KEYS}", PAYLOAD, "application/json",
            "/shop", "c", now)
        for number in range(messages)
    ]  # fmt: skip


async def measure(source: Source) -> None:
    """Measure our consumer against the bare client, in turn."""
    await source.open()
    try:
        async with create_tables(f"pillarbox_bench_consumer_{source.name}") as (admin, names):
            await admin.execute(f'set search_path = "{names.schema}"')
            await admin.execute(_TABLE)
            await _measure(source, admin, names)
    finally:
        await source.close()


async def _measure(source: Source, admin: Admin, names: Names) -> None:
    async with asyncpg.create_pool(
        URL, min_size=_CONCURRENCY, max_size=_CONCURRENCY, server_settings={"search_path": names.schema or "public"}
    ) as pool:

        async def ours() -> float:
            await _prepare(source, admin)
            started = time.perf_counter()
            await _consume(source, pool, names)
            return await _rate(admin, time.perf_counter() - started)

        async def bare() -> float:
            await _prepare(source, admin)
            started = time.perf_counter()
            await source.bare(lambda body: _handle(pool, body), messages=_MESSAGES, concurrency=_CONCURRENCY)
            return await _rate(admin, time.perf_counter() - started)

        settings = {
            "messages": _MESSAGES, "keys": KEYS, "concurrency": _CONCURRENCY, "payload_bytes": len(PAYLOAD),
        }  # fmt: skip
        name = f"consumer.{source.name}"
        await compare(name, ours=ours, bare=bare, target=at_least(0.6), settings=settings, runs=_RUNS)


async def _prepare(source: Source, admin: Admin) -> None:
    await admin.execute("truncate invoice, pillarbox_inbox")
    await admin.execute("checkpoint")
    await source.fill(_MESSAGES)


async def _rate(admin: Admin, seconds: float) -> float:
    """Check that everything was handled, and return the rate."""
    assert await admin.fetchval("select count(*) from invoice") == _MESSAGES
    return _MESSAGES / seconds


async def _handle(pool: asyncpg.Pool[Any], body: bytes) -> None:
    """Handle a message by hand: one transaction for each."""
    order = msgspec.json.decode(body, type=OrderPlaced)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(_INSERT, order.order_id, order.customer, order.total)


async def _consume(source: Source, pool: asyncpg.Pool[Any], names: Names) -> None:
    """Consume with default settings, from the start to the graceful end."""
    counting = _CountingTelemetry()
    consumer = Consumer(
        "bench", receiver=source.receiver(), database=pool, schema=names.schema, types=_TYPES, telemetry=counting
    )

    @consumer.on(OrderPlaced)
    async def invoice(order: OrderPlaced, tx: asyncpg.Connection[Any]) -> None:
        await tx.execute(_INSERT, order.order_id, order.customer, order.total)

    async with consumer:
        await counting.all.wait()


class _CountingTelemetry(ConsumerTelemetry):
    def __init__(self) -> None:
        self._left = _MESSAGES
        self.all = asyncio.Event()

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        self._left -= 1
        if not self._left:
            self.all.set()
