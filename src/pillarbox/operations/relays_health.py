"""Probes and metrics of relays over many stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pillarbox.contracts.store import MonitorStore, Store
from pillarbox.durations import format_duration
from pillarbox.operations.health import ProbeResult
from pillarbox.operations.monitor import Monitor, Status
from pillarbox.operations.stores import ask_stores
from pillarbox.relay.addresses import StoreAddress
from pillarbox.relay.relay import RelayHealth
from pillarbox.relay.relays import StoreHealth
from pillarbox.stores.sharing import LEAST_CONNECTIONS, SharedConnections
from pillarbox.tasks import cancel_all

__all__ = ["RelaysProbes", "check_relays_liveness", "check_relays_readiness"]

_MOST_REASONS: Final = 10
"""Stores that are named in one answer of a probe."""
_SAMPLE_INTERVAL: Final = 15.0
"""Seconds between two looks at the tables of all stores."""


def check_relays_liveness(health: RelayHealth) -> ProbeResult:
    """Fail only for what a restart would fix: a loop that hangs."""
    if health.idle_for > 3 * health.lease.total_seconds():
        return ProbeResult(
            False, [f"its loop has not turned for {format_duration(timedelta(seconds=round(health.idle_for)))}"]
        )
    return ProbeResult(True)


def check_relays_readiness(health: RelayHealth, stores: Sequence[StoreHealth], refused: Sequence[str]) -> ProbeResult:
    """Succeed when stores are served. One that is away is a note: to take this relay out would stop the others too.

    If none is served the relay is not ready: a wrong configuration must stop a rollout.
    """
    if health.stopping:
        return ProbeResult(False, ["it is stopping"])
    failed = [f"the store {one.name} is not served: {one.error}" for one in stores if one.state == "failed"]
    starting = sum(one.state == "starting" for one in stores)
    notes = [*_shorten(failed), *_shorten(refused)]
    if any(one.state == "running" for one in stores):
        if starting:
            return ProbeResult(False, [f"{starting} of {len(stores)} stores are starting"], notes)
        return ProbeResult(True, notes=notes)
    return ProbeResult(False, notes or ["it is starting"])


def _shorten(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - _MOST_REASONS
    return [*sentences[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])]


class RelaysProbes:
    """Probes of relays over many stores, from what their process knows: they ask no store.

    For the metrics the tables of all stores are read in turn, every few seconds, over connections of their own.
    """

    def __init__(
        self,
        health: Callable[[], RelayHealth],
        stores: Callable[[], Sequence[StoreHealth]],
        refused: Callable[[], Sequence[str]],
        *,
        addresses: Callable[[], Mapping[str, StoreAddress]],
        on_sample: Callable[[Mapping[str, Status]], None] | None = None,
        monitor: Callable[[MonitorStore, timedelta], Monitor],
    ) -> None:
        self._health = health
        self._stores = stores
        self._refused = refused
        self._addresses = addresses
        self._on_sample = on_sample
        self._build_monitor = monitor
        self._sampling: asyncio.Task[None] | None = None

    async def check_liveness(self) -> ProbeResult:
        return check_relays_liveness(self._health())

    async def check_readiness(self) -> ProbeResult:
        return check_relays_readiness(self._health(), self._stores(), self._refused())

    async def status(self) -> Status | None:
        """Return None: what the tables hold has a label for its store, and comes from another collector."""
        if self._on_sample is not None and self._sampling is None:
            self._sampling = asyncio.create_task(self._sample())
        return None

    async def close(self) -> None:
        if self._sampling is not None:
            await cancel_all([self._sampling])

    async def _sample(self) -> None:
        shared = SharedConnections(connections=LEAST_CONNECTIONS, threads=2)
        try:
            while True:
                with contextlib.suppress(Exception):
                    await self.sample_once(shared)
                await asyncio.sleep(_SAMPLE_INTERVAL)
        finally:
            shared.close()

    async def sample_once(self, shared: SharedConnections) -> None:
        """Read the status of every store, two at a time."""
        lease = self._health().lease

        async def read(_name: str, store: Store) -> Status:
            return await self._build_monitor(store, lease).status()

        answers = await ask_stores(self._addresses(), read, shared=shared, at_once=2, timeout=5)
        if self._on_sample is not None:
            self._on_sample({one.name: one.value for one in answers if one.value is not None})
