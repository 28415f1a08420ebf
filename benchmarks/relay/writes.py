"""What writers feel of a relay: of its wake-up, and of a broker that is gone."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from benchmarks.database import URL, empty, tables
from benchmarks.measuring import Pair, Rate, at_least, interleaved, medians, report
from benchmarks.relay.running import SETTINGS, relay_over, store_at
from benchmarks.relay.transports import Down, Hanging, NoOp, Tally
from benchmarks.relay.writers import writing
from pillarbox.contracts.transport import Transport
from pillarbox.message import Names

__all__ = ["wakeup", "write_isolation"]

_WRITERS: Final = 16
_RUNS: Final = 9
_SECONDS: Final = 2.0
_TURN: Final = 0.5
_TURNS: Final = 7
_BREATH: Final = 0.1
"""Seconds after a switch before the clock starts."""


async def wakeup() -> None:
    """`relay.wakeup`: 16 writers of single messages beside a relay that may be woken, against one that only polls.

    The relay is the same and never stops; its trigger on the table is switched on and off, in short turns. What is
    between the two is all that a wake-up costs writers.
    """
    async with tables("pillarbox_bench_wakeup") as (admin, names), writing(names, writers=_WRITERS) as written:
        woken: list[float] = []
        async with relay_over(store_at(names), default=NoOp(Tally())), _heard(names) as count:

            async def turned(how: str) -> float:
                await admin.execute(names.qualify(f"alter table pillarbox_outbox {how} trigger user"))
                await asyncio.sleep(_BREATH)
                return await written.per_second(_TURN)

            async def on() -> float:
                before = count()
                pace = await turned("enable")
                woken.append((count() - before) / (_BREATH + _TURN))
                return pace

            pairs = await interleaved(
                "relay.wakeup", ours=on, bare=lambda: turned("disable"), runs=_RUNS, slices=_TURNS
            )
        settings = {"runs": _RUNS, "slices": _TURNS, "writers": _WRITERS, "seconds": _TURN}
        told = {"wakeups_per_second": round(statistics.mean(woken), 1), **settings, **SETTINGS}
        report("relay.wakeup", pairs, wanted=at_least(0.9), settings=told)


@asynccontextmanager
async def _heard(names: Names) -> AsyncIterator[Callable[[], int]]:
    """How many notifications there were about these tables."""
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
    async with tables("pillarbox_bench_isolation") as (admin, names), writing(names, writers=_WRITERS) as written:

        def beside(transport: Callable[[Tally], Transport]) -> Rate:
            async def pace() -> float:
                await empty(admin, names)
                async with relay_over(store_at(names), default=transport(Tally())):
                    await asyncio.sleep(1)
                    return await written.per_second(_SECONDS)

            return pace

        found: dict[str, list[Pair]] = {}
        for trouble, transport in (("hanging", Hanging), ("down", Down)):
            name = f"relay.write_isolation, {trouble}"
            found[trouble] = await interleaved(name, ours=beside(transport), bare=beside(NoOp), runs=_RUNS)
        ratios = {f"ratio_{trouble}": round(medians(pairs)[2], 3) for trouble, pairs in found.items()}
        worst = min(found.values(), key=lambda pairs: medians(pairs)[2])
        settings = {"runs": _RUNS, "writers": _WRITERS, "seconds": _SECONDS, **ratios, **SETTINGS}
        report("relay.write_isolation", worst, wanted=at_least(0.95), settings=settings)
