"""Publishing: one message per business transaction, and many at once, against an INSERT written by hand."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import asyncpg
import psycopg
from sqlalchemy import Numeric, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from benchmarks.comparison import at_least, compare
from benchmarks.database import URL, create_tables
from benchmarks.orders import (
    CUSTOMER,
    INSERT_ORDER,
    INSERT_ROW,
    PAYLOAD_BYTES,
    SCHEMA,
    TOTAL,
    OutboxRow,
    Shop,
    build_event,
    build_row,
    order_ids,
)
from pillarbox import Outbox

__all__ = ["compare_loops", "in_bulk", "open_shop", "with_asyncpg", "with_psycopg", "with_sqlalchemy"]

_OUTBOX: Final = Outbox(routes="default", source="/shop", schema=SCHEMA)
_TRANSACTIONS: Final = 25
"""In a slice: few, so that the next slice, of the other side, runs under the same conditions."""
_SLICES: Final = 40
_BULK: Final = 10_000
_CALLS: Final = 5

Loop = Callable[[list[UUID]], Awaitable[None]]
"""Writes one order and one message per id."""


async def compare_loops(name: str, *, ours: Loop, bare: Loop, shop: Shop, driver: str, target: float = 0.9) -> None:
    """Compare two ways of writing, and print the line. Both must leave the same rows."""
    ids = order_ids(_TRANSACTIONS)

    async def slice_of(loop: Loop) -> float:
        await shop.empty()
        started = time.perf_counter()
        await loop(ids)
        elapsed = time.perf_counter() - started
        await shop.check(messages=_TRANSACTIONS, orders=_TRANSACTIONS)
        return _TRANSACTIONS / elapsed

    settings = {"transactions": _TRANSACTIONS * _SLICES, "payload_bytes": PAYLOAD_BYTES, "driver": driver}
    await compare(
        name, ours=lambda: slice_of(ours), bare=lambda: slice_of(bare), target=at_least(target),
        settings=settings, slices=_SLICES,
    )  # fmt: skip


@asynccontextmanager
async def open_shop() -> AsyncIterator[Shop]:
    """Create the tables, and yield an empty shop."""
    async with create_tables(SCHEMA) as (admin, _):
        shop = Shop(admin)
        await shop.open()
        yield shop


# --- asyncpg -------------------------------------------------------------------------------------


async def with_asyncpg() -> None:
    """`write.asyncpg`: `async with connection.transaction()`, an order, a message."""
    async with open_shop() as shop:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(URL)

        async def ours(ids: list[UUID]) -> None:
            for order_id in ids:
                async with connection.transaction():
                    await connection.execute(INSERT_ORDER, order_id, CUSTOMER, Decimal(TOTAL))
                    await _OUTBOX.publish(connection, build_event(order_id))

        async def bare(ids: list[UUID]) -> None:
            for order_id in ids:
                async with connection.transaction():
                    await connection.execute(INSERT_ORDER, order_id, CUSTOMER, Decimal(TOTAL))
                    await connection.execute(INSERT_ROW, *build_row(build_event(order_id)))

        await compare_loops("write.asyncpg", ours=ours, bare=bare, shop=shop, driver="asyncpg")
        await connection.close()


# --- psycopg -------------------------------------------------------------------------------------


async def with_psycopg() -> None:
    """`write.psycopg`: the same, synchronously: `with connection.transaction()`."""
    insert_order, insert_by_hand = (re.sub(r"\$\d", "%s", sql) for sql in (INSERT_ORDER, INSERT_ROW))
    async with open_shop() as shop:
        with psycopg.connect(URL) as connection:

            async def ours(ids: list[UUID]) -> None:
                for order_id in ids:
                    with connection.transaction():
                        connection.execute(insert_order, (order_id, CUSTOMER, TOTAL))
                        _OUTBOX.publish(connection, build_event(order_id))

            async def bare(ids: list[UUID]) -> None:
                for order_id in ids:
                    with connection.transaction():
                        connection.execute(insert_order, (order_id, CUSTOMER, TOTAL))
                        connection.execute(insert_by_hand, build_row(build_event(order_id)))

            await compare_loops("write.psycopg", ours=ours, bare=bare, shop=shop, driver="psycopg")


# --- SQLAlchemy ----------------------------------------------------------------------------------


class _Mapped(DeclarativeBase):
    """The base of mapped classes."""


class _Order(_Mapped):
    """The business row."""

    __tablename__ = "orders"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012
    id: Mapped[UUID] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[Decimal] = mapped_column(Numeric)


async def with_sqlalchemy() -> None:
    """`write.sqlalchemy`: a session per transaction, a mapped order, a message."""
    engine = create_async_engine(make_url(URL).set(drivername="postgresql+asyncpg"))
    sessions = async_sessionmaker(engine)
    insert_by_hand = text(re.sub(r"\$(\d)", lambda mark: f":{OutboxRow._fields[int(mark[1]) - 1]}", INSERT_ROW))

    async def ours(ids: list[UUID]) -> None:
        for order_id in ids:
            async with sessions.begin() as session:
                session.add(_Order(id=order_id, customer=CUSTOMER, total=Decimal(TOTAL)))
                await _OUTBOX.publish(session, build_event(order_id))

    async def bare(ids: list[UUID]) -> None:
        for order_id in ids:
            async with sessions.begin() as session:
                session.add(_Order(id=order_id, customer=CUSTOMER, total=Decimal(TOTAL)))
                await session.execute(insert_by_hand, build_row(build_event(order_id))._asdict())

    async with open_shop() as shop:
        await compare_loops("write.sqlalchemy", ours=ours, bare=bare, shop=shop, driver="sqlalchemy")
        await engine.dispose()


# --- many at once --------------------------------------------------------------------------------

_UNNEST: Final = f"""
    insert into {SCHEMA}.pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload,
                                           content_type, source, correlation_id, event_time)
    select m.message_id, 'default', m.partition, 'event', 'orders.placed', 'orders', m.key, m.payload,
           'application/json', '/shop', m.correlation_id, m.event_time
      from unnest($1::uuid[], $2::smallint[], $3::text[], $4::bytea[], $5::text[], $6::timestamptz[])
           as m (message_id, partition, key, payload, correlation_id, event_time)"""


async def in_bulk() -> None:
    """`write.bulk`: 10,000 events in one `publish`, against the same rows, already prepared, in one INSERT."""
    events = [build_event(order_id) for order_id in order_ids(_BULK)]
    async with open_shop() as shop:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(URL)

        async def timed(write: Callable[[], Awaitable[object]]) -> float:
            await shop.empty()
            started = time.perf_counter()
            async with connection.transaction():
                await write()
            elapsed = time.perf_counter() - started
            await shop.check(messages=_BULK, orders=0)
            return _BULK / elapsed

        async def ours() -> float:
            return await timed(lambda: _OUTBOX.publish(connection, events))

        async def bare() -> float:
            arrays = [list(column) for column in zip(*map(build_row, events), strict=True)]
            return await timed(lambda: connection.execute(_UNNEST, *arrays))

        settings = {"messages": _BULK, "payload_bytes": PAYLOAD_BYTES, "driver": "asyncpg"}
        await compare("write.bulk", ours=ours, bare=bare, target=at_least(0.5), settings=settings, slices=_CALLS)
        await connection.close()
