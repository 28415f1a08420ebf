"""One run of one line: A writes while everybody else dies, then all that is under way comes to its end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain as joined
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import msgspec

from proof.chain.kill_points import RELAY_POINTS, Point
from proof.chain.lines import Line
from proof.chain.programs import ConsumerOrder, Order
from proof.chain.services import Effect, Writer, read_effects
from proof.databases import Place
from proof.judge import ChainEvidence, ChainVerdict, judge_chain
from proof.kill_points import Trap
from proof.processes import ForkServer, Program

__all__ = ["NURSERY", "Fate", "Progress", "Result", "Script", "fates", "list_points", "run"]

_LATEST: Final = 1.5
"""Seconds of a life that ends at random."""
_FIRST: Final = 3
"""A life that ends at the first passage brings nothing forward, and many of those in a row nothing at all."""
_MOST: Final = 4


class Fate(msgspec.Struct, frozen=True):
    """How one life ends: at the nth passage of a point, or after so many seconds."""

    point: str | None = None
    nth: int = 1
    after: float = 0.0


def list_points(role: str) -> Sequence[str]:
    """The points that a role dies at, by name."""
    points = RELAY_POINTS if role.startswith("relay") else Point
    return [point.title for point in points]


def fates(role: str, kills: int, *, dice: random.Random) -> Iterator[Fate]:
    """So many ends: each point once, then points and chance take turns."""
    points = list_points(role)
    by_chance = ((Fate(point, dice.randint(1, _MOST)), Fate(after=_LATEST * dice.random())) for point in cycle(points))
    return islice(joined((Fate(point, _FIRST) for point in points), joined.from_iterable(by_chance)), kills)


_TAIL: Final = 2_000


class Worker:
    """One role: one process at a time, life after life. The last life has no end."""

    def __init__(
        self, role: str, order: Order, *, fork_server: ForkServer, folder: Path, fates: Iterator[Fate]
    ) -> None:
        self.role = role
        self._order = order
        self._nursery = fork_server
        self._folder = folder
        self._fates = fates
        self._fate: Fate | None = None
        self._lives = 0
        self._began = 0.0
        self._program: Program | None = None
        self.kills = 0
        self.hits: Counter[str] = Counter()
        """How often somebody died at a point, by its name."""
        self.faults: list[str] = []

    @property
    def has_died_enough(self) -> bool:
        """It is in its last life."""
        return self._program is not None and self._fate is None

    def look(self) -> None:
        """Go on with what is due: a beginning, an end, or nothing."""
        if self._program is None:
            self._begin()
        elif self._program.has_ended:
            self._bury(self._program)
            self._begin()
        elif self._is_due():
            self._program.end()

    def end(self) -> None:
        """However it can be ended."""
        if self._program is not None:
            self._program.end()

    def told(self) -> str:
        """What the latest process logged, its end."""
        if self._program is None:
            return ""
        text = self._program.log.read_text(errors="replace") if self._program.log.exists() else ""
        return f"--- {self.role}, life {self._lives}\n{text[-_TAIL:]}"

    def _begin(self) -> None:
        self._lives += 1
        fate = self._fate = next(self._fates, None)
        trap = None
        if fate is not None and fate.point is not None:
            trap = Trap(fate.point, fate.nth, str(self._marker))
        order = msgspec.structs.replace(self._order, trap=trap)
        self._program = self._nursery.start(order, log=self._path("log"))
        self._began = time.monotonic()

    def _is_due(self) -> bool:
        fate = self._fate
        return fate is not None and fate.point is None and time.monotonic() - self._began > fate.after

    def _bury(self, program: Program) -> None:
        fate = self._fate
        if fate is None or not program.was_killed or (fate.point is not None and not self._marker.exists()):
            self.faults.append(f"{self.role} ended by itself, with code {program.exit_code}\n{self.told()}")
            return
        self.kills += 1
        if fate.point is not None:
            self.hits[fate.point] += 1

    @property
    def _marker(self) -> Path:
        return self._path("death")

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self.role.replace(' ', '-')}-{self._lives}.{kind}"


NURSERY: Final = "proof.chain.programs"
_BACKLOG: Final = 40
"""Parcels on their way at most: a point is reached by those that come next."""
_LOOK: Final = 0.01
_TOLD_EVERY: Final = 0.5


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """Who dies how often, and how long it all may take."""

    kills: Mapping[str, int] = {}
    """By role; those not named die not at all."""
    only: Mapping[str, Sequence[Fate]] = {}
    """Ends of a role, one by one, instead of the usual mixture."""
    seed: int = 0
    seconds: float = 600.0
    broken: str | None = None
    """A mistake that the consumers make."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it has come."""

    kills: int
    of: int
    hit: int
    points: int
    committed: int
    b: int
    c: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    line: str
    verdict: ChainVerdict
    hits: Mapping[str, Mapping[str, int]]
    """By role, how often somebody died at each point laid out for it."""
    kills: int
    parcels: int
    seconds: float
    log: str = ""
    """What the processes told, if it did not hold."""

    @property
    def holds(self) -> bool:
        return self.verdict.holds

    @property
    def points(self) -> int:
        return sum(len(points) for points in self.hits.values())

    @property
    def hit(self) -> int:
        return sum(1 for points in self.hits.values() for hits in points.values() if hits)


