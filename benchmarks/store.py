"""The store alone: claim and settle, against a bare loop of the read and the settle statement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import asyncpg

from benchmarks.comparison import at_least, compare
from benchmarks.database import URL, create_tables, fill
from pillarbox.contracts.store import Claim, Cursor, Fence, RelayInfo, Settlement, Store
from pillarbox.message import PARTITIONS, Names
from pillarbox.stores.postgres.store import PostgresStore

__all__ = ["BATCH", "bare_loop", "drain", "rotate", "store_loop"]

_MESSAGES: Final = 200_000
BATCH: Final = 1_000
_LEASE: Final = timedelta(hours=1)

_READ: Final = """
    select o.* from unnest($1::smallint[], $2::bigint[]) as l (partition, low)
     cross join lateral (
            select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers,
                   source, subject, correlation_id, causation_id, event_time, created_at, available_at, waits, attempts,
                   last_error, status_at
              from pillarbox_outbox o
             where o.destination = 'default'
               and (o.partition::bigint << 57) + o.id > (l.partition::bigint << 57) + l.low
               and (o.partition::bigint << 57) + o.id <= (l.partition::bigint << 57) + 144115188075855871
               and o.waits is null
             order by o.destination, (o.partition::bigint << 57) + o.id
             limit $3) o
     limit $4"""
_SETTLE: Final = """
    with closed as (delete from pillarbox_outbox where id = any($1::bigint[]) returning *)
    insert into pillarbox_history (
        id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source, subject,
        correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error, status_at, status)
    select id, message_id, destination, partition, kind, type, topic, key, payload, content_type, headers, source,
           subject, correlation_id, causation_id, event_time, created_at, available_at, attempts, last_error,
           now(), 'delivered'
      from closed"""
_PINS: Final = """set enable_seqscan = off; set enable_bitmapscan = off; set enable_sort = off;
    set plan_cache_mode = force_generic_plan; set synchronous_commit = off"""


async def drain() -> None:
    """`store.drain`: 200,000 messages, batches of 1,000, 64 partitions, full history."""
    async with create_tables("pillarbox_bench_store") as (admin, names):

        async def ours() -> float:
            await fill(admin, names, messages=_MESSAGES)
            return await store_loop(PostgresStore(URL, schema=names.schema), expected=_MESSAGES)

        async def bare() -> float:
            await fill(admin, names, messages=_MESSAGES)
            return await bare_loop(names)

        settings = {"messages": _MESSAGES, "batch": BATCH, "partitions": PARTITIONS, "history": "full"}
        await compare("store.drain", ours=ours, bare=bare, target=at_least(0.75), settings=settings)


async def store_loop(store: Store, *, expected: int) -> float:
    """Read, claim and settle, one batch after the other, without sending."""
    await store.open()
    relay = RelayInfo(
        relay_id=uuid4(), service="bench", host="", pid=0, version="", destinations=["default"], reachable=["default"]
    )
    await store.register(relay, lease=_LEASE)
    lanes, _ = await store.take(relay.relay_id, "default", partitions=range(PARTITIONS), lease=_LEASE, claim_number=0)
    fence = Fence(relay.relay_id, "default", {lane.partition: lane.epoch for lane in lanes})
    started = time.perf_counter()
    settled = await _claim_and_settle(store, fence)
    elapsed = time.perf_counter() - started
    await store.leave(relay.relay_id)
    await store.close()
    assert settled == expected
    return settled / elapsed


async def _claim_and_settle(store: Store, fence: Fence) -> int:
    cursor: Cursor | None = None
    order, settled, number = list(range(PARTITIONS)), 0, 0
    while True:
        reading = await store.read("default", partitions=order, cursor=cursor, limit=BATCH)
        if not reading.messages:
            return settled
        number, cursor, order = number + 1, reading.cursor, rotate(order)
        ids = [message.id for message in reading.messages]
        own = fence.narrow({message.partition for message in reading.messages})
        await store.claim(own, Claim(number, ids))
        await store.settle(own, Settlement(delivered=ids, finished=[number]))
        settled += len(ids)


async def bare_loop(names: Names, *, expected: int = _MESSAGES) -> float:
    """Read rows and move them into the history, on one connection: the ceiling."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(URL)
    await connection.execute(_PINS)
    read, settle = names.qualify(_READ), names.qualify(_SETTLE)
    low, order, settled = dict.fromkeys(range(PARTITIONS), 0), list(range(PARTITIONS)), 0
    started = time.perf_counter()
    while rows := await connection.fetch(read, order, [low[p] for p in order], BATCH // 8, BATCH):
        for row in rows:
            low[row[3]] = row[0]
        order = rotate(order)
        await connection.execute(settle, [row[0] for row in rows])
        settled += len(rows)
    elapsed = time.perf_counter() - started
    await connection.close()
    assert settled == expected
    return settled / elapsed


def rotate(order: Sequence[int]) -> list[int]:
    """Put other lanes first."""
    return [*order[8:], *order[:8]]
