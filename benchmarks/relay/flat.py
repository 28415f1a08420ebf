"""Throughput that must not decay: with a backlog, with a history, behind a poisoned key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.database import KEYS, Admin, empty, insert, insert_closed, tables
from benchmarks.measuring import RUNS, Rate, at_least, compare, talk
from benchmarks.relay.running import SETTINGS, delivering, relay_over, store_at
from benchmarks.relay.transports import NoOp, Tally
from pillarbox.message import Names

__all__ = ["SLICE", "SLICES", "backlog", "history", "poisoned_key", "refilled"]

SLICE: Final = 20_000
SLICES: Final = 5
"""Of a run: 100,000 messages, in turns with the other side."""
_BACKLOG: Final = 1_000_000
_HISTORY: Final = 1_000_000
_POISONED: Final = 100_000


async def backlog() -> None:
    """`relay.backlog`: the pace with 1,000,000 waiting, against the pace with 20,000.

    Both are filled up before each slice: there are never less than a million waiting while the clock runs.
    """
    async with tables("pillarbox_bench_deep") as (admin, deep), tables("pillarbox_bench_shallow") as (_, shallow):
        talk(f"relay.backlog: writing {_BACKLOG:,} messages")
        await insert(admin, deep, messages=_BACKLOG)
        settings = {"waiting": _BACKLOG, "against": SLICE}
        await _compare("relay.backlog", refilled(admin, deep), refilled(admin, shallow), settings)


async def history() -> None:
    """`relay.history`: the pace over 1,000,000 closed messages and more, against 100,000 at most."""
    async with tables("pillarbox_bench_old") as (admin, old), tables("pillarbox_bench_new") as (_, new):
        talk(f"relay.history: writing {_HISTORY:,} closed messages")
        await insert_closed(admin, old, messages=_HISTORY)
        over_none, slices = refilled(admin, new), 0

        async def emptied() -> float:
            nonlocal slices
            if slices % SLICES == 0:
                await empty(admin, new)
            slices += 1
            return await over_none()

        await _compare("relay.history", refilled(admin, old), emptied, {"closed": _HISTORY, "against": 0})


async def poisoned_key() -> None:
    """`relay.poisoned_key`: the pace of other keys beside 100,000 messages whose first is in back-off, against none.

    The relay itself parks the 99,999 behind it, in one pass before the clock starts.
    """
    async with tables("pillarbox_bench_poisoned") as (admin, poisoned), tables("pillarbox_bench_clean") as (_, clean):
        await insert(admin, poisoned, messages=_POISONED, key="'poison'")
        await admin.execute(poisoned.qualify(_BACK_OFF))
        pace = await _parked(admin, poisoned)
        talk(f"relay.poisoned_key: parked {_POISONED - 1:,} messages at {pace:,.0f}/s")
        settings = {"blocked": _POISONED, "parked_per_second": round(pace)}
        await _compare("relay.poisoned_key", refilled(admin, poisoned), refilled(admin, clean), settings)
        assert await admin.fetchval(poisoned.qualify(_STILL_BLOCKED)) == _POISONED


def refilled(admin: Admin, names: Names) -> Rate:
    """Write a slice, untimed, and deliver as many."""

    async def slice() -> float:
        await insert(admin, names, messages=SLICE)
        await admin.execute("checkpoint")
        return await delivering(names, messages=SLICE)

    return slice


async def _compare(name: str, burdened: Rate, free: Rate, settings: Mapping[str, object]) -> None:
    told = {"messages": SLICE * SLICES * RUNS, "keys": KEYS, **settings, **SETTINGS}
    await compare(name, ours=burdened, bare=free, wanted=at_least(0.9), settings=told, slices=SLICES)


async def _parked(admin: Admin, names: Names) -> float:
    """Let a relay meet the poisoned key; how many messages it parks a second."""
    started = time.perf_counter()
    async with relay_over(store_at(names), default=NoOp(Tally())):
        while await admin.fetchval(names.qualify("select exists (select from pillarbox_outbox where waits is null)")):
            await asyncio.sleep(0.1)
    return _POISONED / (time.perf_counter() - started)


_BACK_OFF: Final = """
    update pillarbox_outbox set waits = 'retry', available_at = now() + interval '1 hour', attempts = 5
     where id = (select min(id) from pillarbox_outbox)"""
_STILL_BLOCKED: Final = "select count(*) from pillarbox_outbox where key = 'poison' and waits in ('retry', 'parked')"
