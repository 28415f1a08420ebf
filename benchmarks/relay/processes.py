"""Two processes of `pillarbox relay` against one, where the destination needs the CPU."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.comparison import at_least, compare
from benchmarks.database import KEYS, URL, Admin, create_tables, empty, insert, vacuum
from benchmarks.relay.runner import SETTINGS
from pillarbox.handlers import Handlers
from pillarbox.message import PARTITIONS, Names

__all__ = ["handlers", "processes"]

_MESSAGES: Final = 8_000
_RUNS: Final = 7
_ROUNDS: Final = 800
"""Hashes per message: about half a millisecond, less than an RSA signature takes."""
_POLL: Final = 0.02
_PATIENCE: Final = 60.0
_OWNED: Final = """
    select count(*), count(distinct relay_id) from pillarbox_lane where relay_id is not null and destination = 'default'
"""
_DELIVERED: Final = "select coalesce(sum(delivered), 0) from pillarbox_rollup"

handlers: Final = Handlers()


@handlers.on("*")
async def _sign(_event: object) -> None:
    digest = b""
    for _ in range(_ROUNDS):
        digest = hashlib.blake2b(digest).digest()


async def processes() -> None:
    """`relay.processes`: 8,000 messages to a handler that needs the CPU, two processes against one."""
    async with create_tables("pillarbox_bench_processes") as (admin, names):
        await compare(
            "relay.processes",
            ours=lambda: _measure(admin, names, count=2),
            bare=lambda: _measure(admin, names, count=1),
            target=at_least(1.3),
            settings={"messages": _MESSAGES, "keys": KEYS, "store": "postgresql", "cores": os.cpu_count()} | SETTINGS,
            runs=_RUNS,
        )


async def _measure(admin: Admin, names: Names, *, count: int) -> float:
    """Return the rate from the commit of all messages to the record of the last delivery."""
    await empty(admin, names)
    await admin.execute(names.qualify("truncate pillarbox_rollup"))
    await vacuum(admin, names)
    async with _run_relay(names, count), asyncio.timeout(_PATIENCE):
        while tuple(await admin.fetchrow(names.qualify(_OWNED)) or ()) != (PARTITIONS, count):
            await asyncio.sleep(_POLL)
        await insert(admin, names, messages=_MESSAGES)
        started = time.perf_counter()
        while await admin.fetchval(names.qualify(_DELIVERED)) < _MESSAGES:
            await asyncio.sleep(_POLL)
        return _MESSAGES / (time.perf_counter() - started)


@asynccontextmanager
async def _run_relay(names: Names, count: int) -> AsyncIterator[Process]:
    settings = {
        "PILLARBOX_STORE": URL,
        "PILLARBOX_SCHEMA": names.schema or "public",
        "PILLARBOX_RELAY_PROCESSES": str(count),
        "PILLARBOX_LOG_LEVEL": "error",
    }
    process = await create_subprocess_exec(
        sys.executable, "-m", "pillarbox", "relay", "--to", f"default=handlers:{__name__}:handlers",
        cwd=Path(__file__).parents[2], env={**os.environ, **settings}, stderr=DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()
