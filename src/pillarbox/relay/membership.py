"""Membership of a relay: the heartbeat that keeps its lease, and the rebalancer that takes and releases lanes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.clock import Clock
from pillarbox.contracts.store import Action, Registry, RelayInfo, RelayStore
from pillarbox.errors import StoreError
from pillarbox.message import PARTITIONS
from pillarbox.relay.journal import Note
from pillarbox.relay.lease import Lease, LoopProgress
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.settings import RelaySettings
from pillarbox.telemetry import Telemetry

__all__ = ["Assignment", "Heartbeat", "LeaseLost", "Rebalancer", "compute_targets", "plan_assignment"]

_LEAST_PATIENCE: Final = 1.0
_TAKEOVERS: Final = 4
"""Takeovers that run side by side: as many as a store has connections by default."""
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
    """Reads the registry and moves lanes until every relay has its share. Also follows what operators ask."""

    def __init__(
        self,
        store: RelayStore,
        lease: Lease,
        pipelines: Mapping[str, Pipeline],
        *,
        settings: RelaySettings,
        clock: Clock,
        telemetry: Telemetry,
        note: Note | None = None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._note = note
        self._probes: dict[str, datetime | None] | None = None
        """When a person last asked to try each destination at once; None before the first look."""
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
        """Follow pauses and probes, hand surplus lanes over, take free ones."""
        await self._follow_requests()
        owned = {name: frozenset(pipeline.state.epochs) for name, pipeline in self._pipelines.items()}
        registry = await self._store.registry(lease=self._settings.lease)
        targets = compute_targets(registry, self._lease.relay_id, max_lanes=self._settings.max_lanes)
        slots = asyncio.Semaphore(_TAKEOVERS)

        async def rebalance(name: str, pipeline: Pipeline) -> None:
            async with slots:
                await self._rebalance(pipeline, registry, target=targets.get(name, 0), owned_before=owned[name])

        # All are waited for: a takeover that is cut off would leave lanes behind that nobody serves for a while.
        ended = await asyncio.gather(
            *(rebalance(name, pipeline) for name, pipeline in self._pipelines.items()), return_exceptions=True
        )
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _follow_requests(self) -> None:
        requests = {request.destination: request for request in await self._store.requests()}
        probes = {name: request.probe_at for name, request in requests.items()}
        # What was asked for before this relay began was meant for others.
        before, self._probes = probes if self._probes is None else self._probes, probes
        for name, pipeline in self._pipelines.items():
            request = requests.get(name)
            if request is not None and request.pause is not None:
                pipeline.state.pause(f"{request.pause.reason} (by {request.pause.by})")
            else:
                pipeline.state.resume()
            if request is not None and request.probe_at != before.get(name):
                pipeline.state.probe_now()

    async def _rebalance(
        self, pipeline: Pipeline, registry: Registry, *, target: int, owned_before: frozenset[int]
    ) -> None:
        """Move towards an even share. A lane owned when the registry was read may have been released since."""
        owners = registry.owners.get(pipeline.state.name, {})
        assignment = plan_assignment(owners, relay_id=self._lease.relay_id, owned=pipeline.lanes, target=target)
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
        dead = Counter(lane.taken_from for lane in lanes if lane.taken_from is not None)
        if dead and self._note is not None:
            self._note(Action.TOOK_OVER, name, _describe_takeover(dead))


def _describe_takeover(dead: Mapping[UUID, int]) -> str:
    """Say how many lanes were taken from which relays: `3 lanes of relay …`."""
    count = sum(dead.values())
    lanes = "1 lane" if count == 1 else f"{count} lanes"
    return f"{lanes} of relay {', '.join(sorted(map(str, dead)))}"


class Assignment(msgspec.Struct, frozen=True):
    """Lanes of one destination that a relay should take, and those it should release."""

    take: frozenset[int] = frozenset()
    release: frozenset[int] = frozenset()


def compute_targets(registry: Registry, relay_id: UUID, *, max_lanes: int | None = None) -> Mapping[str, int]:
    """Return how many lanes of each of its destinations a relay should own.

    The relays that can reach a destination share it evenly; if none can, all that serve it. One pass over the
    registry, however many relays and destinations there are.
    """
    me = next((relay for relay in registry.relays if relay.relay_id == relay_id), None)
    mine = frozenset(me.destinations) if me is not None else frozenset[str]()
    # Relays of one service are alike, and there are few services: what they serve is looked at once.
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[UUID]] = {}
    for relay in registry.relays:
        alike.setdefault((tuple(relay.destinations), tuple(relay.reachable)), []).append(relay.relay_id)
    serving: dict[str, list[UUID]] = {name: [] for name in mine}
    able: dict[str, list[UUID]] = {name: [] for name in mine}
    for (destinations, reachable), relay_ids in alike.items():
        served = mine.intersection(destinations)
        for name in served:
            serving[name] += relay_ids
        for name in served.intersection(reachable):
            able[name] += relay_ids
    shares = {name: _compute_share(able[name] or serving[name], relay_id) for name in mine}
    return shares if max_lanes is None else {name: min(share, max_lanes) for name, share in shares.items()}


def _compute_share(relays: Sequence[UUID], relay_id: UUID) -> int:
    """Return how many lanes one of these relays gets: an even share, and the first ones one more for the rest."""
    if relay_id not in relays:
        return 0
    share, rest = divmod(PARTITIONS, len(relays))
    return share + (sum(other < relay_id for other in relays) < rest)


def plan_assignment(owners: Mapping[int, UUID], *, relay_id: UUID, owned: Collection[int], target: int) -> Assignment:
    """Plan the moves of one relay towards so many lanes of a destination, whose live owners are given.

    `owned` are the lanes that the relay serves, which may be ahead of the registry. No relay takes a lane that a live
    one owns: the owner hands surplus over by itself, so two relays never pull at one lane. A lane that is the relay's
    own in the registry but not in `owned`, because the answer to its taking was lost, is taken again, even as surplus:
    nobody else could free it.
    """
    mine = frozenset(owned)
    astray = frozenset(partition for partition, owner in owners.items() if owner == relay_id) - mine
    if len(mine) > target:
        surplus = sorted(mine, reverse=True)[: len(mine) - target]
        return Assignment(take=astray, release=frozenset(surplus))
    free = [partition for partition in range(PARTITIONS) if partition not in owners and partition not in mine]
    # Each relay begins at another lane, so that relays which start together do not try to take the same ones.
    start = relay_id.int % len(free) if free else 0
    room = max(0, target - len(mine) - len(astray))
    return Assignment(take=astray.union((free[start:] + free[:start])[:room]))
