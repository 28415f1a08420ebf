"""A fleet of relays over one simulated database. Each relay has the real `Heartbeat`, `Rebalancer` and `Lease`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch
from uuid import UUID

from pillarbox.contracts.store import DestinationRequest, Fence, Lane, RecoveredClaim, Registry, RelayInfo, RelayStore
from pillarbox.errors import StoreUnavailable
from pillarbox.message import PARTITIONS
from pillarbox.relay.lease import Lease
from pillarbox.relay.membership import Heartbeat, LeaseLost, Rebalancer
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.settings import RelaySettings
from pillarbox.telemetry import Telemetry
from proof.simulation.virtual_time import EPOCH, ProcessClock, ProcessLoop, Timeline

__all__ = ["LEASE", "SAMPLED_EVERY", "Fleet", "Node", "SimulatedDatabase"]

LEASE: Final = RelaySettings().lease.total_seconds()
_ANSWER: Final = (0.001, 0.010)
"""Seconds that a statement takes, at least and at most."""
_PATIENCE: Final = LEASE / 3
"""Seconds after which a store gives an answer up, as `PostgresStore` does under a lease."""
_SNAPSHOT_EVERY: Final = 0.02
SAMPLED_EVERY: Final = 0.2
_DRAIN: Final = 0.05
"""Seconds that a lane needs until it can be released."""

_RESTART: Final = 1.5
"""Seconds that a relay is away when it is restarted."""

LaneName = tuple[str, int]


class SimulatedDatabase:
    """Relays and lanes as the tables hold them. One statement at a time, each at one moment."""

    def __init__(self, timeline: Timeline, dice: Random) -> None:
        self.timeline = timeline
        self.statements: list[tuple[float, str]] = []
        """Time and kind of every statement."""
        self.cut_off: set[int] = set()
        """Relays that cannot reach it."""
        self.paused_until = 0.0
        self._dice = dice
        self._relays: dict[UUID, tuple[float, RelayInfo]] = {}
        self._owners: dict[LaneName, UUID] = {}
        self._epochs: Counter[LaneName] = Counter()
        self._version = 0
        self._snapshot_at = -1.0
        self._snapshot: tuple[int, Registry] | None = None

    async def answer(self, node: int, kind: str) -> None:
        """Let the statement arrive. Raise `StoreUnavailable` if it does not."""
        await asyncio.sleep(self._dice.uniform(*_ANSWER))
        if node in self.cut_off:
            await asyncio.sleep(_PATIENCE)
            raise StoreUnavailable("the network is cut")
        if (wait := self.paused_until - self.timeline.now) > 0:
            await asyncio.sleep(min(wait, _PATIENCE))
            if wait > _PATIENCE:
                raise StoreUnavailable("no answer in time")
            await asyncio.sleep(self._dice.random() * 0.01)
        self.statements.append((self.timeline.now, kind))

    # --- the tables ---

    def register(self, relay: RelayInfo, lease: float) -> None:
        self._relays[relay.relay_id] = (self.timeline.now + lease, relay)
        self._version += 1

    def renew(self, relay_id: UUID, lease: float) -> bool:
        found = self._relays.get(relay_id)
        if found is None or found[0] <= self.timeline.now:
            return False
        self._relays[relay_id] = (self.timeline.now + lease, found[1])
        return True

    def leave(self, relay_id: UUID) -> None:
        self._relays.pop(relay_id, None)
        for lane in [lane for lane, owner in self._owners.items() if owner == relay_id]:
            del self._owners[lane]
        self._version += 1

    def release(self, fence: Fence) -> None:
        for partition, epoch in fence.epochs.items():
            lane = (fence.destination, partition)
            if self._owners.get(lane) == fence.relay_id and self._epochs[lane] == epoch:
                del self._owners[lane]
        self._version += 1

    def take(self, relay_id: UUID, destination: str, partitions: Sequence[int]) -> list[Lane]:
        if relay_id not in self._relays:
            return []
        taken = []
        for partition in partitions:
            lane, owner = (destination, partition), self._owners.get((destination, partition))
            if owner is not None and owner != relay_id and self._is_live(owner):
                continue
            self._owners[lane] = relay_id
            self._epochs[lane] += 1
            taken.append(Lane(destination, partition, self._epochs[lane], 0, owner))
        self._version += 1
        return taken

    def _is_live(self, relay_id: UUID) -> bool:
        found = self._relays.get(relay_id)
        return found is not None and found[0] > self.timeline.now

    def digest(self) -> int:
        return self._refresh()[0]

    def registry(self) -> Registry:
        return self._refresh()[1]

    def _refresh(self) -> tuple[int, Registry]:
        """Return the registry and its version, as they were up to 20 ms ago: statements take as long."""
        if self._snapshot is not None and self.timeline.now < self._snapshot_at + _SNAPSHOT_EVERY:
            return self._snapshot
        self._snapshot_at = self.timeline.now
        for relay_id in [one for one, (until, _) in self._relays.items() if until <= self.timeline.now]:
            del self._relays[relay_id]
            self._version += 1
        if self._snapshot is None or self._snapshot[0] != self._version:
            owners: dict[str, dict[int, UUID]] = {}
            for (destination, partition), owner in self._owners.items():
                if owner in self._relays:
                    owners.setdefault(destination, {})[partition] = owner
            relays = [relay for _, (_, relay) in sorted(self._relays.items())]
            self._snapshot = (self._version, Registry(EPOCH, relays, owners))
        return self._snapshot


class _NodeStore:
    """The database as one relay reaches it."""

    def __init__(self, database: SimulatedDatabase, node: int) -> None:
        self._database = database
        self._node = node

    async def _run(self, kind: str, action: Any) -> Any:
        await self._database.answer(self._node, kind)
        return action()

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        await self._run("register", lambda: self._database.register(relay, lease.total_seconds()))

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        renewed: bool = await self._run("renew", lambda: self._database.renew(relay_id, lease.total_seconds()))
        return renewed

    async def requests(self) -> Sequence[DestinationRequest]:
        await self._run("requests", lambda: None)
        return []

    async def registry_digest(self, *, lease: timedelta) -> object:
        return await self._run("digest", self._database.digest)

    async def registry(self, *, lease: timedelta) -> Registry:
        found: Registry = await self._run("registry", self._database.registry)
        return found

    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        return await self._run("take", lambda: self._database.take(relay_id, destination, partitions)), []

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[Any]:
        await self._run("blocked_keys", lambda: None)
        return []

    async def release(self, fence: Fence) -> None:
        await self._run("release", lambda: self._database.release(fence))

    async def leave(self, relay_id: UUID) -> None:
        await self._run("leave", lambda: self._database.leave(relay_id))


class _State:
    """What a rebalancer sees of a destination."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epochs: dict[int, int] = {}
        self.is_stopping = False

    def pause(self, reason: str) -> None: ...

    def resume(self) -> None: ...

    def probe_now(self) -> None: ...


