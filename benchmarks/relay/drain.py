"""Draining a backlog, from start to graceful end, against a bare loop of read and settle."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.comparison import at_least, compare
from benchmarks.database import KEYS, PAYLOAD, create_tables, fill
from benchmarks.relay.runner import SETTINGS, drain_store, make_store
from benchmarks.store import bare_loop
from benchmarks.store_mariadb import empty_and_fill, make_mariadb_store, make_tables, run_bare_loop
from pillarbox.message import Names, compute_partition, new_message_id
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url

__all__ = ["drain", "drain_mariadb", "drain_sqlite", "make_file"]

_MESSAGES: Final = 100_000
_RUNS: Final = 9


async def drain() -> None:
    """`relay.drain`: 100,000 messages of 1,000 keys, from the first claim to the last settle, default settings."""
    async with create_tables("pillarbox_bench_drain") as (admin, names):

        async def ours() -> float:
            await fill(admin, names, messages=_MESSAGES)
            return await drain_store(make_store(names), messages=_MESSAGES)

        async def bare() -> float:
            await fill(admin, names, messages=_MESSAGES)
            return await bare_loop(names, expected=_MESSAGES)

        settings = {"messages": _MESSAGES, "keys": KEYS, "store": "postgresql"} | SETTINGS
        await compare("relay.drain", ours=ours, bare=bare, target=at_least(0.85), settings=settings, runs=_RUNS)


async def drain_sqlite() -> None:
    """`relay.drain_sqlite`: the same out of an SQLite file. The bare loop takes 1,000 messages at a time."""
    async with make_file(messages=_MESSAGES) as fresh:

        async def ours() -> float:
            with fresh() as path:
                return await drain_store(SqliteStore(path), messages=_MESSAGES)

        async def bare() -> float:
            with fresh() as path:
                return _run_bare_sqlite_loop(path, expected=_MESSAGES)

        settings = {"messages": _MESSAGES, "keys": KEYS, "store": "sqlite"} | SETTINGS
        await compare("relay.drain_sqlite", ours=ours, bare=bare, target=at_least(0.6), settings=settings, runs=_RUNS)


async def drain_mariadb() -> None:
    """`relay.drain_mariadb`: the same out of MariaDB. The bare loop takes 1,000 messages of eight lanes at a time."""
    async with make_tables(Names("pillarbox_bench_drain")) as names:

        async def ours() -> float:
            await empty_and_fill(names, messages=_MARIADB_MESSAGES)
            return await drain_store(make_mariadb_store(names), messages=_MARIADB_MESSAGES)

        async def bare() -> float:
            await empty_and_fill(names, messages=_MARIADB_MESSAGES)
            return await run_bare_loop(names, expected=_MARIADB_MESSAGES)

        settings = {"messages": _MARIADB_MESSAGES, "keys": KEYS, "store": "mysql"} | SETTINGS
        await compare("relay.drain_mariadb", ours=ours, bare=bare, target=at_least(0.6), settings=settings, runs=5)


_MARIADB_MESSAGES: Final = 50_000

_SQLITE_BATCH: Final = 1_000

_SQLITE_INSERT: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    values (?, 'default', ?, 'event', 'orders.placed', 'orders', ?, ?, 'application/json', '/shop', 'c', 0)"""
_SQLITE_READ: Final = "select * from pillarbox_outbox where id > ? and waits is null order by id limit ?"
_SQLITE_KEEP: Final = """
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
        correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
           subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, ?,
           'delivered'
      from pillarbox_outbox where id in (select value from json_each(?))"""
_SQLITE_CLOSE: Final = "delete from pillarbox_outbox where id in (select value from json_each(?))"


@asynccontextmanager
async def make_file(*, messages: int, keys: int = KEYS) -> AsyncIterator[Callable[[], AbstractContextManager[Path]]]:
    """Yield a function that makes a fresh copy of an SQLite file with so many messages."""
    with tempfile.TemporaryDirectory(prefix="pillarbox-bench-") as folder:
        original = Path(folder, "original.db")
        await _fill(original, messages, keys)

        @contextmanager
        def fresh() -> Iterator[Path]:
            path = Path(folder, "copy.db")
            shutil.copyfile(original, path)
            try:
                yield path
            finally:
                for left in Path(folder).glob("copy.db*"):
                    left.unlink()

        yield fresh


async def _fill(path: Path, messages: int, keys: int) -> None:
    await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(_SQLITE_INSERT, (_row(number, keys) for number in range(messages)))


def _row(number: int, keys: int) -> tuple[str, int, str, bytes]:
    message_id, key = new_message_id(), f"key-{number % keys}"
    return str(message_id), compute_partition(key, message_id), key, PAYLOAD


def _run_bare_sqlite_loop(path: Path, *, expected: int) -> float:
    """Read rows by id and move them into the history, in one thread: the ceiling."""
    settled = low = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        started = time.perf_counter()
        while rows := connection.execute(_SQLITE_READ, (low, _SQLITE_BATCH)).fetchall():
            low, ids = rows[-1][0], json.dumps([row[0] for row in rows])
            connection.execute("begin immediate")
            connection.execute(_SQLITE_KEEP, (0, ids))
            connection.execute(_SQLITE_CLOSE, (ids,))
            connection.execute("commit")
            settled += len(rows)
        elapsed = time.perf_counter() - started
    assert settled == expected
    return settled / elapsed
