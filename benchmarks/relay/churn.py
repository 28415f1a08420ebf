"""A minute of writing while relaying: alone, beside a reader's old snapshot, beside a writer that does not commit."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec

from benchmarks.comparison import Pair, at_least, log, report, run_pairs
from benchmarks.database import KEYS, URL, Admin, create_tables, empty, fill, insert, vacuum
from benchmarks.relay.runner import SETTINGS, make_relay, make_store, measure_rate
from benchmarks.relay.transports import DeliveryCounter, NoOpTransport
from benchmarks.relay.writers import run_writers
from pillarbox.message import Names

__all__ = ["Minute", "churn", "pinned", "pinned_writer"]

_SECONDS: Final = 60
_EDGE: Final = 10
_SHARE: Final = 0.42
"""The share of the drain rate that is written. The aim is 0.4, and pacing loses a little."""
_PER_TRANSACTION: Final = 100
_WRITERS: Final = 2
_BURST: Final = 100_000
_RUNS: Final = 2

Pin = Callable[[Names], AbstractAsyncContextManager[None]]


class Minute(msgspec.Struct, frozen=True):
    """What was written and delivered by the end of each second of a run."""

    written: list[int]
    delivered: list[int]
    burst: float
    """The rate at which a burst was delivered at the end."""
    dead: int
    """Dead rows in the outbox at the end, as the server counts them."""

    def per_second(self, of: list[int]) -> list[int]:
        return [now - before for before, now in zip([0, *of], of, strict=False)]

    @property
    def backlog(self) -> list[int]:
        return [written - delivered for written, delivered in zip(self.written, self.delivered, strict=True)]

    def first(self, seconds: int) -> float:
        return self.delivered[seconds - 1] / seconds

    def last(self, seconds: int) -> float:
        return (self.delivered[-1] - self.delivered[-1 - seconds]) / seconds

    @property
    def is_bounded(self) -> bool:
        """Whether no more messages wait in the end than were written in two seconds."""
        return statistics.median(self.backlog[-_EDGE:]) <= 2 * self.written[-1] / len(self.written)


async def churn() -> None:
    """`relay.churn`: a minute of writing at 0.4 of the drain's pace; its last ten seconds against its first ten."""
    async with create_tables("pillarbox_bench_churn") as (admin, names):
        pace = await _drain_pace(admin, names)
        minutes = [await _minute(admin, names, pace, _unpinned) for _ in range(_RUNS)]
        pairs = [Pair(minute.last(_EDGE), minute.first(_EDGE)) for minute in minutes]
        _report("relay.churn", pairs, minutes, pace=pace, target=0.9)


async def pinned() -> None:
    """`relay.pinned`: the same while a REPEATABLE READ reader keeps its snapshot, against without; the second half."""
    await _compare("relay.pinned", _reader)


async def pinned_writer() -> None:
    """`relay.pinned_writer`: the same while a transaction that has written a message does not commit."""
    await _compare("relay.pinned_writer", _writer)


