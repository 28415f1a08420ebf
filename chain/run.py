"""One run of one line: A writes while everybody else dies, then all that is under way comes to its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from chain.effects import Effect, effects_of
from chain.judge import Evidence, Verdict, judge
from chain.lines.line import Line
from chain.orders import ConsumerOrder
from chain.plan import Fate, fates, points_of
from chain.workers import Worker
from chain.writer import Writer
from crash.backends import Place
from crash.processes import Nursery

__all__ = ["NURSERY", "Progress", "Result", "Script", "run"]

NURSERY: Final = "chain.programs.nursery"
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
    verdict: Verdict
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
    nursery: Nursery,
    folder: Path,
    told: Callable[[Progress], None] = _nothing,
) -> Result:
    """Let it happen, and weigh what is left."""
    return _Run(name, line, script, nursery=nursery, folder=folder, told=told).result()


class _Run:
    def __init__(
        self,
        name: str,
        line: Line,
        script: Script,
        *,
        nursery: Nursery,
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
            Worker(role, _mistaken(order, script.broken), nursery=nursery, folder=folder,
                   fates=iter(script.only.get(role) or fates(role, script.kills.get(role, 0), dice=dice)))
            for role, order in line.roles.items()
        ]  # fmt: skip

    def _points(self, role: str) -> Sequence[str]:
        only = self._script.only.get(role)
        if only is not None:
            return sorted({fate.point for fate in only if fate.point is not None})
        return points_of(role) if self._script.kills.get(role) else []

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
        verdict = judge(self._evidence(), faults=faults)
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

    def _evidence(self) -> Evidence:
        line = self._line
        places = {"B": line.b, "C": line.c}
        return Evidence(
            committed=[Effect(*row) for row in line.a.rows("select subject, key, number from parcel")],
            effects={name: effects_of(place) for name, place in places.items()},
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
