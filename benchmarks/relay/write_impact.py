"""The effect of a relay on writers: of its wake-ups, and of a broker that is down."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from benchmarks.comparison import Pair, Rate, at_least, compute_medians, report, run_pairs
from benchmarks.database import URL, create_tables, empty
from benchmarks.relay.runner import SETTINGS, make_relay, make_store
from benchmarks.relay.transports import DeliveryCounter, DownTransport, HangingTransport, NoOpTransport
from benchmarks.relay.writers import run_writers
from pillarbox.contracts.transport import Transport
from pillarbox.message import Names

__all__ = ["wakeup", "write_isolation"]

_WRITERS: Final = 16
_RUNS: Final = 9
_SECONDS: Final = 2.0
_TURN: Final = 0.5
_TURNS: Final = 7
_PAUSE: Final = 0.1
"""Seconds after each change before the measurement starts."""


async def wakeup() -> None:
    """`relay.wakeup`: 16 writers of single messages beside a relay that may be woken, against one that only polls.

    The relay is the same and never stops; its trigger on the table is switched on and off, in short turns. What is
    between the two is all that a wake-up costs writers.
    """
    async with (
        create_tables("pillarbox_bench_wakeup") as (admin, names),
        run_writers(names, writers=_WRITERS) as written,
    ):
        woken: list[float] = []
        async with (
            make_relay(make_store(names), default=NoOpTransport(DeliveryCounter())),
            _count_notifications(names) as count,
        ):

            async def measure_with_trigger(how: str) -> float:
                await admin.execute(names.qualify(f"alter table pillarbox_outbox {how} trigger user"))
                await asyncio.sleep(_PAUSE)
                return await written.per_second(_TURN)

            async def on() -> float:
                before = count()
                pace = await measure_with_trigger("enable")
                woken.append((count() - before) / (_PAUSE + _TURN))
                return pace

            pairs = await run_pairs(
                "relay.wakeup", ours=on, bare=lambda: measure_with_trigger("disable"), runs=_RUNS, slices=_TURNS
            )
        settings = {"runs": _RUNS, "slices": _TURNS, "writers": _WRITERS, "seconds": _TURN}
        details = {"wakeups_per_second": round(statistics.mean(woken), 1), **settings, **SETTINGS}
        report("relay.wakeup", pairs, target=at_least(0.9), settings=details)


@asynccontextmanager
async def _count_notifications(names: Names) -> AsyncIterator[Callable[[], int]]:
    """Yield a function that counts the notifications about these tables."""
    connection = await asyncpg.connect(URL)
    heard: list[object] = []
    oid = str(await connection.fetchval("select $1::regclass::oid", names.table("outbox")))
    await connection.add_listener("pillarbox", lambda *said: heard.append(said) if said[3] == oid else None)
    try:
        yield lambda: len(heard)
    finally:
        await connection.close()


async def write_isolation() -> None:
    """`relay.write_isolation`: 16 writers beside a relay whose broker hangs, or is down, against a healthy one."""
    async with (
        create_tables("pillarbox_bench_isolation") as (admin, names),
        run_writers(names, writers=_WRITERS) as written,
    ):

        def beside(transport: Callable[[DeliveryCounter], Transport]) -> Rate:
            async def pace() -> float:
                await empty(admin, names)
                async with make_relay(make_store(names), default=transport(DeliveryCounter())):
                    await asyncio.sleep(1)
                    return await written.per_second(_SECONDS)

            return pace

        found: dict[str, list[Pair]] = {}
        for trouble, transport in (("hanging", HangingTransport), ("down", DownTransport)):
            name = f"relay.write_isolation, {trouble}"
            found[trouble] = await run_pairs(name, ours=beside(transport), bare=beside(NoOpTransport), runs=_RUNS)
        ratios = {f"ratio_{trouble}": round(compute_medians(pairs)[2], 3) for trouble, pairs in found.items()}
        worst = min(found.values(), key=lambda pairs: compute_medians(pairs)[2])
        settings = {"runs": _RUNS, "writers": _WRITERS, "seconds": _SECONDS, **ratios, **SETTINGS}
        report("relay.write_isolation", worst, target=at_least(0.95), settings=settings)
