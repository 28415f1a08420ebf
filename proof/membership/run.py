"""The story of a fleet: it joins, stands still, loses a rack, is restarted, is cut in two, and its database pauses."""

from __future__ import annotations

from asyncio import events
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch
from uuid import UUID

from pillarbox.message import PARTITIONS
from pillarbox.relay.membership import Assignment, Rebalancer, plan_assignment
from proof.membership.fleet import LEASE, SAMPLED_EVERY, Fleet

__all__ = ["VARIANTS", "Phase", "Result", "Size", "run_fleet"]

_AFTER_LEASE: Final = 2.0
"""Seconds after the end of a lease within which every lane must be served again."""
_MOST_GAP: Final = 3.0
"""Seconds for which a lane may be served by nobody while it changes hands in order: two looks at the registry."""
_BUCKET: Final = 0.1
_WAVE: Final = 3.0
"""Seconds between two parts of a rolling restart."""
_MOST_PER_RELAY: Final = 5.0
"""Statements a second of one relay while nothing changes."""
_MOST_READS: Final = 0.05
"""Reads of the whole registry a second of one relay while nothing changes."""
_MOST_HERD: Final = 2.5
"""Looks at the registry in the busiest tenth of a second, over the average, while nothing changes."""
_MOST_TAKE_HERD: Final = 8.0
"""Takeovers in the busiest tenth of a second, over the average of the time from the first to the last."""

_MOST_AT_ONCE: Final = 6
"""Statements of each relay in the busiest second, beside takeovers: it registers, looks twice and renews."""
_MOST_TAKEN: Final = 12_000
"""Statements of takeovers in the busiest second of all relays."""


@dataclass(frozen=True)
class Size:
    """How many of everything."""

    relays: int = 1_000
    destinations: int = 200
    groups: int = 20
    """Relays of one group serve the same destinations."""
    waves: int = 10
    """A rolling restart goes in so many."""


@dataclass
class Phase:
    """What was measured in a part of the story."""

    name: str
    seconds: float
    statements: Counter[str]
    peak: int
    """Statements of the busiest second."""
    herd: float
    take_herd: float
    served_after: float | None
    """Seconds until every lane was served again; None if they were not."""
    longest_gap: float
    lanes: tuple[int, int]
    """Fewest and most lanes of a relay at the end."""


@dataclass
class Result:
    """All phases, and what was not as it should be."""

    size: Size
    phases: list[Phase] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def run_fleet(size: Size, *, seed: int) -> Result:
    """Run the story and judge it."""
    fleet = Fleet(relays=size.relays, destinations=size.destinations, groups=size.groups, seed=seed)
    story = _Story(fleet, size)
    try:
        with fleet.seeded_ids():
            story.run()
    finally:
        for node in fleet.nodes:
            node.kill()
        events._set_running_loop(None)
    story.result.violations += fleet.violations[:20]
    return story.result