class _Lanes:
    """In place of a pipeline: serves lanes, and releases those that are revoked a moment later."""

    def __init__(self, node: Node, lease: Lease, name: str) -> None:
        self.state = _State(name)
        self._node = node
        self._lease = lease
        self._revoked: set[int] = set()

    @property
    def lanes(self) -> Mapping[int, int]:
        return {lane: epoch for lane, epoch in self.state.epochs.items() if lane not in self._revoked}

    def grant(self, lanes: Iterable[Lane], recovered: object, blocked: object) -> None:
        for lane in lanes:
            self._node.fleet.note_grant(self._node, (lane.destination, lane.partition))
            self.state.epochs[lane.partition] = lane.epoch

    def revoke(self, partitions: Iterable[int]) -> None:
        new = [partition for partition in partitions if partition not in self._revoked]
        self._revoked.update(new)
        if new:
            self._node.add_task(self._release(new))

    async def _release(self, partitions: Sequence[int]) -> None:
        await asyncio.sleep(_DRAIN)
        # It stops to serve them before others may: then the statement is sent.
        epochs = {partition: self.state.epochs.pop(partition) for partition in partitions}
        while True:
            try:
                await self._node.store.release(Fence(self._lease.relay_id, self.state.name, epochs))
            except StoreUnavailable:
                await asyncio.sleep(0.5)
            else:
                break
        self._revoked.difference_update(partitions)


