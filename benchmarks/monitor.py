"""How long an operator waits for an answer, on tables with millions of rows."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from typing import Final

from benchmarks.comparison import at_most, log, report, run_pairs
from benchmarks.database import MESSAGE_ID, PARTITION, PAYLOAD, URL, Admin, create_tables, vacuum
from benchmarks.relay.runner import make_store
from pillarbox.message import Names
from pillarbox.operations.monitor import Monitor

__all__ = ["fill_tables", "status"]

_OPEN: Final = 1_000_000
_CLOSED: Final = 5_000_000
_RUNS: Final = 7
_COMMAND_RUNS: Final = 3
_SECONDS: Final = 1.0
"""A command that takes longer is reported as slow."""
_COMMANDS: Final = (("version",), ("status",), ("check",), ("failures",), ("messages", "list"))
"""The first reads no table: it shows how long the program takes to start."""

# Mostly fresh and delivered, with everything else in between: 1,000 retry, 100 hold their key and 1,000 wait behind
# another; 1,000 have failed, 100 each were skipped and discarded; relays have 2,000 in their hands.
_FILL: Final = f"""
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time, waits, available_at, attempts, last_error,
                                  fingerprint, status_at)
    select {MESSAGE_ID}, case when i % 10 = 0 then 'mail' else 'billing' end, {PARTITION}, 'event', 'orders.placed',
           'orders', k, $1, 'application/json', '/shop', 'c' || i / 4, now(), w,
           case when w = 'retry' then now() + interval '1 minute' when w is not null then 'infinity' end,
           case when w in ('retry', 'held') then 3 else 0 end, case when w in ('retry', 'held') then 'HTTP 503' end,
           case when w = 'held' then 'HTTP #' end, now()
      from (select i, 'key-' || i % 10000 as k,
                   case when i % 1000 = 1 then 'retry' when i % 10000 = 2 then 'held' when i % 1000 = 3 then 'parked'
                   end as w
              from generate_series(1, $2::integer) i) s"""
_FILL_CLOSED: Final = f"""
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
                                   content_type, source, correlation_id, event_time, created_at, attempts, status_at,
                                   status, last_error, fingerprint)
    select i, {MESSAGE_ID}, case when i % 10 = 0 then 'mail' else 'billing' end, {PARTITION}, 'event', 'orders.placed',
           'orders', k, $1, 'application/json', '/shop', 'c' || i / 4, at, at, 0, at + interval '50 ms', status,
           case when status = 'failed' then 'HTTP 422 no account ' || i end,
           case when status = 'failed' then 'HTTP # no account #' end
      from (select i, 'key-' || -i % 10000 as k, now() + i * interval '100 ms' as at,
                   case when i % 5000 = -1 then 'failed' when i % 50000 = -2 then 'discarded'
                   when i % 50000 = -3 then 'skipped' else 'delivered' end as status
              from generate_series(-$2::bigint, -1) i) s"""
_CLAIM: Final = """
    insert into pillarbox_claim (relay_id, number, message_ids)
    select gen_random_uuid(), 1, array(select id from pillarbox_outbox where waits is null order by id limit 2000)"""
_COUNT: Final = "select (select count(*) from pillarbox_outbox) + (select count(*) from pillarbox_history)"


async def status() -> None:
    """`monitor.status`: all queries of `pillarbox status`, against the bare `count(*)` of the two tables, in ms."""
    async with create_tables("pillarbox_bench_monitor") as (admin, names):
        log(f"monitor.status: writing {_OPEN:,} open and {_CLOSED:,} closed messages")
        await fill_tables(admin, names, open_messages=_OPEN, closed=_CLOSED)
        store = make_store(names)
        await store.open()
        monitor = Monitor(store)

        async def ours() -> float:
            began = time.perf_counter()
            await monitor.status()
            return 1000 * (time.perf_counter() - began)

        async def bare() -> float:
            began = time.perf_counter()
            await admin.fetchval(names.qualify(_COUNT), timeout=600)
            return 1000 * (time.perf_counter() - began)

        try:
            pairs = await run_pairs("monitor.status", ours=ours, bare=bare, runs=_RUNS)
        finally:
            await store.close()
        settings = {"runs": _RUNS, "open": _OPEN, "closed": _CLOSED, "seconds_of": await _commands(names)}
        report("monitor.status", pairs, target=at_most(0.5), settings=settings, fields=("ms", "count_ms"))


async def fill_tables(admin: Admin, names: Names, *, open_messages: int, closed: int) -> None:
    """Fill outbox and history as after a bad week."""
    await admin.execute(names.qualify(_FILL), PAYLOAD, open_messages, timeout=3_600)
    await admin.execute(names.qualify(_FILL_CLOSED), PAYLOAD, closed, timeout=3_600)
    await admin.execute(names.qualify(_CLAIM))
    await vacuum(admin, names)


async def _commands(names: Names) -> dict[str, float]:
    """Return the median seconds of each command over a few runs, and name slow ones."""
    found = {}
    for words in _COMMANDS:
        seconds = statistics.median([await _run(names, *words) for _ in range(_COMMAND_RUNS)])
        command = " ".join(words)
        found[command] = round(seconds, 2)
        word = "met" if seconds < _SECONDS else "SLOW"
        log(f"monitor.status: `pillarbox {command}` took {seconds:.2f} s, target less than {_SECONDS:g} s: {word}")
    return found


async def _run(names: Names, *words: str) -> float:
    environment = os.environ | {"PILLARBOX_STORE": URL, "PILLARBOX_SCHEMA": names.schema or "public"}
    began = time.perf_counter()
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pillarbox", *words, env=environment, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    code = await program.wait()
    seconds = time.perf_counter() - began
    if code not in (0, 6, 7):
        raise SystemExit(f"pillarbox {' '.join(words)} ended with {code}.")
    return seconds
