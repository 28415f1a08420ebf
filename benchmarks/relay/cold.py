"""A relay that starts over very many dead rows, which an old snapshot keeps from being removed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final
from uuid import uuid4

import asyncpg

from benchmarks.comparison import at_most, compare
from benchmarks.database import URL, Admin, create_tables, insert, key_sql
from benchmarks.relay.runner import make_relay, make_store
from benchmarks.relay.transports import DeliveryCounter, NoOpTransport
from pillarbox.contracts.store import RelayInfo
from pillarbox.message import PARTITIONS, Names
from pillarbox.relay.settings import RelaySettings

__all__ = ["cold"]

DEAD: Final = 1_500_000
_CHUNK: Final = 100_000
_TIMEOUT: Final = RelaySettings().lease.total_seconds() / 3
"""Seconds that the store may take to answer a relay."""


async def cold() -> None:
    """`relay.cold`: seconds to the first delivery of a relay that starts over dead rows, against a clean table."""
    async with (
        create_tables("pillarbox_bench_cold") as (admin, dead),
        create_tables("pillarbox_bench_clean") as (_, clean),
    ):
        old = await asyncpg.connect(URL)
        try:
            async with old.transaction(isolation="repeatable_read"):
                await old.fetch("select 1")
                await _leave_dead_rows(admin, dead)
                await _keep_marks(admin, dead)
                await compare(
                    "relay.cold",
                    ours=lambda: _measure(admin, dead),
                    bare=lambda: _measure(admin, clean),
                    target=at_most(10),
                    settings={"dead rows": DEAD, "timeout": round(_TIMEOUT, 1), "unit": "s"},
                    runs=3,
                )
        finally:
            await old.close()


async def _leave_dead_rows(admin: Admin, names: Names) -> None:
    """Write messages and delete them, as relays do, under the old snapshot."""
    for _ in range(0, DEAD, _CHUNK):
        await insert(admin, names, messages=_CHUNK)
        await admin.execute(names.qualify("delete from pillarbox_outbox"), timeout=600)


async def _keep_marks(admin: Admin, names: Names) -> None:
    """Let a relay that runs all the time note how far its lanes are done with, as it does now and then."""
    store, me = (
        make_store(names),
        RelayInfo(
            relay_id=uuid4(),
            service="bench",
            host="host",
            pid=1,
            version="0",
            destinations=["default"],
            reachable=["default"],
        ),
    )
    await store.open()
    try:
        await store.register(me, lease=timedelta(hours=1))
        await store.take(me.relay_id, "default", partitions=range(PARTITIONS), lease=timedelta(hours=1), claim_number=1)
        await insert(admin, names, messages=PARTITIONS)
        await store.read("default", partitions=range(PARTITIONS), cursor=None, limit=1_000)
        await admin.execute(names.qualify("delete from pillarbox_outbox"))
        while not await admin.fetchval(names.qualify("select bool_and(done_to > 0) from pillarbox_lane")):
            await store.mark_lanes(me.relay_id)
        await store.leave(me.relay_id)
    finally:
        await store.close()


async def _measure(admin: Admin, names: Names) -> float:
    """Return the seconds from the start of a relay to its first delivery."""
    await insert(admin, names, messages=1, key=key_sql(1))
    counter = DeliveryCounter(1)
    started = time.perf_counter()
    async with make_relay(make_store(names), default=NoOpTransport(counter)):
        await counter.rate()
        return time.perf_counter() - started
