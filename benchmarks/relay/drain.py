"""Draining a backlog, from start to graceful end, against a bare loop of read and settle."""

from __future__ import annotations

from typing import Final

from benchmarks.database import KEYS, fill, tables
from benchmarks.measuring import at_least, compare
from benchmarks.relay import sqlite_file
from benchmarks.relay.running import SETTINGS, drained, store_at
from benchmarks.store import bare_loop
from pillarbox.stores.sqlite import SqliteStore

__all__ = ["drain", "drain_sqlite"]

_MESSAGES: Final = 100_000
_RUNS: Final = 9


async def drain() -> None:
    """`relay.drain`: 100,000 messages of 1,000 keys, from the first claim to the last settle, default settings."""
    async with tables("pillarbox_bench_drain") as (admin, names):

        async def ours() -> float:
            await fill(admin, names, messages=_MESSAGES)
            return await drained(store_at(names), messages=_MESSAGES)

        async def bare() -> float:
            await fill(admin, names, messages=_MESSAGES)
            return await bare_loop(names, expected=_MESSAGES)

        settings = {"messages": _MESSAGES, "keys": KEYS, "store": "postgresql"} | SETTINGS
        await compare("relay.drain", ours=ours, bare=bare, wanted=at_least(0.6), settings=settings, runs=_RUNS)


async def drain_sqlite() -> None:
    """`relay.drain_sqlite`: the same out of an SQLite file, in batches as large as the bare loop's."""
    async with sqlite_file.filled(messages=_MESSAGES) as fresh:

        async def ours() -> float:
            with fresh() as path:
                return await drained(SqliteStore(path), messages=_MESSAGES, batch=sqlite_file.BATCH)

        async def bare() -> float:
            with fresh() as path:
                return sqlite_file.bare_loop(path, expected=_MESSAGES)

        settings = {"messages": _MESSAGES, "keys": KEYS, "store": "sqlite"} | SETTINGS | {"batch": sqlite_file.BATCH}
        await compare("relay.drain_sqlite", ours=ours, bare=bare, wanted=at_least(0.5), settings=settings, runs=_RUNS)