class Node:
    """A machine that runs one relay after the other: again after a lost lease, and after a restart."""

    def __init__(self, fleet: Fleet, number: int, destinations: Sequence[str]) -> None:
        self.fleet = fleet
        self.number = number
        self.store = _NodeStore(fleet.database, number)
        self.lease: Lease | None = None
        self.lanes: dict[str, _Lanes] = {}
        self.takeovers = 0
        self._destinations = destinations
        self._dice = Random(fleet.dice.random())
        self._clock = ProcessClock(
            fleet.timeline, rate=1 + self._dice.uniform(-1e-4, 1e-4), offset=self._dice.uniform(0, 1000)
        )
        self._loop: ProcessLoop | None = None
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_alive(self) -> bool:
        return self._loop is not None and not self._loop.is_dead

    @property
    def may_act(self) -> bool:
        return self.is_alive and self.lease is not None and self.lease.may_act(self._clock.monotonic())

    def serves(self, lane: LaneName) -> bool:
        lanes = self.lanes.get(lane[0])
        return lanes is not None and lane[1] in lanes.state.epochs and self.may_act

    @property
    def count(self) -> int:
        return sum(len(one.state.epochs) for one in self.lanes.values())

    def start(self) -> None:
        self._is_stopping = False
        self._loop = ProcessLoop(self.fleet.timeline, self._clock, on_error=self.fleet.note_error)  # type: ignore[abstract]
        self._tasks = [self._loop.create_task(self._run())]

    def add_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self._loop.create_task(coroutine))

    def kill(self) -> None:
        """End it without another step, as SIGKILL or a lost machine does."""
        if self._loop is not None:
            self._loop.kill()
        self.lanes = {}

    def restart(self) -> None:
        """Stop it in order, and start it again a little later."""
        self._is_stopping = True
        self.add_task(self._stop())

    async def _stop(self) -> None:
        lease = self.lease
        for one in self.lanes.values():
            one.state.is_stopping = True
        await asyncio.sleep(_DRAIN)
        self.lanes = {}
        if lease is not None:
            await self.store.leave(lease.relay_id)
        self.fleet.timeline.after(0.001, self.kill)
        self.fleet.timeline.after(_RESTART, self.start)

    async def _run(self) -> None:
        while not self._is_stopping:
            lease = self.lease = Lease(duration=timedelta(seconds=LEASE))
            self.lanes = {name: _Lanes(self, lease, name) for name in self._destinations}
            settings, store = RelaySettings(), cast("RelayStore", self.store)
            rebalancer = Rebalancer(
                store, lease, cast("Mapping[str, Pipeline]", self.lanes), settings=settings, clock=self._clock,
                telemetry=Telemetry(), dice=self._dice,
            )  # fmt: skip
            heartbeat = Heartbeat(
                store, lease, settings=settings, clock=self._clock, telemetry=Telemetry(),
                reachable=lambda: list(self._destinations), progress=partial(_read_progress, rebalancer),
                dice=self._dice,
            )  # fmt: skip
            if await self._register(heartbeat, lease):
                tasks = [asyncio.create_task(heartbeat.run()), asyncio.create_task(rebalancer.run())]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                for task in done:
                    if not isinstance(task.exception(), LeaseLost):
                        task.result()

    async def _register(self, heartbeat: Heartbeat, lease: Lease) -> bool:
        info = RelayInfo(
            relay_id=lease.relay_id, service="fleet", host=f"node-{self.number}", pid=1, version="1",
            destinations=self._destinations, reachable=self._destinations,
        )  # fmt: skip
        try:
            await heartbeat.register(info)
        except StoreUnavailable:
            await asyncio.sleep(0.5 + self._dice.random())
            return False
        return True


def _read_progress(rebalancer: Rebalancer) -> float:
    return rebalancer.progress.last_turn


class Fleet:
    """All relays. `groups` of them serve destinations of their own, as many relays and destinations in each."""

    def __init__(self, *, relays: int, destinations: int, groups: int, seed: int) -> None:
        self.timeline = Timeline()
        self.dice = Random(seed)
        self.database = SimulatedDatabase(self.timeline, Random(seed + 1))
        self.violations: list[str] = []
        self._holders: dict[LaneName, Node] = {}
        names = [f"destination-{number:03}" for number in range(destinations)]
        self.nodes = [Node(self, number, tuple(names[number % groups :: groups])) for number in range(relays)]
        self.all_lanes = [(name, partition) for name in names for partition in range(PARTITIONS)]
        self.unserved_since: dict[LaneName, float] = dict.fromkeys(self.all_lanes, 0.0)
        self.longest_gap = 0.0
        """Seconds for which a lane was served by nobody, since it was set to 0."""
        self.timeline.after(SAMPLED_EVERY, self._sample)

    @contextmanager
    def seeded_ids(self) -> Iterator[None]:
        """Draw the ids of leases from the seed, so that a run can be repeated."""
        dice = Random(self.dice.random())
        with patch("pillarbox.relay.lease.uuid4", lambda: UUID(int=dice.getrandbits(128))):
            yield

    def note_grant(self, node: Node, lane: LaneName) -> None:
        node.takeovers += 1
        holder = self._holders.get(lane)
        if holder is not None and holder is not node and holder.serves(lane):
            self.violations.append(
                f"at {self.timeline.now:.2f} s nodes {holder.number} and {node.number} both serve {lane}"
            )
        self._holders[lane] = node

    def note_error(self, found: dict[str, Any]) -> None:
        self.violations.append(f"at {self.timeline.now:.2f} s: {found.get('message')}: {found.get('exception')!r}")

    def count_unserved(self) -> int:
        return len(self.unserved_since)

    def _sample(self) -> None:
        """Look five times a second which lanes are served."""
        now = self.timeline.now
        served = {
            (name, partition)
            for node in self.nodes
            if node.may_act
            for name, lanes in node.lanes.items()
            for partition in lanes.state.epochs
        }
        for lane in self.unserved_since.keys() & served:
            self.longest_gap = max(self.longest_gap, now - self.unserved_since.pop(lane))
        if len(served) < len(self.all_lanes):
            for lane in self.all_lanes:
                if lane not in served:
                    self.unserved_since.setdefault(lane, now)
        self.timeline.after(SAMPLED_EVERY, self._sample)
