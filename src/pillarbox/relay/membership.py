"""Membership of a relay: the heartbeat that keeps its lease, and the rebalancer that takes and releases lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.clock import Clock
from pillarbox.contracts.store import Registry, RelayInfo, RelayStore
from pillarbox.errors import StoreError
from pillarbox.message import PARTITIONS
from pillarbox.relay.lease import Lease, LoopProgress
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.settings import RelaySettings
from pillarbox.telemetry import Telemetry

__all__ = ["Assignment", "Heartbeat", "LeaseLost", "Rebalancer", "plan_assignment"]

_LEAST_PATIENCE: Final = 1.0
_RENEWALS: Final = 3
_RETRIES: Final = 20
"""Renewals per lease, and attempts per lease while they fail."""
_MAX_RECOVERED_CLAIMS: Final = 1_000
"""Claim numbers reserved for one takeover. It needs one per count of strikes; other claims are made meanwhile."""


class LeaseLost(Exception):
    """The relay is no longer in the registry: everything must be dropped."""


class Heartbeat:
    """Renews the lease in its own task, and only while the other loops make progress."""

    def __init__(
        self,
        store: RelayStore,
        lease: Lease,
        *,
        settings: RelaySettings,
        clock: Clock,
        telemetry: Telemetry,
        reachable: Callable[[], list[str]],
        progress: Callable[[], float],
    ) -> None:
        self._store = store
        self._lease = lease
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._reachable = reachable
        self._progress = progress
        self._patience = max(
            settings.lease.total_seconds(), 2 * settings.watch_interval.total_seconds(), _LEAST_PATIENCE
        )
        """Seconds for which a loop may show no progress. It is not stuck while it only waits for its interval."""
        self._is_late = False
        """The last renewal failed."""
        self.is_asleep = False
        """Writers should notify this relay."""

    async def register(self, relay: RelayInfo) -> None:
        """Enter the registry under the id of the lease."""
        sent_at = self._clock.monotonic()
        await self._store.register(relay, lease=self._settings.lease)
        self._lease.extend(sent_at)

    async def run_once(self) -> None:
        """Renew once. Raise `LeaseLost` when the store refuses, or its answer comes too late to be trusted."""
        sent_at = self._clock.monotonic()
        if sent_at - self._progress() > self._patience:
            return  # a loop is stuck: another relay should take the lanes over
        try:
            renewed = await self._store.renew(
                self._lease.relay_id,
                lease=self._settings.lease,
                reachable=self._reachable(),
                asleep=self.is_asleep,
            )
        except StoreError as error:
            self._telemetry.on_store_failed("renewing the lease", error)
            self._is_late = True
            return
        self._is_late = False
        # Loops that saw the lease at its end have given up what they were doing, so a late renewal cannot revive it.
        if not renewed or not self._lease.may_act(self._clock.monotonic()):
            raise LeaseLost("the lease had run out before it was renewed")
        self._lease.extend(sent_at)

    async def run(self) -> None:
        """Renew three times per lease. Raise `LeaseLost` when the lease ran out for lack of renewals.

        A renewal that failed is repeated soon: its connection was replaced, or will be.
        """
        lease = self._settings.lease.total_seconds()
        while True:
            await asyncio.sleep(lease / (_RETRIES if self._is_late else _RENEWALS))
            await self.run_once()
            if not self._lease.may_act(self._clock.monotonic()):
                raise LeaseLost("the lease ran out")


class Rebalancer:
    """Reads the registry and moves lanes until every relay has its share. Also follows pauses."""

    def __init__(
        self,
        store: RelayStore,
        lease: Lease,
        pipelines: Mapping[str, Pipeline],
        *,
        settings: RelaySettings,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._lease = lease
        self._pipelines = pipelines
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self.progress = LoopProgress(clock)

    async def run(self) -> None:
        while True:
            with self.progress.wait_for_store():
                try:
                    await self.run_once()
                except StoreError as error:
                    self._telemetry.on_store_failed("watching the registry", error)
            await asyncio.sleep(self._settings.watch_interval.total_seconds())

    async def run_once(self) -> None:
        """Follow pauses, hand surplus lanes over, take free ones."""
        await self._follow_pauses()
        owned = {name: frozenset(pipeline.state.epochs) for name, pipeline in self._pipelines.items()}
        registry = await self._store.registry(lease=self._settings.lease)
        for name, pipeline in self._pipelines.items():
            await self._rebalance(pipeline, registry, owned_before=owned[name])

    async def _follow_pauses(self) -> None:
        paused = {pause.destination: pause for pause in await self._store.pauses()}
        for name, pipeline in self._pipelines.items():
            if (pause := paused.get(name)) is not None:
                pipeline.state.pause(f"{pause.reason} (by {pause.by})")
            else:
                pipeline.state.resume()

    async def _rebalance(self, pipeline: Pipeline, registry: Registry, *, owned_before: frozenset[int]) -> None:
        """Move towards an even share. A lane owned when the registry was read may have been released since."""
        assignment = plan_assignment(
            registry,
            relay_id=self._lease.relay_id,
            destination=pipeline.state.name,
            owned=pipeline.lanes,
            max_lanes=self._settings.max_lanes,
        )
        if assignment.release:
            pipeline.revoke(assignment.release)
        take = sorted(assignment.take - owned_before - pipeline.state.epochs.keys())
        # A relay that stops would hold the lanes and serve none of them until it has drained.
        if take and not pipeline.state.is_stopping and self._lease.may_act(self._clock.monotonic()):
            await self._take(pipeline, take)

    async def _take(self, pipeline: Pipeline, partitions: list[int]) -> None:
        name = pipeline.state.name
        lanes, recovered = await self._store.take(
            self._lease.relay_id,
            name,
            partitions=partitions,
            lease=self._settings.lease,
            claim_number=self._lease.reserve_claim_numbers(_MAX_RECOVERED_CLAIMS),
        )
        if not lanes:
            return
        taken = [lane.partition for lane in lanes]
        blocked = await self._store.blocked_keys(name, partitions=taken)
        pipeline.grant(lanes, recovered, blocked)
        self._telemetry.on_lanes_taken(name, taken, inherited=sum(len(part.messages) for part in recovered))


class Assignment(msgspec.Struct, frozen=True):
    """Lanes of one destination that a relay should take, and those it should release."""

    take: frozenset[int] = frozenset()
    release: frozenset[int] = frozenset()


def plan_assignment(
    registry: Registry, *, relay_id: UUID, destination: str, owned: Collection[int], max_lanes: int | None = None
) -> Assignment:
    """Plan the moves of one relay so that the relays which can reach the destination share it evenly.

    `owned` are the lanes that the relay serves, which may be ahead of the registry. No relay takes a lane that a live
    one owns: the owner hands surplus over by itself, so two relays never pull at one lane. A lane that is the relay's
    own in the registry but not in `owned`, because the answer to its taking was lost, is taken again, even as surplus:
    nobody else could free it.
    """
    target = _share_lanes(registry, destination, max_lanes).get(relay_id, 0)
    mine, owners = frozenset(owned), registry.owners.get(destination, {})
    astray = frozenset(partition for partition, owner in owners.items() if owner == relay_id) - mine
    if len(mine) > target:
        surplus = sorted(mine, reverse=True)[: len(mine) - target]
        return Assignment(take=astray, release=frozenset(surplus))
    free = [partition for partition in range(PARTITIONS) if partition not in owners and partition not in mine]
    # Each relay begins at another lane, so that relays which start together do not try to take the same ones.
    start = relay_id.int % len(free) if free else 0
    room = max(0, target - len(mine) - len(astray))
    return Assignment(take=astray.union((free[start:] + free[:start])[:room]))


def _share_lanes(registry: Registry, destination: str, max_lanes: int | None) -> Mapping[UUID, int]:
    """Return how many lanes each relay should own."""
    serving = [relay for relay in registry.relays if destination in relay.destinations]
    able = [relay for relay in serving if destination in relay.reachable] or serving
    ids = sorted(relay.relay_id for relay in able)
    share, rest = divmod(PARTITIONS, len(ids)) if ids else (0, 0)
    even = {relay_id: share + (index < rest) for index, relay_id in enumerate(ids)}
    return even if max_lanes is None else {relay_id: min(lanes, max_lanes) for relay_id, lanes in even.items()}