class _Story:
    def __init__(self, fleet: Fleet, size: Size) -> None:
        self._fleet = fleet
        self._size = size
        self._rack = fleet.nodes[: size.relays // 10]
        self.result = Result(size)

    def run(self) -> None:
        fleet, timeline = self._fleet, self._fleet.timeline
        for node in fleet.nodes:  # all at once, as a deployment does
            node.start()
        self._measure("all join", 8.0, within=5.0)
        self._measure("nothing happens", 15.0, is_quiet=True)
        for node in self._rack:
            node.kill()
        self._measure("a rack dies", LEASE + 4.0, within=LEASE + _AFTER_LEASE, is_one_burst=True)
        for node in self._rack:
            node.start()
        self._measure("the rack comes back", 8.0, gap=_MOST_GAP)
        wave = -(-self._size.relays // self._size.waves)  # some of every group
        for number in range(self._size.waves):
            for node in fleet.nodes[number * wave : (number + 1) * wave]:
                timeline.after(_WAVE * number, node.restart)
        self._measure("rolling restart of all", _WAVE * self._size.waves + 6.0, gap=_MOST_GAP)
        cut = fleet.nodes[len(self._rack) : 2 * len(self._rack)]
        fleet.database.cut_off.update(node.number for node in cut)
        self._measure("a tenth is cut off", LEASE + 4.0, within=LEASE + _AFTER_LEASE, is_one_burst=True)
        fleet.database.cut_off.clear()
        self._measure("it comes back", 8.0, gap=_MOST_GAP)
        fleet.database.paused_until = timeline.now + LEASE / 2
        self._measure("the database pauses for half a lease", LEASE / 2 + 6.0, gap=_MOST_GAP)
        fleet.database.paused_until = timeline.now + 2 * LEASE
        # Every lease ends meanwhile: all register again, and all lanes are taken anew.
        self._measure("the database pauses for two leases", 3 * LEASE + 8.0, within=3 * LEASE + _AFTER_LEASE)
        self._measure("nothing happens at last", 10.0, is_quiet=True)

    def _measure(
        self,
        name: str,
        seconds: float,
        *,
        within: float | None = None,
        gap: float | None = None,
        is_quiet: bool = False,
        is_one_burst: bool = False,
    ) -> None:
        """Let time pass, and judge it: all lanes served within this time, none unserved for longer than that gap."""
        fleet, start = self._fleet, self._fleet.timeline.now
        fleet.longest_gap, before = 0.0, len(fleet.database.statements)
        served_after: float | None = None
        for step in range(1, round(seconds / SAMPLED_EVERY) + 1):
            fleet.timeline.run(until=start + step * SAMPLED_EVERY)
            if fleet.count_unserved():
                served_after = None
            elif served_after is None:
                served_after = step * SAMPLED_EVERY
        made = fleet.database.statements[before:]
        counts = [node.count for node in fleet.nodes if node.is_alive]
        looks = [at for at, kind in made if kind in ("digest", "registry")]
        takes = [at for at, kind in made if kind == "take"]
        phase = Phase(
            name=name,
            seconds=seconds,
            statements=Counter(kind for _, kind in made),
            peak=max(Counter(int(at) for at, _ in made).values(), default=0),
            herd=_compute_herd(looks, seconds),
            take_herd=_compute_herd(takes, max(takes) - min(takes)) if is_one_burst and takes else 0.0,
            served_after=served_after,
            longest_gap=fleet.longest_gap,
            lanes=(min(counts), max(counts)),
        )
        self.result.phases.append(phase)
        self.result.violations += [f"{name}: {what}" for what in self._judge(phase, within, gap, is_quiet=is_quiet)]

    def _judge(self, phase: Phase, within: float | None, gap: float | None, *, is_quiet: bool) -> Iterator[str]:
        relays = self._size.relays
        if phase.served_after is None:
            yield f"{self._fleet.count_unserved()} lanes are served by nobody at the end"
        elif within is not None and phase.served_after > within:
            yield f"every lane was served after {phase.served_after:.1f} s, and not within {within:.1f} s"
        if gap is not None and phase.longest_gap > gap:
            yield f"a lane was served by nobody for {phase.longest_gap:.1f} s, and at most {gap:.1f} s are allowed"
        if phase.take_herd > _MOST_TAKE_HERD:
            yield f"{phase.take_herd:.1f} times the average of takeovers came in a tenth of a second"
        if phase.peak > _MOST_AT_ONCE * relays + _MOST_TAKEN:
            yield f"{phase.peak:,} statements came in one second"
        average = self._size.destinations * PARTITIONS / relays
        if not 0.5 * average - 2 <= phase.lanes[0] <= phase.lanes[1] <= 1.5 * average + 2 and is_quiet:
            yield f"relays own from {phase.lanes[0]} to {phase.lanes[1]} lanes, and {average:.1f} on average"
        if is_quiet:
            rate = phase.statements.total() / phase.seconds / relays
            reads = phase.statements["registry"] / phase.seconds / relays
            if rate > _MOST_PER_RELAY:
                yield f"each relay makes {rate:.1f} statements a second"
            if reads > _MOST_READS:
                yield f"each relay reads the whole registry {reads:.2f} times a second"
            if phase.herd > _MOST_HERD:
                yield f"{phase.herd:.1f} times the average of looks came in a tenth of a second"
            if phase.statements["take"]:
                yield f"{phase.statements['take']} takeovers, though nothing happened"


def _compute_herd(times: list[float], seconds: float) -> float:
    """Return how many came in the busiest tenth of a second, over the average."""
    if not times:
        return 0.0
    return max(Counter(int(at / _BUCKET) for at in times).values()) / (len(times) * _BUCKET / max(seconds, _BUCKET))


# --- broken variants ---


@contextmanager
def _no_jitter() -> Iterator[None]:
    """Every relay waits for the same time."""

    def draw(self: Rebalancer, *, is_first: bool) -> float:
        return 0.5

    with patch.object(Rebalancer, "_draw_wait", draw):
        yield


@contextmanager
def _read_each_time() -> Iterator[None]:
    with patch("pillarbox.relay.membership.RegistryDigestStore", _Nothing):
        yield


class _Nothing:
    """No store is one."""


@contextmanager
def _greedy() -> Iterator[None]:
    """A relay takes every free lane, whatever its share is."""

    def take_all(owners: Mapping[int, UUID], *, relay_id: UUID, owned: Collection[int], target: int) -> Assignment:
        move = plan_assignment(owners, relay_id=relay_id, owned=owned, target=target)
        return move if move.release else plan_assignment(owners, relay_id=relay_id, owned=owned, target=PARTITIONS)

    with patch("pillarbox.relay.membership.plan_assignment", take_all):
        yield


@contextmanager
def _same_start() -> Iterator[None]:
    """Every destination gives its odd lanes to the same relays."""
    with patch("pillarbox.relay.membership._spread_starts", lambda names: dict.fromkeys(names, 0)):
        yield


@contextmanager
def _no_margin() -> Iterator[None]:
    """A relay acts on after the end of its lease."""
    with patch("pillarbox.relay.lease.Lease.may_act", lambda self, now: True):
        yield


VARIANTS: Final = {
    "no jitter": (_no_jitter, "times the average of looks"),
    "registry read each time": (_read_each_time, "reads the whole registry"),
    "greedy takeover": (_greedy, ""),
    "odd lanes to the same relays": (_same_start, "relays own from"),
    "lease without an end": (_no_margin, "both serve"),
}
"""Broken variants, and what must be said of each."""