async def _compare(name: str, pin: Pin) -> None:
    minutes: dict[Pin, list[Minute]] = {pin: [], _unpinned: []}
    async with create_tables("pillarbox_bench_pinned") as (admin, names):
        pace = await _drain_pace(admin, names)

        async def run(how: Pin) -> float:
            minutes[how].append(await _minute(admin, names, pace, how))
            return minutes[how][-1].last(_SECONDS // 2)

        pairs = await run_pairs(name, ours=lambda: run(pin), bare=lambda: run(_unpinned), runs=_RUNS)
        _report(name, pairs, minutes[pin], pace=pace, target=0.8, against=minutes[_unpinned])


async def _drain_pace(admin: Admin, names: Names) -> float:
    paces = []
    for _ in range(3):
        await fill(admin, names, messages=_BURST)
        paces.append(await measure_rate(names, messages=_BURST))
    return statistics.median(paces)


async def _minute(admin: Admin, names: Names, pace: float, pin: Pin) -> Minute:
    """Run one minute, with the pin in place before the first message."""
    await empty(admin, names)
    await vacuum(admin, names)
    counter = DeliveryCounter()
    async with pin(names), make_relay(make_store(names), default=NoOpTransport(counter)):
        pressure = run_writers(names, writers=_WRITERS, per_transaction=_PER_TRANSACTION, per_second=_SHARE * pace)
        async with pressure as written:
            await asyncio.sleep(1)
            seconds = await _count_per_second(lambda: (written.messages, counter.arrived))
        burst = await _burst(admin, names, counter, written.messages)
        dead = await admin.fetchval(
            "select n_dead_tup from pg_stat_user_tables where relid = $1::regclass", names.table("outbox")
        )
    return Minute([w for w, _ in seconds], [d for _, d in seconds], burst, dead)


async def _count_per_second(look: Callable[[], tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what was written and delivered by the end of each second."""
    began, (written, delivered), seconds = time.perf_counter(), look(), []
    for second in range(1, _SECONDS + 1):
        await asyncio.sleep(max(0.0, began + second - time.perf_counter()))
        now = look()
        seconds.append((now[0] - written, now[1] - delivered))
    return seconds


async def _burst(admin: Admin, names: Names, counter: DeliveryCounter, written: int) -> float:
    """Measure the rate of a burst, once everything else has arrived: it shows what the relay can do."""
    await _wait_for(counter, written)
    await insert(admin, names, messages=_BURST)
    began = time.perf_counter()
    await _wait_for(counter, written + _BURST)
    return _BURST / (time.perf_counter() - began)


async def _wait_for(counter: DeliveryCounter, messages: int) -> None:
    while counter.arrived < messages:
        await asyncio.sleep(0.01)


# --- what holds old rows -------------------------------------------------------------------------


@asynccontextmanager
async def _unpinned(names: Names) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _reader(names: Names) -> AsyncIterator[None]:
    """Keep a snapshot open, as a long report does: vacuum cannot remove rows that are deleted from now on."""
    async with _hold_transaction(names, "select count(*) from pillarbox_history", isolation="repeatable_read"):
        yield


@asynccontextmanager
async def _writer(names: Names) -> AsyncIterator[None]:
    """Keep a transaction open that has written a message."""
    async with _hold_transaction(names, _ONE_ORDER, isolation="read_committed"):
        yield


@asynccontextmanager
async def _hold_transaction(names: Names, statement: str, *, isolation: Any) -> AsyncIterator[None]:
    connection = await asyncpg.connect(URL)
    transaction = connection.transaction(isolation=isolation)
    await transaction.start()
    await connection.execute(names.qualify(statement))
    try:
        yield
    finally:
        await transaction.rollback()
        await connection.close()


_ONE_ORDER: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    values (gen_random_uuid(), 'default', 0, 'event', 't', 't', 'slow', '', '', '/', 'c', now())"""


# --- telling -------------------------------------------------------------------------------------


def _report(
    name: str,
    pairs: list[Pair],
    minutes: list[Minute],
    *,
    pace: float,
    target: float,
    against: list[Minute] | None = None,
) -> None:
    latest = minutes[-1]
    details: dict[str, object] = {
        "runs": _RUNS, "seconds": _SECONDS, "keys": KEYS, "per_transaction": _PER_TRANSACTION,
        "drain": round(pace), "written": round(statistics.median(m.written[-1] / _SECONDS for m in minutes)),
        "most_waiting": max(max(m.backlog) for m in minutes), "bounded": all(m.is_bounded for m in minutes),
        "burst": round(statistics.median(m.burst for m in minutes)), "dead_rows": max(m.dead for m in minutes),
    }  # fmt: skip
    if against is not None:
        details["burst_ratio"] = round(
            statistics.median(m.burst / a.burst for m, a in zip(minutes, against, strict=True)), 3
        )
        details["curve_against"] = against[-1].per_second(against[-1].delivered)
    details |= {
        "curve": latest.per_second(latest.delivered),
        "curve_written": latest.per_second(latest.written),
        "curve_waiting": latest.backlog,
    }
    if not details["bounded"]:
        log(f"{name}: the backlog grew without end")
    report(name, pairs, target=at_least(target), settings=details | SETTINGS)
