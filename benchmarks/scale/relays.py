"""Two relays on two cores against one, and how long the survivor of a kill takes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.brokers.rabbitmq import URL as RABBITMQ
from benchmarks.brokers.rabbitmq import Rabbitmq
from benchmarks.comparison import at_least, log, report, run_pairs
from benchmarks.database import KEYS, URL, Admin, create_tables, empty, insert, vacuum
from benchmarks.relay.runner import SETTINGS
from pillarbox.message import PARTITIONS, Names

__all__ = ["relays", "relays_rabbitmq"]

_RUNS: Final = 3
_CPU_MESSAGES: Final = 8_000
_BROKER_MESSAGES: Final = 20_000
_POLL: Final = 0.02
_PATIENCE: Final = 90.0
_OWNED: Final = """
    select count(*), count(distinct relay_id) from pillarbox_lane where relay_id is not null and destination = 'default'
"""
_DELIVERED: Final = "select coalesce(sum(delivered), 0) from pillarbox_rollup"
_HANDLERS: Final = "handlers:benchmarks.relay.processes:handlers"
"""Needs the CPU: about half a millisecond for each message."""


async def relays() -> None:
    """`scale.relays`: messages to a handler that needs the CPU, two relays against one; and takeovers."""
    await _compare("scale.relays", _HANDLERS, messages=_CPU_MESSAGES, at_least_=1.3)


async def relays_rabbitmq() -> None:
    """`scale.relays_rabbitmq`: the same with RabbitMQ, which needs more of two cores than a relay does."""
    broker = Rabbitmq()
    await broker.open()
    try:
        url = f"{RABBITMQ}?exchange={broker.exchange}"
        await _compare("scale.relays_rabbitmq", url, messages=_BROKER_MESSAGES, at_least_=None)
    finally:
        await broker.close()


async def _compare(name: str, destination: str, *, messages: int, at_least_: float | None) -> None:
    async with create_tables("pillarbox_bench_relays") as (admin, names):
        pairs = await run_pairs(
            name,
            ours=lambda: _measure(admin, names, destination, count=2, messages=messages),
            bare=lambda: _measure(admin, names, destination, count=1, messages=messages),
            runs=_RUNS,
        )
        takeover = await _measure_takeover(admin, names, destination)
    log(f"{name}: the survivor of a kill owned all lanes after {takeover:.1f} s, with a lease of 10 s")
    report(
        name,
        pairs,
        target=None if at_least_ is None else at_least(at_least_),
        settings={"runs": _RUNS, "messages": messages, "keys": KEYS, "store": "postgresql", "cores": os.cpu_count(),
                  "takeover_seconds": round(takeover, 2), "lease_seconds": 10} | SETTINGS,
    )  # fmt: skip


async def _measure(admin: Admin, names: Names, destination: str, *, count: int, messages: int) -> float:
    """Return the rate from the commit of all messages to the record of the last delivery."""
    await _reset(admin, names)
    async with _run_relays(names, destination, count), asyncio.timeout(_PATIENCE):
        await _wait_for_owners(admin, names, count)
        await insert(admin, names, messages=messages)
        started = time.perf_counter()
        while await admin.fetchval(names.qualify(_DELIVERED)) < messages:
            await asyncio.sleep(_POLL)
        return messages / (time.perf_counter() - started)


async def _measure_takeover(admin: Admin, names: Names, destination: str) -> float:
    """Return the seconds from the kill of one of two relays until the other owns every lane."""
    await _reset(admin, names)
    async with _run_relays(names, destination, 2) as processes, asyncio.timeout(_PATIENCE):
        await _wait_for_owners(admin, names, 2)
        await insert(admin, names, messages=_CPU_MESSAGES)
        killed_at = time.perf_counter()
        processes[0].send_signal(signal.SIGKILL)
        await processes[0].wait()
        await _wait_for_owners(admin, names, 1)
        return time.perf_counter() - killed_at


async def _reset(admin: Admin, names: Names) -> None:
    await empty(admin, names)
    await admin.execute(names.qualify("truncate pillarbox_rollup"))
    await vacuum(admin, names)


async def _wait_for_owners(admin: Admin, names: Names, count: int) -> None:
    while tuple(await admin.fetchrow(names.qualify(_OWNED)) or ()) != (PARTITIONS, count):
        await asyncio.sleep(_POLL)


@asynccontextmanager
async def _run_relays(names: Names, destination: str, count: int) -> AsyncIterator[list[Process]]:
    """Run relays of one process each, as on several machines."""
    async with AsyncExitStack() as running:
        yield [await running.enter_async_context(_run_relay(names, destination)) for _ in range(count)]


@asynccontextmanager
async def _run_relay(names: Names, destination: str) -> AsyncIterator[Process]:
    settings = {
        "PILLARBOX_STORE": URL, "PILLARBOX_SCHEMA": names.schema or "public", "PILLARBOX_LOG_LEVEL": "error",
    }  # fmt: skip
    process = await create_subprocess_exec(
        sys.executable, "-m", "pillarbox", "relay", "--to", f"default={destination}",
        cwd=Path(__file__).parents[2], env={**os.environ, **settings}, stderr=DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
