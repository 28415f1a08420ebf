"""`sizing`: what a million messages cost in log, disk, processor time and memory, from insert to settlement.

Processor seconds depend on the machine, bytes do not. PostgreSQL runs on a private server, so that all it does is for
the messages. Each message is written by a transaction of its own, as most applications do it. One relay delivers them
to a transport that acknowledges at once.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import asyncpg

from benchmarks.comparison import log
from benchmarks.database import KEYS, MESSAGE_ID, PARTITION, PAYLOAD
from benchmarks.relay.drain import make_file
from benchmarks.relay.runner import drain_store
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from tests.support.private_postgres import PrivatePostgres

__all__ = ["postgres", "sqlite"]

_MESSAGES: Final = 100_000
_MILLION: Final = 1_000_000
_TICK: Final = os.sysconf("SC_CLK_TCK")
_WRITE: Final = f"""
    do $$
    begin
        for i in 1..{_MESSAGES} loop
            insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload,
                                          content_type, source, correlation_id, event_time)
            select {MESSAGE_ID}, 'default', {PARTITION}, 'event', 'orders.placed', 'orders', k,
                   convert_to($payload${PAYLOAD.decode()}$payload$, 'UTF8'), 'application/json', '/shop', 'c', now()
              from (select 'key-' || i % {KEYS} as k) s;
            commit;
        end loop;
    end $$"""
_SIZE: Final = """
    select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
     where relname like 'pillarbox\\_history%' and relkind in ('r', 'p')"""


async def postgres() -> None:
    """`sizing.postgres`: a private server of the version that is installed."""
    server = PrivatePostgres.started()
    with closing(server):
        await open_schema(parse_store_url(server.url), names=Names()).install()
        connection: asyncpg.Connection[Any] = await asyncpg.connect(server.url)
        try:
            version = await connection.fetchval("show server_version")
            await connection.execute("checkpoint")
            log(f"sizing.postgres: {_MESSAGES:,} messages on PostgreSQL {version}")
            start = await _measure(connection, server)
            await connection.execute(_WRITE)
            written = await _measure(connection, server)
            relay = time.process_time()
            rate = await drain_store(PostgresStore(server.url), messages=_MESSAGES)
            relay = time.process_time() - relay
            delivered = await _measure(connection, server)
            disk = await connection.fetchval(_SIZE)
        finally:
            await connection.close()
    _report(
        "sizing.postgres",
        version=version,
        write_wal_mb=_to_megabytes(written[0] - start[0]),
        deliver_wal_mb=_to_megabytes(delivered[0] - written[0]),
        history_disk_mb=_to_megabytes(disk),
        write_server_cpu_s=_to_million(written[1] - start[1]),
        deliver_server_cpu_s=_to_million(delivered[1] - written[1]),
        relay_cpu_s=_to_million(relay),
        relay_memory_mb=_read_memory(),
        rate=round(rate),
    )


async def sqlite() -> None:
    """`sizing.sqlite`: a file, written in one transaction; only its delivery is timed."""
    async with make_file(messages=_MESSAGES) as fresh:
        with fresh() as path:
            await _measure_file(path)


async def _measure_file(path: Path) -> None:
    open_bytes = _read_size(path)
    relay = time.process_time()
    rate = await drain_store(SqliteStore(path), messages=_MESSAGES)
    relay = time.process_time() - relay
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.execute("vacuum")
    _report(
        "sizing.sqlite",
        version=sqlite3.sqlite_version,
        outbox_disk_mb=_to_megabytes(open_bytes),
        history_disk_mb=_to_megabytes(_read_size(path)),
        relay_cpu_s=_to_million(relay),
        relay_memory_mb=_read_memory(),
        rate=round(rate),
    )


async def _measure(connection: asyncpg.Connection[Any], server: PrivatePostgres) -> tuple[int, float]:
    """Return the bytes of log so far, and the processor seconds of the server."""
    position: int = await connection.fetchval("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
    assert server.pid is not None
    return position, _count_processor_seconds(server.pid)


def _count_processor_seconds(pid: int) -> float:
    """Add up the time of a server's processes: of those that live, and of those that the first has waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            ticks += int(fields[11]) + int(fields[12])
        elif path.parent.name == str(pid):
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICK


def _read_size(path: Path) -> int:
    return path.stat().st_size


def _read_memory() -> int:
    """Return the most memory that this process has had, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _to_megabytes(count: int) -> int:
    """Return megabytes per million messages."""
    return round(count * _MILLION / _MESSAGES / 1_000_000)


def _to_million(seconds: float) -> float:
    return round(seconds * _MILLION / _MESSAGES, 1)


def _report(name: str, **figures: object) -> None:
    """Print one line of JSON. There is nothing to meet: the figures are for a sizing of one's own."""
    line = {"name": name, "messages": _MESSAGES, "payload_bytes": len(PAYLOAD), "per": "million messages", **figures}
    print(json.dumps(line), flush=True)
