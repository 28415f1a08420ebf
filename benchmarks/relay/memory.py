"""The peak memory of a relay that drains a backlog, in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import resource
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from benchmarks.comparison import at_most, report, run_pairs
from benchmarks.database import KEYS, create_tables, fill
from benchmarks.relay.runner import SETTINGS, drain_store, make_store
from pillarbox.message import Names

__all__ = ["memory"]

_MANY: Final = 1_000_000
_FEW: Final = 20_000
_RUNS: Final = 2


async def memory() -> None:
    """`relay.memory`: the peak of resident memory, in MB, draining 1,000,000 messages against 20,000."""
    async with create_tables("pillarbox_bench_memory") as (admin, names):

        async def peak(messages: int) -> float:
            await fill(admin, names, messages=messages)
            return await asyncio.to_thread(_peak, names.schema or "public", messages)

        pairs = await run_pairs("relay.memory", ours=lambda: peak(_MANY), bare=lambda: peak(_FEW), runs=_RUNS)
        settings = {"runs": _RUNS, "messages": _MANY, "against": _FEW, "keys": KEYS} | SETTINGS
        report("relay.memory", pairs, target=at_most(1.3), settings=settings, fields=("peak_mb", "peak_mb_against"))


def _peak(schema: str, messages: int) -> float:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_process, args=(schema, messages, theirs), daemon=True)
    process.start()
    peak: float = ours.recv()
    process.join(30)
    return peak


def _process(schema: str, messages: int, answer: Connection) -> None:
    asyncio.run(drain_store(make_store(Names(schema)), messages=messages))
    answer.send(_peak_of_this_process())


def _peak_of_this_process() -> float:
    """Return it in MB. On Linux, `ru_maxrss` includes the parent's memory from before exec; /proc does not."""
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        assert kilobytes is not None
        return int(kilobytes[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
