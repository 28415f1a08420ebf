"""Throughput that must not decay: with a backlog, a history, a poisoned key, a hot key, an outage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.comparison import RUNS, Rate, at_least, compare, log
from benchmarks.database import KEYS, Admin, create_tables, empty, insert, insert_closed, key_sql, vacuum
from benchmarks.relay.runner import SETTINGS, make_relay, make_store, measure_rate
from benchmarks.relay.transports import DeliveryCounter, DownTransport, NoOpTransport, SlowTransport
from pillarbox.message import Message, Names

__all__ = ["backlog", "history", "hot_key", "outage", "poisoned_key"]

SLICE: Final = 20_000
SLICES: Final = 5
"""Slices of a run: 100,000 messages, in turn with the other side."""
_BACKLOG: Final = 1_000_000
_HISTORY: Final = 1_000_000
_POISONED: Final = 100_000


async def backlog() -> None:
    """`relay.backlog`: the pace with 1,000,000 waiting, against the pace with 20,000.

    Both are filled up before each slice: there are never less than a million waiting while the clock runs.
    """
    async with (
        create_tables("pillarbox_bench_deep") as (admin, deep),
        create_tables("pillarbox_bench_shallow") as (_, shallow),
    ):
        log(f"relay.backlog: writing {_BACKLOG:,} messages")
        await insert(admin, deep, messages=_BACKLOG)
        settings = {"waiting": _BACKLOG, "against": SLICE}
        await _compare("relay.backlog", refill_and_measure(admin, deep), refill_and_measure(admin, shallow), settings)


async def history() -> None:
    """`relay.history`: the pace over 1,000,000 closed messages and more, against 100,000 at most."""
    async with create_tables("pillarbox_bench_old") as (admin, old), create_tables("pillarbox_bench_new") as (_, new):
        log(f"relay.history: writing {_HISTORY:,} closed messages")
        await insert_closed(admin, old, messages=_HISTORY)
        over_none, slices = refill_and_measure(admin, new), 0

        async def emptied() -> float:
            nonlocal slices
            if slices % SLICES == 0:
                await empty(admin, new)
            slices += 1
            return await over_none()

        await _compare("relay.history", refill_and_measure(admin, old), emptied, {"closed": _HISTORY, "against": 0})


async def poisoned_key() -> None:
    """`relay.poisoned_key`: the pace of other keys beside 100,000 messages whose first is in back-off, against none.

    The relay itself parks the 99,999 behind it, in one pass before the clock starts.
    """
    async with (
        create_tables("pillarbox_bench_poisoned") as (admin, poisoned),
        create_tables("pillarbox_bench_clean") as (_, clean),
    ):
        await insert(admin, poisoned, messages=_POISONED, key="'poison'")
        await admin.execute(poisoned.qualify(_BACK_OFF))
        pace = await _measure_parking(admin, poisoned)
        log(f"relay.poisoned_key: parked {_POISONED - 1:,} messages at {pace:,.0f}/s")
        settings = {"blocked": _POISONED, "parked_per_second": round(pace)}
        await _compare(
            "relay.poisoned_key", refill_and_measure(admin, poisoned), refill_and_measure(admin, clean), settings
        )
        assert await admin.fetchval(poisoned.qualify(_STILL_BLOCKED)) == _POISONED


def refill_and_measure(admin: Admin, names: Names) -> Rate:
    """Return a run that writes a slice, untimed, and delivers as many."""

    async def slice() -> float:
        await insert(admin, names, messages=SLICE)
        await admin.execute("checkpoint")
        return await measure_rate(names, messages=SLICE)

    return slice


async def _compare(name: str, burdened: Rate, free: Rate, settings: Mapping[str, object]) -> None:
    details = {"messages": SLICE * SLICES * RUNS, "keys": KEYS, **settings, **SETTINGS}
    await compare(name, ours=burdened, bare=free, target=at_least(0.9), settings=details, slices=SLICES)


async def _measure_parking(admin: Admin, names: Names) -> float:
    """Let a relay read the poisoned key, and return how many messages it parks per second."""
    started = time.perf_counter()
    async with make_relay(make_store(names), default=NoOpTransport(DeliveryCounter())):
        while await admin.fetchval(names.qualify("select exists (select from pillarbox_outbox where waits is null)")):
            await asyncio.sleep(0.1)
    return _POISONED / (time.perf_counter() - started)


_BACK_OFF: Final = """
    update pillarbox_outbox set waits = 'retry', available_at = now() + interval '1 hour', attempts = 5
     where id = (select min(id) from pillarbox_outbox)"""
_STILL_BLOCKED: Final = "select count(*) from pillarbox_outbox where key = 'poison' and waits in ('retry', 'parked')"


_HOT: Final = 100_000
_OTHERS: Final = 20_000
_SECONDS: Final = 0.02
_WAITING: Final = 200_000
_RUNS: Final = 7


async def hot_key() -> None:
    """`relay.hot_key`: 20,000 messages among 100,000 of one key, on a transport of 20 ms, against the 20,000 alone.

    They were written in turns, one after each five of the hot key, and the clock runs until the last of them has
    arrived: those in the hot key's lane stand behind nearly all of it.
    """
    every = (_HOT + _OTHERS) // _OTHERS
    mixed = f"case when i % {every} = 0 then 'key-' || i / {every} % {KEYS} else 'hot' end"
    async with create_tables("pillarbox_bench_hot") as (admin, names):

        async def beside() -> float:
            await empty(admin, names)
            await insert(admin, names, messages=_HOT + _OTHERS, key=mixed)
            await vacuum(admin, names)
            return await _pace_of_others(names)

        async def alone() -> float:
            await empty(admin, names)
            await insert(admin, names, messages=_OTHERS, key=key_sql(KEYS))
            await vacuum(admin, names)
            return await _pace_of_others(names)

        settings = {"hot": _HOT, "others": _OTHERS, "keys": KEYS, "transport_ms": _SECONDS * 1_000} | SETTINGS
        await compare("relay.hot_key", ours=beside, bare=alone, target=at_least(0.8), settings=settings, runs=_RUNS)


async def _pace_of_others(names: Names) -> float:
    counter = DeliveryCounter(_OTHERS)
    async with make_relay(make_store(names), default=SlowTransport(counter, seconds=_SECONDS, counts=_is_other)):
        return await counter.rate()


def _is_other(message: Message) -> bool:
    return message.key != "hot"


async def outage() -> None:
    """`relay.outage`: one destination's pace while another is down with 200,000 waiting, against its pace alone."""
    async with (
        create_tables("pillarbox_bench_outage") as (admin, names),
        create_tables("pillarbox_bench_alone") as (_, only),
    ):
        await insert(admin, names, messages=_WAITING, destination="broken")

        async def beside() -> float:
            await insert(admin, names, messages=SLICE)
            await admin.execute("checkpoint")
            counter = DeliveryCounter(SLICE)
            async with make_relay(
                make_store(names), broken=DownTransport(DeliveryCounter()), default=NoOpTransport(counter)
            ):
                return await counter.rate()

        settings = {"messages": SLICE * SLICES * RUNS, "waiting": _WAITING, "keys": KEYS} | SETTINGS
        alone = refill_and_measure(admin, only)
        await compare("relay.outage", ours=beside, bare=alone, target=at_least(0.9), settings=settings, slices=SLICES)
