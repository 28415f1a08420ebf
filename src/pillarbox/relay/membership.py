"""Membership of a relay: the heartbeat that keeps its lease, and the rebalancer that takes and releases lanes."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from pillarbox.clock import Clock
from pillarbox.contracts.store import Action, Registry, RegistryDigestStore, RelayInfo, RelayStore
from pillarbox.errors import StoreError
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION
from pillarbox.relay.journal import Note
from pillarbox.relay.lease import Lease, LoopProgress, StoreFailures
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.settings import RelaySettings
from pillarbox.tasks import check_cancelled
from pillarbox.telemetry import Telemetry

__all__ = [
    "Assignment",
    "Heartbeat",
    "LeaseLost",
    "Rebalancer",
    "compute_spread",
    "compute_targets",
    "plan_assignment",
]

_LEAST_PATIENCE: Final = 1.0
_TAKEOVERS: Final = 4
"""Takeovers that run side by side: as many as a store has connections by default."""
_RENEWALS: Final = 3
_RETRIES: Final = 20
"""Renewals per lease, and attempts per lease while they fail."""
_JITTER: Final = 0.5
"""Part of a wait that is drawn. Relays that started together, or waited together for a database that was away, would
otherwise ask together for ever; with less, they would for a long time."""
_CROWD: Final = 500
"""Live relays above which each looks at the registry more seldom, so that all together do not look more often."""
_LONGEST_WATCH: Final = 1.1
"""Average seconds between two looks at the registry, however many relays there are: a takeover begins soon after."""
_TAKEOVERS_PER_SECOND: Final = 4_000
"""Takeovers of all relays together. Where more are due at once, relays wait a drawn time before they begin."""
_SHORTEST_SPREAD: Final = 0.05
"""Seconds; less is not worth a second look at the registry."""
_LONGEST_SPREAD: Final = 0.25
"""Part of the lease over which takeovers are spread at most: nobody serves these lanes meanwhile."""
_LEASES_TO_READ: Final = 6
"""Leases after which the registry is read though its digest is the same."""
_RING: Final = 2**128
"""Ids of relays are on a ring of this length."""
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
        dice: Random | None = None,
    ) -> None:
        self._store = store
        self._lease = lease
        self._dice = dice or Random()  # noqa: S311 - no secret
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
        self._telemetry.on_store_answered()

    async def run(self) -> None:
        """Renew at least three times per lease. Raise `LeaseLost` when the lease ran out for lack of renewals.

        A renewal that failed is repeated soon: its connection was replaced, or will be.
        """
        lease = self._settings.lease.total_seconds()
        while True:
            check_cancelled()
            wait = lease / (_RETRIES if self._is_late else _RENEWALS)
            await asyncio.sleep(wait * (1 - _JITTER * self._dice.random()))
            await self.run_once()
            if not self._lease.may_act(self._clock.monotonic()):
                raise LeaseLost("the lease ran out")


class _KnownRegistry:
    """The registry as it was read last, and what a relay made of it."""

    def __init__(
        self,
        digest: object = None,
        read_at: float = 0.0,
        registry: Registry | None = None,
        targets: Mapping[str, int] | None = None,
    ) -> None:
        self.digest = digest
        self.read_at = read_at
        self.registry = registry
        self.targets = targets or {}
        self.free_since: dict[str, dict[int, float]] = {}
        """Since when the lanes of each destination that nobody owns are free, as this relay saw it."""
        self.adopted: dict[str, int] = {}
        """Lanes above its share that it keeps, because nobody else took them."""
        self.settled: Mapping[str, frozenset[int]] | None = None
        """Lanes that the relay owned when there was nothing to move; None if there was."""

    @property
    def relays(self) -> int:
        return 0 if self.registry is None else len(self.registry.relays)


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
        dice: Random | None = None,
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
        self._dice = dice or Random()  # noqa: S311 - no secret
        self._known = _KnownRegistry()
        self.failures: Final = StoreFailures(clock)
        """Of watching the registry."""
        self.progress = LoopProgress(clock)

    async def run(self) -> None:
        is_first = True
        while True:
            check_cancelled()
            with self.progress.wait_for_store():
                try:
                    await self.run_once()
                    self.failures.end()
                except StoreError as error:
                    self._telemetry.on_store_failed("watching the registry", error)
                    self.failures.note(error)
            await asyncio.sleep(self._draw_wait(is_first=is_first))
            is_first = False

    def _draw_wait(self, *, is_first: bool) -> float:
        """Draw the time until the next look: longer where very many relays look, and never the same for all.

        After the first look it may be any part of that, so that relays which started together look at different times.
        """
        every = self._settings.watch_interval.total_seconds()
        crowd = max(1.0, self._known.relays / _CROWD)
        average = max(every, min(every * crowd, _LONGEST_WATCH))
        return average * (self._dice.random() if is_first else 1 + _JITTER * (self._dice.random() - 0.5))

    async def run_once(self) -> None:
        """Follow pauses and probes, hand surplus lanes over, take free ones."""
        await self._follow_requests()
        owned = {name: frozenset(pipeline.state.epochs) for name, pipeline in self._pipelines.items()}
        found = await self._read_registry(owned)
        if found is None:
            return
        registry, targets = await self._await_turn(found, owned)
        slots = asyncio.Semaphore(_TAKEOVERS)

        async def rebalance(name: str, pipeline: Pipeline) -> bool:
            async with slots:
                return await self._rebalance(pipeline, registry, target=targets.get(name, 0), owned_before=owned[name])

        # All are waited for: a takeover that is cut off would leave lanes behind that nobody serves for a while.
        ended = await asyncio.gather(
            *(rebalance(name, pipeline) for name, pipeline in self._pipelines.items()), return_exceptions=True
        )
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        if not any(ended):
            self._known.settled = owned

    async def _read_registry(self, owned: Mapping[str, frozenset[int]]) -> tuple[Registry, Mapping[str, int]] | None:
        """Return the registry and this relay's shares; None if nothing has changed since all was as it should be.

        A digest says whether it has changed. Now and then it is read all the same.
        """
        known, now = self._known, self._clock.monotonic()
        digest: object = None
        if isinstance(self._store, RegistryDigestStore):
            # Before the registry: what changes between the two is seen at the next look.
            digest = await self._store.registry_digest(lease=self._settings.lease)
            is_same = digest == known.digest and now < known.read_at + _LEASES_TO_READ * self._lease.duration
            if is_same and owned == known.settled:
                return None
            if is_same and known.registry is not None:
                return known.registry, known.targets
        registry = await self._store.registry(lease=self._settings.lease)
        targets = compute_targets(registry, self._lease.relay_id, max_lanes=self._settings.max_lanes)
        before, self._known = known, _KnownRegistry(digest, now, registry, targets)
        self._known.free_since = before.free_since
        if before.targets == targets:
            self._known.adopted = before.adopted
        return registry, targets

    async def _await_turn(
        self, found: tuple[Registry, Mapping[str, int]], owned: Mapping[str, frozenset[int]]
    ) -> tuple[Registry, Mapping[str, int]]:
        """Wait for a drawn part of the time over which all relays spread their takeovers; return the registry then."""
        turn, waited = self._dice.random(), 0.0
        # The first look of a relay among many that start together does not show all of them yet.
        while (wait := turn * compute_spread(found[0], lease=self._lease.duration) - waited) > 0:
            await asyncio.sleep(wait)
            waited += wait
            found = await self._read_registry(owned) or found
        return found

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
    ) -> bool:
        """Move towards an even share; return whether there was something to move.

        A lane owned when the registry was read may have been released since.
        """
        owners = registry.owners.get(pipeline.state.name, {})
        if target:
            target = self._adopt_orphans(pipeline, owners, target=target)
        assignment = plan_assignment(owners, relay_id=self._lease.relay_id, owned=pipeline.lanes, target=target)
        if assignment.release:
            pipeline.revoke(assignment.release)
        take = sorted(assignment.take - owned_before - pipeline.state.epochs.keys())
        # A relay that stops would hold the lanes and serve none of them until it has drained.
        if take and not pipeline.state.is_stopping and self._lease.may_act(self._clock.monotonic()):
            await self._take(pipeline, take)
        # With lanes that are free it is not settled either: they may become orphans.
        return assignment != Assignment() or len(owned_before) != target or len(owners) < PARTITIONS

    def _adopt_orphans(self, pipeline: Pipeline, owners: Mapping[int, UUID], *, target: int) -> int:
        """Return the target, raised by lanes that were free for a whole lease.

        Whose share they are does not take them: it counts shares differently, as an older release does, or hangs. What
        was adopted is kept until the relays are others.
        """
        name, now = pipeline.state.name, self._clock.monotonic()
        free = {partition for partition in range(PARTITIONS) if partition not in owners} - pipeline.lanes.keys()
        before = self._known.free_since.get(name, {})
        since = self._known.free_since[name] = {partition: before.get(partition, now) for partition in free}
        orphans = sum(now - at >= self._settings.lease.total_seconds() for at in since.values())
        adopted = self._known.adopted[name] = min(
            self._known.adopted.get(name, 0), max(0, len(pipeline.lanes) - target)
        ) + orphans  # fmt: skip
        return _limit_lanes(name, target + adopted, max_lanes=self._settings.max_lanes)

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


def compute_spread(registry: Registry, *, lease: float) -> float:
    """Return the seconds over which relays should spread their takeovers; 0 if few are due.

    A thousand relays that start at once, or that all lost their leases while the database was away, have thousands of
    lanes to take.
    """
    served = [frozenset(relay.destinations) for relay in registry.relays]
    free = sum(PARTITIONS - len(registry.owners.get(name, {})) for name in frozenset().union(*served))
    # One takeover takes all lanes of a destination that a relay wants.
    takeovers = min(free, sum(len(destinations) for destinations in served))
    seconds = min(takeovers / _TAKEOVERS_PER_SECOND, _LONGEST_SPREAD * lease)
    return seconds if seconds >= _SHORTEST_SPREAD else 0.0


def compute_targets(registry: Registry, relay_id: UUID, *, max_lanes: int | None = None) -> Mapping[str, int]:
    """Return how many lanes of each of its destinations a relay should own.

    The relays that can reach a destination share it evenly; if none can, all that serve it. One pass over the
    registry, however many relays and destinations there are.
    """
    me = next((relay for relay in registry.relays if relay.relay_id == relay_id), None)
    mine = frozenset(me.destinations) if me is not None else frozenset[str]()
    # Relays of one service are alike, and there are few services: what they serve is looked at once.
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for relay in registry.relays:
        alike.setdefault((tuple(relay.destinations), tuple(relay.reachable)), []).append(relay.relay_id.int)
    serving: dict[str, list[_Peers]] = {name: [] for name in mine}
    able: dict[str, list[_Peers]] = {name: [] for name in mine}
    for (destinations, reachable), numbers in alike.items():
        peers = _Peers(sorted(numbers), relay_id.int in numbers)
        served = mine.intersection(destinations)
        for name in served:
            serving[name].append(peers)
        for name in served.intersection(reachable):
            able[name].append(peers)
    starts = _spread_starts({name for destinations, _ in alike for name in destinations})
    shares = {name: _compute_share(able[name] or serving[name], relay_id.int, start=starts[name]) for name in mine}
    return {name: _limit_lanes(name, share, max_lanes=max_lanes) for name, share in shares.items()}


def _limit_lanes(destination: str, lanes: int, *, max_lanes: int | None) -> int:
    """Limit a number of lanes, except those of messages that no route takes: left open, nothing would show them."""
    return lanes if max_lanes is None or destination == SKIPPED_DESTINATION else min(lanes, max_lanes)


class _Peers(NamedTuple):
    """Relays that are alike."""

    numbers: Sequence[int]
    """Their ids, sorted."""
    has_me: bool

    def count_between(self, start: int, end: int) -> int:
        """Count those from `start` up to `end` on the ring of ids, without `end`."""
        below_start, below_end = bisect_left(self.numbers, start), bisect_left(self.numbers, end)
        return below_end - below_start + (len(self.numbers) if end < start else 0)


def _spread_starts(names: Collection[str]) -> Mapping[str, int]:
    """Return the place on the ring of relay ids where each destination begins to give its odd lanes away.

    They are far apart. If all began at the same relay, that one would get an odd lane of every destination; with more
    relays than lanes, a few would get everything, and the others nothing.
    """
    return {name: place * _RING // len(names) for place, name in enumerate(sorted(names))}


def _compute_share(groups: Sequence[_Peers], me: int, *, start: int) -> int:
    """Return how many lanes one of these relays gets: an even share, and the first ones one more for the rest."""
    if not any(peers.has_me for peers in groups):
        return 0
    share, rest = divmod(PARTITIONS, sum(len(peers.numbers) for peers in groups))
    return share + (sum(peers.count_between(start, me) for peers in groups) < rest)


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
