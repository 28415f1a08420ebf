"""One run of one line: A writes while relays and consumers are killed, until everything has arrived."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Final

import msgspec

from proof.chain.kill_points import RELAY_POINTS, ConsumerKillPoint
from proof.chain.lines import Line
from proof.chain.programs import ConsumerSpec
from proof.chain.services import Writer, read_effects
from proof.databases import Database
from proof.judge import NumberedRow, Verdict, find_overtaken
from proof.kill_points import Kill
from proof.processes import ForkServer, Program, ProgramSpec

__all__ = ["Evidence", "PlannedKill", "Progress", "Result", "Scenario", "judge", "list_points", "plan_kills", "run"]

_LONGEST_LIFE: Final = 1.5
"""Seconds after which a random kill comes at the latest."""
_FIRST_NTH: Final = 3
"""A process that dies at the first occurrence gets nothing done, and many of those in a row never would."""
_LAST_NTH: Final = 4
_LOG_TAIL: Final = 2_000
_BACKLOG: Final = 40
"""Messages under way at most: a point is reached by those that come next."""
_POLL_SECONDS: Final = 0.01
_PROGRESS_SECONDS: Final = 0.5


# --- the plan ---


class PlannedKill(msgspec.Struct, frozen=True):
    """How one process ends: at the nth occurrence of a point, or after so many seconds."""

    point: str | None = None
    nth: int = 1
    after: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How often each role is killed, and how long the run may take."""

    kills: Mapping[str, int] = {}
    """By role; those not named are not killed."""
    only: Mapping[str, Sequence[PlannedKill]] = {}
    """The kills of a role, one by one, instead of the usual mixture."""
    seed: int = 0
    seconds: float = 600.0
    broken: str | None = None
    """The mistake that the consumers make."""


def list_points(role: str) -> Sequence[str]:
    """Return the titles of the points that a role is killed at."""
    points = RELAY_POINTS if role.startswith("relay") else ConsumerKillPoint
    return [point.title for point in points]


def plan_kills(role: str, kills: int, *, rng: random.Random) -> Iterator[PlannedKill]:
    """Plan so many kills: each point once, then points and random times in turn."""
    points = list_points(role)
    mixture = (
        (PlannedKill(point, rng.randint(1, _LAST_NTH)), PlannedKill(after=_LONGEST_LIFE * rng.random()))
        for point in cycle(points)
    )
    each_once = (PlannedKill(point, _FIRST_NTH) for point in points)
    return islice(chain(each_once, chain.from_iterable(mixture)), kills)


