"""How long a person waits for each page of the dashboard, on tables with millions of rows."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import httpx

from benchmarks.comparison import log, missed
from benchmarks.database import Admin, create_tables
from benchmarks.monitor import fill_tables
from benchmarks.relay.runner import make_store
from pillarbox.dashboard import Dashboard, Role, User
from pillarbox.message import PARTITIONS, Names

__all__ = ["fill_others", "list_pages", "pages"]

_OPEN: Final = int(os.environ.get("PILLARBOX_BENCH_OPEN", "1000000"))
_CLOSED: Final = int(os.environ.get("PILLARBOX_BENCH_CLOSED", "5000000"))
"""`PILLARBOX_BENCH_CLOSED=10000000` is the large form."""
_RUNS: Final = 20
_LONGEST: Final = 200.0
"""Milliseconds that no page may take at its 95th percentile."""
_BARE: Final = "select id, type, topic, key from pillarbox_outbox where id = $1"

_RELAYS: Final = """
    insert into pillarbox_relay (relay_id, service, host, pid, version, destinations, reachable, started_at, expires_at)
    select gen_random_uuid(), 'shop', 'web-' || i, 4000 + i, '1.0', '{billing,mail}', '{billing,mail}', now(),
           now() + interval '1 hour'
      from generate_series(1, 4) i"""
_LANES: Final = f"""
    insert into pillarbox_lane (destination, partition, relay_id, epoch)
    select d, i, (array(select relay_id from pillarbox_relay order by host))[1 + i % 4], 1
      from generate_series(0, {PARTITIONS - 1}) i cross join unnest(array['billing', 'mail']) d"""
_ROLLUPS: Final = """
    insert into pillarbox_rollup (destination, minute, relay_id, delivered, failed, retried, latency_sum, backlog,
                                  under_50ms)
    select d, date_trunc('minute', now()) - i * interval '1 minute', r, 900, i % 7, i % 11, 45, 1000 + i % 500, 900
      from generate_series(0, 10079) i cross join unnest(array['billing', 'mail']) d
     cross join unnest(array[gen_random_uuid(), gen_random_uuid()]) r"""
_JOURNAL: Final = """
    insert into pillarbox_journal (message_id, destination, action, at, by, attempt, error, detail, reason)
    select case when i % 10 = 0 then null else gen_random_uuid() end,
           case when i % 5 = 0 then 'mail' else 'billing' end,
           case when i % 10 > 0 then 'attempt_failed' when i % 100 = 0 then 'paused' when i % 100 = 10 then 'resumed'
                else 'redriven' end,
           now() - (200000 - i) * interval '1 second', 'ann', 1, 'HTTP 503', '12 messages', 'they are back'
      from generate_series(1, 200000) i"""
_INBOX: Final = """
    insert into pillarbox_inbox (consumer, source, message_id, status, duplicates, attempts, status_at, last_error)
    select case when i % 3 = 0 then 'invoices' else 'mailer' end, '/shop', 'message-' || i,
           case when i % 2000 = 0 then 'failed' else 'done' end, case when i % 50 = 0 then 1 else 0 end, 1,
           now() - i * interval '10 ms', case when i % 2000 = 0 then 'no account for ' || i end
      from generate_series(1, 1000000) i"""


async def fill_others(admin: Admin, names: Names) -> None:
    """Fill relays, lanes, counters of a week, the journal and the inbox."""
    for sql in (_RELAYS, _LANES, _ROLLUPS, _JOURNAL, _INBOX):
        await admin.execute(names.qualify(sql), timeout=3_600)
    for table in ("rollup", "journal", "inbox", "relay", "lane"):
        await admin.execute(names.qualify(f"vacuum analyze pillarbox_{table}"), timeout=600)


async def list_pages(admin: Admin, names: Names) -> Mapping[str, str]:
    """List every page by a name, with the ids of messages that are there."""

    async def first(sql: str) -> Any:
        return await admin.fetchval(names.qualify(sql))

    pending = await first("select id from pillarbox_outbox where waits is null order by id desc limit 1")
    parked = await first("select id from pillarbox_outbox where waits = 'parked' order by id limit 1")
    failed = await first("select message_id from pillarbox_history where status = 'failed' order by id limit 1")
    delivered = await first("select message_id from pillarbox_history where status = 'delivered' order by id limit 1")
    correlation = await first("select correlation_id from pillarbox_history order by id desc limit 1")
    group = "destination=billing&fingerprint=HTTP+%23+no+account+%23"
    return {
        "overview": "", "charts of 1 h": "charts?window=1h&format=json",
        "charts of 7 d": "charts?window=7d&format=json",
        "messages": "messages", "messages, due": "messages?state=pending&phase=due",
        "messages, later": "messages?state=pending&phase=later",
        "messages, parked": "messages?state=pending&phase=parked", "messages, held": "messages?state=failed&phase=held",
        "messages, sending": "messages?state=sending", "messages, failed": "messages?state=failed",
        "messages, delivered": "messages?state=delivered",
        "messages, delivered, oldest": "messages?state=delivered&order=id",
        "messages by destination": "messages?state=pending&destination=mail",
        "messages by topic, none": "messages?topic=nothing",
        "messages by type, delivered": "messages?state=delivered&type=x",
        "messages by error": "messages?state=failed&error=account", "messages by key": "messages?key=key-42",
        "messages since": "messages?state=delivered&since=10m",
        "message, pending": f"messages/{pending}", "message, parked": f"messages/{parked}",
        "message, failed": f"messages/{failed}", "message, delivered": f"messages/{delivered}",
        "payload": f"messages/{failed}/payload",
        "failures": "failures", "group of failures": f"failures/group?{group}", "destinations": "destinations",
        "destination": "destinations/billing", "chain": f"chains?id={correlation}",
        "chain, sequence": f"chains?id={correlation}&view=sequence", "inbox": "inbox",
        "inbox of a consumer": "inbox?consumer=invoices", "inbox, look-up": "inbox?handled=message-4711",
        "relays": "relays", "activity": "activity", "activity of one": "activity?by=ann&action=paused",
        "activity of messages": "activity?all=1", "system": "system",
        "redrive, asked": "redrive?state=failed&destination=billing", "discard, asked": "discard?destination=billing",
        "discard by topic, asked": "discard?topic=nothing",
    }  # fmt: skip


async def pages() -> None:
    """`dashboard.pages`: milliseconds of every page at its 95th percentile, beside a bare select of one row."""
    async with create_tables("pillarbox_bench_dashboard") as (admin, names):
        log(f"dashboard.pages: writing {_OPEN:,} open and {_CLOSED:,} closed messages")
        await fill_tables(admin, names, open_messages=_OPEN, closed=_CLOSED)
        await fill_others(admin, names)
        await measure(admin, names)


async def measure(admin: Admin, names: Names) -> None:
    """Ask for every page, and print a line of JSON."""
    dashboard = Dashboard({"shop": make_store(names)}, authorize=lambda _: User("ann", Role.OWNER))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=dashboard), base_url="http://localhost", timeout=600)
    id_ = await admin.fetchval(names.qualify("select max(id) from pillarbox_outbox"))
    found: dict[str, list[float]] = {}
    try:
        for name, path in (await list_pages(admin, names)).items():
            found[name] = await _time_pages(client, f"/shop/{path}")
            p95, median = _compute_p95(found[name]), statistics.median(found[name])
            log(f"dashboard.pages: {name}: {p95:.1f} ms, median {median:.1f}")

        async def look() -> None:
            await dashboard.sampler.get("shop", fresh=True)

        found["a look at the store, once in two seconds for all tabs"] = await _time(look)
        bare = await _time(lambda: admin.fetchrow(names.qualify(_BARE), id_))
    finally:
        await client.aclose()
        await dashboard.close()
    _report(found, bare)


async def _time_pages(client: httpx.AsyncClient, path: str) -> list[float]:
    async def ask() -> None:
        answer = await client.get(path)
        if answer.status_code != 200:
            raise SystemExit(f"{path} answered {answer.status_code}: {answer.text[:300]}")

    return await _time(ask)


async def _time(call: Callable[[], Awaitable[Any]], *, runs: int = _RUNS) -> list[float]:
    """Return the milliseconds of each call. The first, which plans and loads, is left out."""
    await call()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        await call()
        times.append(1_000 * (time.perf_counter() - began))
    return times


def _compute_p95(times: Sequence[float]) -> float:
    return sorted(times)[max(0, round(0.95 * len(times)) - 1)]


def _report(found: Mapping[str, Sequence[float]], bare: Sequence[float]) -> None:
    slow = [name for name, times in found.items() if _compute_p95(times) > _LONGEST]
    worst = max(found, key=lambda name: _compute_p95(found[name]))
    line = {
        "name": "dashboard.pages", "ms": round(_compute_p95(found[worst]), 1), "bare_ms": round(_compute_p95(bare), 3),
        "slowest": worst, "wanted": _LONGEST, "bound": "at most", "passed": not slow, "open": _OPEN, "closed": _CLOSED,
        "runs": _RUNS, "p95_ms": {name: round(_compute_p95(times), 1) for name, times in found.items()},
        "median_ms": {name: round(statistics.median(times), 1) for name, times in found.items()},
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    if slow:
        missed.append("dashboard.pages")
        log(f"dashboard.pages: over {_LONGEST:g} ms: {', '.join(slow)}")
