"""An idle relay with many destinations, and with one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from asyncpg import Connection

from benchmarks.comparison import at_most, compare
from benchmarks.database import create_tables
from benchmarks.relay.runner import make_relay, make_store
from benchmarks.relay.transports import DeliveryCounter, NoOpTransport
from pillarbox.message import PARTITIONS, Names
from pillarbox.relay.relay import Relay

__all__ = ["idle"]

_DESTINATIONS: Final = 100
_SECONDS: Final = 10.0
"""Long enough for what happens every ten seconds to be counted as often as it happens."""
_SETTLED: Final = 3.0
"""Seconds until a relay that owns its lanes has nothing to do but poll."""


async def idle() -> None:
    """`relay.idle`: statements a second of an idle relay with 100 destinations, against one with 1."""
    async with create_tables("pillarbox_bench_idle") as (_, names):
        await compare(
            "relay.idle",
            ours=lambda: _count_statements(names, destinations=_DESTINATIONS),
            bare=lambda: _count_statements(names, destinations=1),
            target=at_most(5),
            settings={"destinations": _DESTINATIONS, "unit": "statements/s"},
            runs=1,
        )


async def _count_statements(names: Names, *, destinations: int) -> float:
    """Return the statements a second that a relay sends while there is nothing to deliver."""
    counter = DeliveryCounter(1)
    transports: dict[str, Any] = {f"destination-{number}": NoOpTransport(counter) for number in range(destinations)}
    relay = make_relay(make_store(names), **transports)
    async with relay:
        while _count_lanes(relay) < destinations * PARTITIONS:
            await asyncio.sleep(0.05)
        await asyncio.sleep(_SETTLED)
        with _counted() as statements:
            started = time.perf_counter()
            await asyncio.sleep(_SECONDS)
            return len(statements) / (time.perf_counter() - started)


def _count_lanes(relay: Relay) -> int:
    return sum(len(pipeline.lanes) for pipeline in relay._pipelines.values())


@contextmanager
def _counted() -> Iterator[list[str]]:
    """Collect the statements that go to the server, by whatever method."""
    statements: list[str] = []
    original = {name: getattr(Connection, name) for name in ("fetch", "fetchrow", "fetchval", "execute")}

    def watch(method: Any) -> Any:
        async def call(self: Any, query: str, *values: Any, **options: Any) -> Any:
            statements.append(query)
            return await method(self, query, *values, **options)

        return call

    for name, method in original.items():
        setattr(Connection, name, watch(method))
    try:
        yield statements
    finally:
        for name, method in original.items():
            setattr(Connection, name, method)
