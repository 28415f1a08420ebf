"""Messages that waited, against the same messages fresh: after a redrive, and when a deferred backlog is due."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Final

from benchmarks.comparison import at_least, compare
from benchmarks.database import KEYS, create_tables, empty, insert, key_sql, vacuum
from benchmarks.relay.drain import make_file
from benchmarks.relay.runner import SETTINGS, drain_store, make_store
from benchmarks.store_mariadb import empty_and_fill, make_mariadb_store, make_tables, run_statements
from pillarbox.message import Names
from pillarbox.stores.sqlite import SqliteStore

__all__ = ["due", "due_mariadb", "due_sqlite", "redrive", "redrive_mariadb", "redrive_sqlite"]

_REDRIVEN: Final = 20_000
_DUE: Final = 50_000
_RUNS: Final = 7
_RETRY: Final = "update pillarbox_outbox set waits = 'retry', available_at = {}"
"""What a redrive leaves of a message."""
_DEFER: Final = "update pillarbox_outbox set waits = 'deferred', available_at = {}"
_NOW: Final = "now()"
_NOW_SQLITE: Final = "unixepoch() * 1000000"
_NOW_MARIADB: Final = "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))"


async def redrive() -> None:
    """`relay.redrive`: 20,000 messages of distinct keys that were redriven, against the same 20,000 fresh."""
    await _compare("relay.redrive", change=_RETRY, messages=_REDRIVEN, keys=_REDRIVEN, target=0.5)


async def due() -> None:
    """`relay.due`: 50,000 deferred messages that are due, against the same 50,000 fresh."""
    await _compare("relay.due", change=_DEFER, messages=_DUE, keys=KEYS, target=0.6)


async def redrive_sqlite() -> None:
    """`relay.redrive_sqlite`: `relay.redrive` out of an SQLite file."""
    await _compare_sqlite("relay.redrive_sqlite", change=_RETRY, messages=_REDRIVEN, keys=_REDRIVEN)


async def due_sqlite() -> None:
    """`relay.due_sqlite`: `relay.due` out of an SQLite file."""
    await _compare_sqlite("relay.due_sqlite", change=_DEFER, messages=_DUE, keys=KEYS)


async def redrive_mariadb() -> None:
    """`relay.redrive_mariadb`: `relay.redrive` on MariaDB."""
    await _compare_mariadb("relay.redrive_mariadb", change=_RETRY, messages=_REDRIVEN, keys=_REDRIVEN)


async def due_mariadb() -> None:
    """`relay.due_mariadb`: `relay.due` on MariaDB."""
    await _compare_mariadb("relay.due_mariadb", change=_DEFER, messages=_DUE, keys=KEYS)


async def _compare(name: str, *, change: str, messages: int, keys: int, target: float) -> None:
    async with create_tables("pillarbox_bench_waiting") as (admin, names):

        async def run(*, is_waiting: bool) -> float:
            await empty(admin, names)
            await insert(admin, names, messages=messages, key=key_sql(keys))
            if is_waiting:
                await admin.execute(names.qualify(change.format(_NOW)))
            await vacuum(admin, names)
            return await drain_store(make_store(names), messages=messages)

        await compare(
            name,
            ours=lambda: run(is_waiting=True),
            bare=lambda: run(is_waiting=False),
            target=at_least(target),
            settings={"messages": messages, "keys": keys, "store": "postgresql"} | SETTINGS,
            runs=_RUNS,
        )


async def _compare_sqlite(name: str, *, change: str, messages: int, keys: int) -> None:
    async with make_file(messages=messages, keys=keys) as fresh:

        async def run(*, is_waiting: bool) -> float:
            with fresh() as path:
                if is_waiting:
                    with closing(sqlite3.connect(path)) as connection, connection:
                        connection.execute(change.format(_NOW_SQLITE))
                return await drain_store(SqliteStore(path), messages=messages)

        await compare(
            name,
            ours=lambda: run(is_waiting=True),
            bare=lambda: run(is_waiting=False),
            target=at_least(0.4),
            settings={"messages": messages, "keys": keys, "store": "sqlite"} | SETTINGS,
            runs=_RUNS,
        )


async def _compare_mariadb(name: str, *, change: str, messages: int, keys: int) -> None:
    async with make_tables(Names("pillarbox_bench_waiting")) as names:

        async def run(*, is_waiting: bool) -> float:
            await empty_and_fill(names, messages=messages, keys=keys)
            if is_waiting:
                await run_statements(names, change.format(_NOW_MARIADB))
            await run_statements(names, "analyze table pillarbox_outbox")
            return await drain_store(make_mariadb_store(names), messages=messages)

        await compare(
            name,
            ours=lambda: run(is_waiting=True),
            bare=lambda: run(is_waiting=False),
            target=at_least(0.4),
            settings={"messages": messages, "keys": keys, "store": "mysql"} | SETTINGS,
            runs=_RUNS,
        )