def _nothing(_: Progress) -> None:
    pass


def run(
    name: str,
    line: Line,
    script: Script,
    *,
    fork_server: ForkServer,
    folder: Path,
    told: Callable[[Progress], None] = _nothing,
) -> Result:
    """Let it happen, and weigh what is left."""
    return _Run(name, line, script, fork_server=fork_server, folder=folder, told=told).result()


class _Run:
    def __init__(
        self,
        name: str,
        line: Line,
        script: Script,
        *,
        fork_server: ForkServer,
        folder: Path,
        told: Callable[[Progress], None],
    ) -> None:
        self._name = name
        self._line = line
        self._script = script
        self._told = told
        self._told_at = 0.0
        self._began = time.monotonic()
        dice = random.Random(script.seed)
        self._writer = Writer(line.a, dice=dice)
        self._laid_out = {role: self._points(role) for role in line.roles}
        self._workers = [
            Worker(role, _mistaken(order, script.broken), fork_server=fork_server, folder=folder,
                   fates=iter(script.only.get(role) or fates(role, script.kills.get(role, 0), dice=dice)))
            for role, order in line.roles.items()
        ]  # fmt: skip

    def _points(self, role: str) -> Sequence[str]:
        only = self._script.only.get(role)
        if only is not None:
            return sorted({fate.point for fate in only if fate.point is not None})
        return list_points(role) if self._script.kills.get(role) else []

    def result(self) -> Result:
        try:
            late = self._until(lambda: all(worker.has_died_enough for worker in self._workers), writing=True)
            self._writer.write_last()
            late = late or self._until(self._is_through, writing=False)
        finally:
            for worker in self._workers:
                worker.end()
        hits = {
            worker.role: {point: worker.hits[point] for point in self._laid_out[worker.role]}
            for worker in self._workers
        }
        faults = [fault for worker in self._workers for fault in worker.faults]
        if late:
            faults.append(f"it was not over after {self._script.seconds:g} s: {self._far()}")
        faults += [f"{role} never died at {point}" for role, of in hits.items() for point, n in of.items() if not n]
        verdict = judge_chain(self._evidence(), faults=faults)
        return Result(
            line=self._name, verdict=verdict, hits=hits, kills=self._kills, parcels=self._writer.committed,
            seconds=time.monotonic() - self._began,
            log="" if verdict.holds else "\n".join(worker.told() for worker in self._workers),
        )  # fmt: skip

    def _until(self, is_over: Callable[[], bool], *, writing: bool) -> bool:
        """Look after everybody meanwhile. Answers whether it took too long."""
        while not is_over():
            if time.monotonic() - self._began > self._script.seconds:
                return True
            for worker in self._workers:
                worker.look()
            if writing and self._writer.committed - _count(self._line.c, "effect") < _BACKLOG:
                self._writer.write_some()
            if time.monotonic() - self._told_at > _TOLD_EVERY:
                self._told_at = time.monotonic()
                self._told(self._far())
            time.sleep(_LOOK)
        return False

    def _is_through(self) -> bool:
        """The latest of each key has had its effect everywhere, and nothing is left to deliver."""
        line = self._line
        for place in (line.b, line.c):
            if dict(place.rows("select key, max(number) from effect group by key")) != self._writer.latest:
                return False
        return not any(_count(place, "pillarbox_outbox") for place in (line.a, line.b))

    @property
    def _kills(self) -> int:
        return sum(worker.kills for worker in self._workers)

    def _far(self) -> Progress:
        return Progress(
            kills=self._kills,
            of=sum(len(only) for only in self._script.only.values()) or sum(self._script.kills.values()),
            hit=sum(len(worker.hits) for worker in self._workers),
            points=sum(len(points) for points in self._laid_out.values()),
            committed=self._writer.committed,
            b=_count(self._line.b, "effect"),
            c=_count(self._line.c, "effect"),
        )

    def _evidence(self) -> ChainEvidence:
        line = self._line
        places = {"B": line.b, "C": line.c}
        return ChainEvidence(
            committed=[Effect(*row) for row in line.a.rows("select subject, key, number from parcel")],
            effects={name: read_effects(place) for name, place in places.items()},
            duplicates=sum(
                place.rows("select coalesce(sum(duplicates), 0) from pillarbox_inbox")[0][0]
                for place in places.values()
            ),
            kept=[
                f"{name} keeps {message_id} as failed: {error}"
                for name, place in places.items()
                for message_id, error in place.rows(
                    "select message_id, last_error from pillarbox_inbox where status = 'failed'"
                )
            ],
        )


def _mistaken(order: Any, broken: str | None) -> Any:
    return msgspec.structs.replace(order, broken=broken) if isinstance(order, ConsumerOrder) else order


def _count(place: Place, table: str) -> int:
    count: int = place.rows(f"select count(*) from {table}")[0][0]
    return count
