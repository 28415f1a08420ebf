"""Who owns what: the heartbeat, the watch over the registry, taking lanes over and handing them on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from pillarbox.clock import Clock
from pillarbox.errors import StoreError
from pillarbox.protocols import Registry, RelayInfo, Store
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.settings import RelaySettings
from pillarbox.relay.shares import moves
from pillarbox.relay.standing import Standing
from pillarbox.telemetry import Telemetry

__all__ = ["Heartbeat", "LeaseLost", "Watch"]

_LEAST_PATIENCE: Final = 1.0
_MOST_INHERITED: Final = 1_000
"""Numbers set aside for the claims that a takeover makes, one per count of strikes: others are claimed meanwhile."""


class LeaseLost(Exception):
    """The relay is no longer in the registry: everything must be dropped."""


class Heartbeat:
    """Renews the lease, as a task of its own that work cannot starve, and only while the work makes progress."""

    def __init__(
        self,
        store: Store,
        standing: Standing,
        *,
        settings: RelaySettings,
        clock: Clock,
        telemetry: Telemetry,
        reachable: Callable[[], list[str]],
        progress: Callable[[], float],
    ) -> None:
        self._store = store
        self._standing = standing
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._reachable = reachable
        self._progress = progress
        lease, watch = settings.lease.total_seconds(), settings.watch_interval.total_seconds()
        self._patience = max(lease, 2 * watch, _LEAST_PATIENCE)
        """How long the work may show no progress: a loop that only waits its time is not stuck."""
        self.is_asleep = False
        """Whether writers are asked to wake this relay."""

    async def register(self, relay: RelayInfo) -> None:
        """Enter the registry under the standing's id."""
        sent_at = self._clock.monotonic()
        await self._store.register(relay, lease=self._settings.lease)
        self._standing.renewed(sent_at)

    async def run_once(self) -> None:
        """One renewal. `LeaseLost` when it was refused, or came too late to be trusted."""
        now = self._clock.monotonic()
        if now - self._progress() > self._patience:
            return
        try:
            renewed = await self._store.renew(
                self._standing.relay_id,
                lease=self._settings.lease,
                reachable=self._reachable(),
                asleep=self.is_asleep,
            )
        except StoreError as error:
            self._telemetry.store_failed("renewing the lease", error)
            return
        # Who has seen the lease at its end has given up what it was doing: there is no way back.
        if not renewed or not self._standing.may_act(self._clock.monotonic()):
            raise LeaseLost("the lease had run out before it was renewed")
        self._standing.renewed(now)

    async def run(self) -> None:
        """Renew three times a lease, and notice when the lease ran out for lack of it."""
        while True:
            await asyncio.sleep(self._settings.lease.total_seconds() / 3)
            await self.run_once()
            if not self._standing.may_act(self._clock.monotonic()):
                raise LeaseLost("the lease ran out")


class Watch:
    """Looks at the registry and moves lanes until every relay has its share."""

    def __init__(
        self,
        store: Store,
        standing: Standing,
        pipelines: Mapping[str, Pipeline],
        *,
        settings: RelaySettings,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._standing = standing
        self._pipelines = pipelines
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self.beat = clock.monotonic()
        """When the registry was last looked at, or tried to."""

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except StoreError as error:
                self._telemetry.store_failed("watching the registry", error)
            self.beat = self._clock.monotonic()
            await asyncio.sleep(self._settings.watch_interval.total_seconds())

    async def run_once(self) -> None:
        """One look: pauses, surplus lanes, free lanes."""
        await self._see_pauses()
        held = {name: frozenset(pipeline.work.epochs) for name, pipeline in self._pipelines.items()}
        registry = await self._store.registry(lease=self._settings.lease)
        for name, pipeline in self._pipelines.items():
            await self._share(pipeline, registry, held=held[name])
            self.beat = self._clock.monotonic()

    async def _see_pauses(self) -> None:
        before = [name for name, pipeline in self._pipelines.items() if pipeline.work.pause_reason is not None]
        paused = {pause.destination: pause for pause in await self._store.pauses()}
        for name, pipeline in self._pipelines.items():
            if (pause := paused.get(name)) is not None:
                pipeline.work.pause(f"{pause.reason} (by {pause.by})")
            elif name in before and not pipeline.work.flooded:
                pipeline.work.resume()

    async def _share(self, pipeline: Pipeline, registry: Registry, *, held: frozenset[int]) -> None:
        """Move towards an even share. What was `held` when the registry was read may have been handed over since."""
        name = pipeline.work.name
        wanted = moves(
            registry,
            me=self._standing.relay_id,
            destination=name,
            mine=pipeline.lanes,
            max_lanes=self._settings.max_lanes,
        )
        if wanted.release:
            pipeline.revoke(wanted.release)
        take = sorted(wanted.take - held - pipeline.work.epochs.keys())
        if take and self._standing.may_act(self._clock.monotonic()):
            await self._take(pipeline, take)

    async def _take(self, pipeline: Pipeline, partitions: list[int]) -> None:
        name, number = pipeline.work.name, self._standing.next_claims(_MOST_INHERITED)
        lanes, inherited = await self._store.take(
            self._standing.relay_id, name, partitions=partitions, lease=self._settings.lease, claim_number=number
        )
        if not lanes:
            return
        taken = [lane.partition for lane in lanes]
        blocked = await self._store.blocked_keys(name, partitions=taken)
        pipeline.grant(lanes, inherited, blocked)
        count = sum(len(part.messages) for part in inherited)
        self._telemetry.lanes_taken(name, taken, inherited=count)
