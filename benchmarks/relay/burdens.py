"""What one key or one destination does to the others: a hot key, an outage."""

from __future__ import annotations

from typing import Final

from benchmarks.database import KEYS, calm, empty, insert, of_keys, tables
from benchmarks.measuring import RUNS, at_least, compare
from benchmarks.relay.flat import SLICE, SLICES, refilled
from benchmarks.relay.running import SETTINGS, relay_over, store_at
from benchmarks.relay.transports import Down, NoOp, Slow, Tally
from pillarbox.message import Message, Names

__all__ = ["hot_key", "outage"]

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
    async with tables("pillarbox_bench_hot") as (admin, names):

        async def beside() -> float:
            await empty(admin, names)
            await insert(admin, names, messages=_HOT + _OTHERS, key=mixed)
            await calm(admin, names)
            return await _pace_of_others(names)

        async def alone() -> float:
            await empty(admin, names)
            await insert(admin, names, messages=_OTHERS, key=of_keys(KEYS))
            await calm(admin, names)
            return await _pace_of_others(names)

        settings = {"hot": _HOT, "others": _OTHERS, "keys": KEYS, "transport_ms": _SECONDS * 1_000} | SETTINGS
        await compare("relay.hot_key", ours=beside, bare=alone, wanted=at_least(0.8), settings=settings, runs=_RUNS)


async def _pace_of_others(names: Names) -> float:
    tally = Tally(_OTHERS)
    async with relay_over(store_at(names), default=Slow(tally, seconds=_SECONDS, counts=_is_other)):
        return await tally.rate()


def _is_other(message: Message) -> bool:
    return message.key != "hot"


async def outage() -> None:
    """`relay.outage`: one destination's pace while another is down with 200,000 waiting, against its pace alone."""
    async with tables("pillarbox_bench_outage") as (admin, names), tables("pillarbox_bench_alone") as (_, only):
        await insert(admin, names, messages=_WAITING, destination="broken")

        async def beside() -> float:
            await insert(admin, names, messages=SLICE)
            await admin.execute("checkpoint")
            tally = Tally(SLICE)
            async with relay_over(store_at(names), broken=Down(Tally()), default=NoOp(tally)):
                return await tally.rate()

        settings = {"messages": SLICE * SLICES * RUNS, "waiting": _WAITING, "keys": KEYS} | SETTINGS
        alone = refilled(admin, only)
        await compare("relay.outage", ours=beside, bare=alone, wanted=at_least(0.9), settings=settings, slices=SLICES)
