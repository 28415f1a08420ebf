"""The price of history on PostgreSQL: what a message writes to the log, and what retention costs."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from benchmarks.comparison import Pair, at_most, log, report
from benchmarks.database import URL, Admin, create_tables, empty, insert, insert_closed, vacuum
from benchmarks.store import BATCH, store_loop
from pillarbox.message import Names
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
_PARTITION: Final = f"{_PURGE}.partition"
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
        for table in (_BARE, *(names.table(name) for name in ("outbox", "history", "claim"))):
            await admin.execute(f"alter table {table} set (autovacuum_enabled = off, toast.autovacuum_enabled = off)")
        pairs = [Pair(await _measure(admin, names), await _measure_bare(admin, names)) for _ in range(_RUNS)]
        for pair in pairs:
            log(f"store.wal: {pair.ours:,.0f} bytes against {pair.bare:,.0f}")
        settings = {"messages": _MESSAGES, "batch": BATCH, "history": "full", "lookups": False, "runs": _RUNS}
        report("store.wal", pairs, target=at_most(2.2), settings=settings, fields=("bytes", "floor"))


async def purge() -> None:
    """`store.purge`: seconds of deleting an expired million, against dropping a table of the same rows."""
    async with create_tables(_PURGE) as (admin, names):
        await insert_closed(admin, names, messages=_EXPIRED)
        await admin.execute(names.qualify(f"create table {_PARTITION} (like pillarbox_history including indexes)"))
        await admin.execute(names.qualify(f"insert into {_PARTITION} select * from pillarbox_history"))
        await vacuum(admin, names)
        before = await _read_position(admin)
        ours = await _purge_all(names)
        deleted = await _read_position(admin)
        bare = await _drop(admin)
        dropped = await _read_position(admin)
        settings = {"messages": _EXPIRED, "wal_mb": _to_megabytes(deleted - before),
                    "floor_wal_mb": _to_megabytes(dropped - deleted)}  # fmt: skip
        report("store.purge", [Pair(ours, bare)], target=None, settings=settings, fields=("seconds", "floor"))


async def _purge_all(names: Names) -> float:
    """Have the janitor delete all that is delivered; return the seconds it took."""
    store = PostgresStore(URL, schema=names.schema)
    await store.open()
    try:
        janitor = Janitor(store, retention=Retention(delivered=timedelta(0)), telemetry=Telemetry())
        started = time.perf_counter()
        assert await janitor.run_once() == _EXPIRED
        return time.perf_counter() - started
    finally:
        await store.close()


async def _drop(admin: Admin) -> float:
    started = time.perf_counter()
    await admin.execute(f"drop table {_PARTITION}")
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
