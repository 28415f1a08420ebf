"""The cost of metrics in a relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.comparison import Rate, at_least, compare
from benchmarks.database import KEYS, create_tables, fill
from benchmarks.relay.runner import SETTINGS, drain_store, make_store
from pillarbox.operations.prometheus import PrometheusTelemetry
from pillarbox.telemetry import Telemetry

__all__ = ["metrics"]

_MESSAGES: Final = 30_000
_RUNS: Final = 5
_SLICES: Final = 5


async def metrics() -> None:
    """`telemetry.metrics`: the drain of `relay.drain` with every message counted and timed, against with none."""
    async with create_tables("pillarbox_bench_metrics") as (admin, names):

        def with_telemetry(made: Callable[[], Telemetry]) -> Rate:
            async def rate() -> float:
                await fill(admin, names, messages=_MESSAGES)
                return await drain_store(make_store(names), messages=_MESSAGES, telemetry=made())

            return rate

        settings = {"messages": _MESSAGES, "keys": KEYS, "store": "postgresql"} | SETTINGS
        await compare(
            "telemetry.metrics", ours=with_telemetry(PrometheusTelemetry), bare=with_telemetry(Telemetry),
            target=at_least(0.95), settings=settings, runs=_RUNS, slices=_SLICES,
        )  # fmt: skip