# --- the verdict ---


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is there when every process has stopped."""

    committed: Sequence[NumberedRow]
    """By A."""
    effects: Mapping[str, Sequence[NumberedRow]]
    """Of B and of C, each in the order of its work."""
    duplicates: int
    """Messages that came again to B or C and did nothing, as their inboxes count them."""
    failed: Sequence[str] = ()
    """Sentences about messages that an inbox keeps as failed."""


def judge(evidence: Evidence, *, faults: Sequence[str] = ()) -> Verdict:
    """Judge one run: B and C together. `faults` are those that the run itself has shown."""
    committed = {row.subject for row in evidence.committed}
    handled = {name: {effect.subject for effect in effects} for name, effects in evidence.effects.items()}
    overtaken = [f"{one} in {name}" for name, effects in evidence.effects.items() for one in find_overtaken(effects)]
    unproven = [] if evidence.duplicates else ["no message came again, so nothing is proven"]
    return Verdict(
        lost=sum(len(committed - subjects) for subjects in handled.values()),
        ghosts=sum(len(subjects - committed) for subjects in handled.values()),
        twice=sum(len(effects) - len(handled[name]) for name, effects in evidence.effects.items()),
        out_of_order=len(overtaken),
        duplicates=evidence.duplicates,
        faults=[*faults, *unproven, *evidence.failed],
        overtaken=overtaken,
    )


# --- the run ---


class Supervisor:
    """Runs the program of one role, and starts it again after each planned kill. The last process is not killed."""

    def __init__(
        self, role: str, spec: ProgramSpec, *, fork_server: ForkServer, folder: Path, kills: Iterator[PlannedKill]
    ) -> None:
        self.role = role
        self._spec = spec
        self._fork_server = fork_server
        self._folder = folder
        self._plan = kills
        self._next_kill: PlannedKill | None = None
        self._starts = 0
        self._started_at = 0.0
        self._program: Program | None = None
        self.kills = 0
        self.hits: Counter[str] = Counter()
        """How often a process died at a point, by its title."""
        self.faults: list[str] = []

    @property
    def is_last(self) -> bool:
        """Whether all kills are done, and the last process runs."""
        return self._program is not None and self._next_kill is None

    def run_once(self) -> None:
        """Start the program if it does not run, or kill it if its time has come."""
        if self._program is None:
            self._start()
        elif self._program.has_ended:
            self._record_end(self._program)
            self._start()
        elif self._is_due():
            self._program.kill()

    def kill(self) -> None:
        """Kill the process, if one runs."""
        if self._program is not None:
            self._program.kill()

    def read_log(self) -> str:
        """Return the end of the latest process's log."""
        if self._program is None:
            return ""
        return f"--- {self.role}, process {self._starts}\n{self._program.read_log()[-_LOG_TAIL:]}"

    def _start(self) -> None:
        self._starts += 1
        planned = self._next_kill = next(self._plan, None)
        kill = None
        if planned is not None and planned.point is not None:
            kill = Kill(planned.point, planned.nth, str(self._kill_file))
        spec = msgspec.structs.replace(self._spec, kill=kill)
        self._program = self._fork_server.start(spec, log=self._path("log"))
        self._started_at = time.monotonic()

    def _is_due(self) -> bool:
        planned = self._next_kill
        return planned is not None and planned.point is None and time.monotonic() - self._started_at > planned.after

    def _record_end(self, program: Program) -> None:
        planned = self._next_kill
        if planned is None or not program.was_killed or (planned.point is not None and not self._kill_file.exists()):
            self.faults.append(f"{self.role} ended by itself, with code {program.exit_code}\n{self.read_log()}")
            return
        self.kills += 1
        if planned.point is not None:
            self.hits[planned.point] += 1

    @property
    def _kill_file(self) -> Path:
        return self._path("kill")

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self.role.replace(' ', '-')}-{self._starts}.{suffix}"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is."""

    kills: int
    planned: int
    hit: int
    points: int
    committed: int
    b: int
    c: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    line: str
    verdict: Verdict
    hits: Mapping[str, Mapping[str, int]]
    """By role, how often a process died at each of its points."""
    kills: int
    messages: int
    seconds: float
    log: str = ""
    """The logs of the processes, if the verdict does not hold."""

    @property
    def holds(self) -> bool:
        return self.verdict.holds

    @property
    def points(self) -> int:
        return sum(len(points) for points in self.hits.values())

    @property
    def hit(self) -> int:
        return sum(1 for points in self.hits.values() for hits in points.values() if hits)


def _ignore(_: Progress) -> None:
    pass


def run(
    name: str,
    line: Line,
    scenario: Scenario,
    *,
    fork_server: ForkServer,
    folder: Path,
    on_progress: Callable[[Progress], None] = _ignore,
) -> Result:
    """Run a scenario on a line to its end, and judge it."""
    return _Run(name, line, scenario, fork_server=fork_server, folder=folder, on_progress=on_progress).run()


