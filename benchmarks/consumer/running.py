"""One line of figures per broker: handled per second, with one insert in the handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import asyncpg
import msgspec

from benchmarks.brokers.broker import Row
from benchmarks.consumer.source import Source
from benchmarks.database import KEYS, PAYLOAD, URL, Admin, tables
from benchmarks.measuring import at_least, compare
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.events import Types
from pillarbox.message import Names

__all__ = ["measured", "orders"]

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


def orders(messages: int) -> Sequence[Row]:
    """Events as an outbox has them."""
    now = datetime.now(UTC)
    return [
        Row(number, uuid4(), "event", "orders.placed", "orders", f"key-{number % KEYS}", PAYLOAD, "application/json",
            "/shop", "c", now)
        for number in range(messages)
    ]  # fmt: skip


async def measured(source: Source) -> None:
    """Our consumer against the bare client, in turn."""
    await source.open()
    try:
        async with tables(f"pillarbox_bench_consumer_{source.name}") as (admin, names):
            await admin.execute(f'set search_path = "{names.schema}"')
            await admin.execute(_TABLE)
            await _measured(source, admin, names)
    finally:
        await source.close()


async def _measured(source: Source, admin: Admin, names: Names) -> None:
    async with asyncpg.create_pool(
        URL, min_size=_CONCURRENCY, max_size=_CONCURRENCY, server_settings={"search_path": names.schema or "public"}
    ) as pool:

        async def ours() -> float:
            await _prepare(source, admin)
            started = time.perf_counter()
            await _consumed(source, pool, names)
            return await _rate(admin, time.perf_counter() - started)

        async def bare() -> float:
            await _prepare(source, admin)
            started = time.perf_counter()
            await source.bare(lambda body: _handled(pool, body), messages=_MESSAGES, concurrency=_CONCURRENCY)
            return await _rate(admin, time.perf_counter() - started)

        settings = {
            "messages": _MESSAGES, "keys": KEYS, "concurrency": _CONCURRENCY, "payload_bytes": len(PAYLOAD),
        }  # fmt: skip
        name = f"consumer.{source.name}"
        await compare(name, ours=ours, bare=bare, wanted=at_least(0.6), settings=settings, runs=_RUNS)


async def _prepare(source: Source, admin: Admin) -> None:
    await admin.execute("truncate invoice, pillarbox_inbox")
    await admin.execute("checkpoint")
    await source.fill(_MESSAGES)


async def _rate(admin: Admin, seconds: float) -> float:
    """Both sides have done the same."""
    assert await admin.fetchval("select count(*) from invoice") == _MESSAGES
    return _MESSAGES / seconds


async def _handled(pool: asyncpg.Pool[Any], body: bytes) -> None:
    """As a careful person writes it: one transaction for each message."""
    order = msgspec.json.decode(body, type=OrderPlaced)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(_INSERT, order.order_id, order.customer, order.total)


async def _consumed(source: Source, pool: asyncpg.Pool[Any], names: Names) -> None:
    """With default settings, from the start to the graceful end."""
    counting = _Counting()
    consumer = Consumer(
        "bench", receiver=source.receiver(), database=pool, schema=names.schema, types=_TYPES, telemetry=counting
    )

    @consumer.on(OrderPlaced)
    async def invoice(order: OrderPlaced, tx: asyncpg.Connection[Any]) -> None:
        await tx.execute(_INSERT, order.order_id, order.customer, order.total)

    async with consumer:
        await counting.all.wait()


class _Counting(ConsumerTelemetry):
    def __init__(self) -> None:
        self._left = _MESSAGES
        self.all = asyncio.Event()

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        self._left -= 1
        if not self._left:
            self.all.set()
