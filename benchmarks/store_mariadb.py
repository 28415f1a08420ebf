"""The MariaDB store alone: claim and settle, against a bare loop of the same statements."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any, Final

from benchmarks.comparison import at_least, compare
from benchmarks.database import KEYS, PAYLOAD
from benchmarks.store import BATCH, rotate, store_loop
from pillarbox.message import PARTITIONS, Names
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.urls import parse_store_url

__all__ = ["drain", "empty_and_fill", "make_mariadb_store", "make_tables", "run_bare_loop", "run_statements"]

URL: Final = os.environ.get("PILLARBOX_TEST_MARIADB", "mysql://root@127.0.0.1:3306/test")
_MESSAGES: Final = 50_000
_LANES: Final = 8
_TIMEOUT: Final = 60.0
_FILL: Final = """
    insert into pillarbox_outbox (message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type,
                                  source, correlation_id, event_time)
    select uuid(), 'default', conv(substr(md5(k), 1, 2), 16, 10) & 63, 'event', 'orders.placed', 'orders', k, %s,
           'application/json', '/shop', 'c', timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
      from (with recursive s (i) as (select 1 union all select i + 1 from s where i < %s)
            select concat('key-', i %% %s) as k from s order by i) as keyed"""
_READ: Final = """
    (select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source,
            subject, correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error,
            status_at
       from pillarbox_outbox
      where waits is null and destination = 'default' and `partition` = %s and available_at is null and id > %s
      order by id limit %s)"""
_KEEP: Final = """
    insert into pillarbox_history (
        id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source,
        subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at,
        status)
    select id, message_id, destination, `partition`, kind, type, topic, `key`, payload, content_type, headers, source,
           subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error,
           timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), 'delivered'
      from pillarbox_outbox where id in %s"""
_CLOSE: Final = "delete from pillarbox_outbox where id in %s"


async def drain() -> None:
    """`store.drain_mariadb`: 50,000 messages, batches of 1,000, 64 partitions, full history."""
    async with make_tables(Names("pillarbox_bench_store")) as names:

        async def ours() -> float:
            await empty_and_fill(names, messages=_MESSAGES)
            return await store_loop(make_mariadb_store(names), expected=_MESSAGES)

        async def bare() -> float:
            await empty_and_fill(names, messages=_MESSAGES)
            return await run_bare_loop(names, expected=_MESSAGES)

        settings = {"messages": _MESSAGES, "batch": BATCH, "partitions": PARTITIONS, "history": "full"}
        await compare("store.drain_mariadb", ours=ours, bare=bare, target=at_least(0.6), settings=settings)


@asynccontextmanager
async def make_tables(names: Names) -> AsyncIterator[Names]:
    """Create the tables in a database of their own, and drop it afterwards."""
    drop = f"drop database if exists `{names.schema}`"
    await asyncio.to_thread(_run, drop)
    try:
        await MariadbSchema(parse_store_url(URL), names=names).install()
        yield names
    finally:
        await asyncio.to_thread(_run, drop)


def make_mariadb_store(names: Names) -> MariadbStore:
    return MariadbStore(URL, schema=names.schema)


async def empty_and_fill(names: Names, *, messages: int, keys: int = KEYS) -> None:
    """Empty the tables, and insert so many messages."""
    tables = [f"truncate {names.table(table, quote='`')}" for table in ("outbox", "history", "claim")]
    await asyncio.to_thread(_run, *tables)
    await asyncio.to_thread(_run, names.qualify(_FILL, quote="`"), values=(PAYLOAD, messages, keys))


async def run_statements(names: Names, *statements: str) -> None:
    """Run statements that name the tables with the default prefix."""
    await asyncio.to_thread(_run, *(names.qualify(sql, quote="`") for sql in statements))


async def run_bare_loop(names: Names, *, expected: int) -> float:
    """Return the rate of a bare loop of the same statements: the ceiling."""
    return await asyncio.to_thread(_bare_loop, names, expected)


def _run(*statements: str, values: tuple[object, ...] | None = None) -> None:
    with closing(connect(parse_store_url(URL).dsn, timeout=_TIMEOUT)) as connection, connection.cursor() as cursor:
        cursor.execute(f"set session {_DEEP[connection.get_server_info().find('MariaDB') >= 0]} = 10000000")
        for statement in statements:
            cursor.execute(statement, values)


_DEEP: Final = ("cte_max_recursion_depth", "max_recursive_iterations")


def _bare_loop(names: Names, expected: int) -> float:
    """Read rows, copy them into history and delete them, on one connection: the ceiling."""
    read, keep, close = (names.qualify(sql, quote="`") for sql in (_READ, _KEEP, _CLOSE))
    low, order, settled, empty = dict.fromkeys(range(PARTITIONS), 0), list(range(PARTITIONS)), 0, 0
    with closing(connect(parse_store_url(URL).dsn, timeout=_TIMEOUT)) as connection, connection.cursor() as cursor:
        started = time.perf_counter()
        while empty < PARTITIONS // _LANES:
            values: list[Any] = [value for lane in order[:_LANES] for value in (lane, low[lane], BATCH // _LANES)]
            cursor.execute(" union all ".join([read] * _LANES), values)
            rows = cursor.fetchall()
            order = rotate(order)
            empty = 0 if rows else empty + 1
            if not rows:
                continue
            for row in rows:
                low[row[3]] = row[0]
            connection.begin()
            cursor.execute(keep, ([row[0] for row in rows],))
            cursor.execute(close, ([row[0] for row in rows],))
            connection.commit()
            settled += len(rows)
        elapsed = time.perf_counter() - started
    assert settled == expected
    return settled / elapsed