class _Run:
    def __init__(
        self,
        name: str,
        line: Line,
        scenario: Scenario,
        *,
        fork_server: ForkServer,
        folder: Path,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._name = name
        self._line = line
        self._scenario = scenario
        self._on_progress = on_progress
        self._reported_at = 0.0
        self._started_at = time.monotonic()
        rng = random.Random(scenario.seed)
        self._writer = Writer(line.a, rng=rng)
        self._points = {role: self._list_points(role) for role in line.roles}
        self._supervisors = [
            Supervisor(
                role,
                _with_mistake(spec, scenario.broken),
                fork_server=fork_server,
                folder=folder,
                kills=iter(scenario.only.get(role) or plan_kills(role, scenario.kills.get(role, 0), rng=rng)),
            )
            for role, spec in line.roles.items()
        ]

    def _list_points(self, role: str) -> Sequence[str]:
        only = self._scenario.only.get(role)
        if only is not None:
            return sorted({kill.point for kill in only if kill.point is not None})
        return list_points(role) if self._scenario.kills.get(role) else []

    def run(self) -> Result:
        try:
            is_late = self._run_until(lambda: all(one.is_last for one in self._supervisors), writing=True)
            self._writer.write_last()
            is_late = is_late or self._run_until(self._has_arrived, writing=False)
        finally:
            for supervisor in self._supervisors:
                supervisor.kill()
        hits = {one.role: {point: one.hits[point] for point in self._points[one.role]} for one in self._supervisors}
        faults = [fault for supervisor in self._supervisors for fault in supervisor.faults]
        if is_late:
            faults.append(f"it was not over after {self._scenario.seconds:g} s: {self._observe()}")
        faults += [f"{role} never died at {point}" for role, of in hits.items() for point, n in of.items() if not n]
        verdict = judge(self._collect_evidence(), faults=faults)
        return Result(
            line=self._name, verdict=verdict, hits=hits, kills=self._count_kills(), messages=self._writer.committed,
            seconds=time.monotonic() - self._started_at,
            log="" if verdict.holds else "\n".join(supervisor.read_log() for supervisor in self._supervisors),
        )  # fmt: skip

    def _run_until(self, is_over: Callable[[], bool], *, writing: bool) -> bool:
        """Keep all programs running meanwhile. Return whether it took too long."""
        while not is_over():
            if time.monotonic() - self._started_at > self._scenario.seconds:
                return True
            for supervisor in self._supervisors:
                supervisor.run_once()
            if writing and self._writer.committed - _count(self._line.c, "effect") < _BACKLOG:
                self._writer.write_some()
            if time.monotonic() - self._reported_at > _PROGRESS_SECONDS:
                self._reported_at = time.monotonic()
                self._on_progress(self._observe())
            time.sleep(_POLL_SECONDS)
        return False

    def _has_arrived(self) -> bool:
        """Return whether the latest of each key has its effect in B and C, and nothing is left to deliver."""
        line = self._line
        for database in (line.b, line.c):
            if dict(database.rows("select key, max(number) from effect group by key")) != self._writer.latest:
                return False
        return not any(_count(database, "pillarbox_outbox") for database in (line.a, line.b))

    def _count_kills(self) -> int:
        return sum(supervisor.kills for supervisor in self._supervisors)

    def _observe(self) -> Progress:
        return Progress(
            kills=self._count_kills(),
            planned=sum(len(only) for only in self._scenario.only.values()) or sum(self._scenario.kills.values()),
            hit=sum(len(supervisor.hits) for supervisor in self._supervisors),
            points=sum(len(points) for points in self._points.values()),
            committed=self._writer.committed,
            b=_count(self._line.b, "effect"),
            c=_count(self._line.c, "effect"),
        )

    def _collect_evidence(self) -> Evidence:
        line = self._line
        services = {"B": line.b, "C": line.c}
        return Evidence(
            committed=[NumberedRow(*row) for row in line.a.rows("select subject, key, number from business_row")],
            effects={name: read_effects(database) for name, database in services.items()},
            duplicates=sum(
                database.rows("select coalesce(sum(duplicates), 0) from pillarbox_inbox")[0][0]
                for database in services.values()
            ),
            failed=[
                f"{name} keeps {message_id} as failed: {error}"
                for name, database in services.items()
                for message_id, error in database.rows(
                    "select message_id, last_error from pillarbox_inbox where status = 'failed'"
                )
            ],
        )


def _with_mistake(spec: Any, broken: str | None) -> Any:
    return msgspec.structs.replace(spec, broken=broken) if isinstance(spec, ConsumerSpec) else spec


def _count(database: Database, table: str) -> int:
    count: int = database.rows(f"select count(*) from {table}")[0][0]
    return count
