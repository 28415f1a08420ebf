"""The price of history on PostgreSQL: what a message writes to the log, and what retention costs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from benchmarks.comparison import Pair, at_most, log, report
from benchmarks.database import URL, Admin, create_tables, empty, insert, insert_closed, vacuum
from benchmarks.store import BATCH, store_loop
from pillarbox.message import Names, State
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.settings import Retention
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry

__all__ = ["purge", "wal"]

_MESSAGES: Final = 50_000
_EXPIRED: Final = 1_000_000
_RUNS: Final = 5
_PURGE: Final = "pillarbox_bench_purge"
_HOUR: Final = timedelta(hours=1)
_COPY: Final = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
                                   content_type, source, correlation_id, event_time, created_at, attempts, status_at,
                                   status)
    select id + $1::bigint, message_id, destination, partition, kind, type, topic, key, payload, content_type, source,
           correlation_id, event_time, created_at - interval '1 day', attempts, status_at - interval '1 day', status
      from pillarbox_history where id < 0"""
_WAL: Final = "pillarbox_bench_wal"
_BARE: Final = f"{_WAL}.bare"
_MAKE_BARE: Final = f"""
    create table {_BARE} (like {_WAL}.pillarbox_outbox including defaults including identity, primary key (id))"""


async def wal() -> None:
    """`store.wal`: bytes of WAL per message that is inserted, claimed and settled, against an insert and a delete.

    Without the indexes for lookups, which are optional.
    """
    async with create_tables(_WAL) as (admin, names):
        await open_schema(parse_store_url(URL), names=names).change_lookups(wanted=False)
        await admin.execute(_MAKE_BARE)
        # Whether the server cleans up within the measured time is a matter of luck.
        history = await admin.fetch("select inhrelid::regclass::text from pg_inherits where inhparent = $1::regclass",
                                    names.table("history"))  # fmt: skip
        for table in (_BARE, names.table("outbox"), names.table("claim"), *(row[0] for row in history)):
            await admin.execute(f"alter table {table} set (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        pairs = [Pair(await _measure(admin, names), await _measure_bare(admin, names)) for _ in range(_RUNS)]
        for pair in pairs:
            log(f"store.wal: {pair.ours:,.0f} bytes against {pair.bare:,.0f}")
        settings = {"messages": _MESSAGES, "batch": BATCH, "history": "full", "lookups": False, "runs": _RUNS}
        report("store.wal", pairs, target=at_most(2.2), settings=settings, fields=("bytes", "floor"))


async def purge() -> None:
    """`store.purge`: seconds in which the janitor drops an expired million, against deleting the same rows."""
    async with create_tables(_PURGE) as (admin, names):
        await insert_closed(admin, names, messages=_EXPIRED)
        # The same rows in a partition that is full, and in one that is not: only that is deleted row by row.
        for partition in (2, 4):
            await admin.execute(names.qualify(_COPY), partition * 1_000_000 + _EXPIRED)
        await admin.execute(names.qualify("delete from pillarbox_history where id < 0"))
        await vacuum(admin, names)
        async with _open_store(names) as store:
            begin = await _read_position(admin)
            ours = await _drop(store)
            dropped = await _read_position(admin)
            bare = await _delete(store)
            deleted = await _read_position(admin)
        settings = {"messages": _EXPIRED, "wal_mb": _to_megabytes(dropped - begin),
                    "rows_wal_mb": _to_megabytes(deleted - dropped)}  # fmt: skip
        report("store.purge", [Pair(ours, bare)], target=None, settings=settings, fields=("seconds", "rows"))


@asynccontextmanager
async def _open_store(names: Names) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(URL, schema=names.schema)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _drop(store: PostgresStore) -> float:
    """Have the janitor drop the partition that has expired; return the seconds it took."""
    janitor = Janitor(store, retention=Retention(delivered=_HOUR), telemetry=Telemetry())
    started = time.perf_counter()
    assert await janitor.drop_partitions() == _EXPIRED
    return time.perf_counter() - started


async def _delete(store: PostgresStore) -> float:
    """Delete as many messages row by row, in the janitor's batches; return the seconds it took."""
    started, deleted = time.perf_counter(), 0
    while count := await store.purge(State.DELIVERED, older_than=_HOUR, limit=Retention().batch):
        deleted += count
    assert deleted == _EXPIRED
    return time.perf_counter() - started


def _to_megabytes(size: int) -> float:
    return round(size / 1_000_000, 1)


async def _measure(admin: Admin, names: Names) -> float:
    """Insert, claim and settle; return the bytes of WAL per message."""
    await empty(admin, names)
    await admin.execute("checkpoint")
    before = await _read_position(admin)
    await insert(admin, names, messages=_MESSAGES)
    await store_loop(PostgresStore(URL, schema=names.schema), expected=_MESSAGES)
    return (await _read_position(admin) - before) / _MESSAGES


async def _measure_bare(admin: Admin, names: Names) -> float:
    """Insert the same rows into a table with a primary key alone, and delete them in batches."""
    await admin.execute(f"truncate {_BARE}")
    await admin.execute("checkpoint")
    before = await _read_position(admin)
    await insert(admin, names, messages=_MESSAGES, table=_BARE)
    ids = [row[0] for row in await admin.fetch(f"select id from {_BARE} order by id")]
    for start in range(0, len(ids), BATCH):
        await admin.execute(f"delete from {_BARE} where id = any($1::bigint[])", ids[start : start + BATCH])
    return (await _read_position(admin) - before) / _MESSAGES


async def _read_position(admin: Admin) -> int:
    """Return how many bytes of WAL the server has written: all of its sessions, so nothing else may run on it."""
    position: int = await admin.fetchval("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
    return position
