"""The crash matrix: every kill point on every store, one run after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec

from pillarbox.contracts.store import Selection, Store
from pillarbox.message import State
from proof.crash.consumer import ConsumerProcess
from proof.crash.environment import LEASE, Environment
from proof.crash.judge import judge
from proof.crash.points import KillPoint
from proof.crash.programs import OperatorSpec, WriterSpec, apply_to_failed
from proof.crash.scenarios import SCENARIOS, Scenario, Victim
from proof.databases import BACKENDS, CreateDatabase, Database
from proof.judge import Verdict
from proof.kill_points import Kill
from proof.messages import WRITER_KEY
from proof.processes import ForkServer, Program, TimedOut, wait_until

__all__ = ["Result", "Run", "SharedProcesses", "list_runs", "run_matrix", "run_scenario", "start_shared_processes"]

TIMEOUT: Final = 20.0
"""Seconds that each step of a run may take."""
BATCH: Final = 2
"""Messages in a writer's transaction, and in an operator's batch."""
_BUSY: Final = 3
"""So many arrivals show that a relay is at work."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    point: KillPoint
    store: str
    nth: int
    verdict: Verdict | None = None
    """None: no process died at the point."""
    recovery: float | None = None
    """Leases from the last kill until every message was closed and every lane owned."""
    not_reached: str | None = None
    """Why the point was not reached."""
    log: str = ""
    """The logs of the programs, if the verdict does not hold."""

    @property
    def hit(self) -> bool:
        """Whether a process died at the point, by SIGKILL."""
        return self.verdict is not None

    @property
    def holds(self) -> bool:
        return self.verdict is not None and self.verdict.holds


class Run(msgspec.Struct, frozen=True):
    """One point, on one store, at one occurrence; if none is named, at the first one of its scenario."""

    point: KillPoint
    store: str
    occurrence: int = 0

    @property
    def nth(self) -> int:
        return self.occurrence or SCENARIOS[self.point].occurrences[0]

    @property
    def name(self) -> str:
        return f"{self.store}-{self.point.title}-{self.nth}"


class SharedProcesses(msgspec.Struct, frozen=True):
    """What all runs share: the consumer, and the fork server that starts their programs."""

    folder: Path
    consumer: ConsumerProcess
    fork_server: ForkServer

    def make_environment(
        self, point: KillPoint, scenario: Scenario, *, backend: str, database: Database, name: str
    ) -> Environment:
        """Make the environment of one run. No two share a name."""
        folder = self.folder / name
        folder.mkdir()
        return Environment(
            point,
            scenario,
            backend=backend,
            database=database,
            folder=folder,
            consumer=self.consumer,
            fork_server=self.fork_server,
        )

    def execute(self, run: Run, create: CreateDatabase) -> Result:
        """Execute one run, on a database of its own."""
        folder = self.folder / f"{run.name}.store"
        folder.mkdir()
        scenario = SCENARIOS[run.point]
        with create(folder) as database, self.make_environment(
            run.point, scenario, backend=run.store, database=database, name=run.name
        ) as environment:  # fmt: skip
            return run_scenario(environment, nth=run.nth)


@contextmanager
def start_shared_processes(folder: Path) -> Iterator[SharedProcesses]:
    """Start the consumer and the fork server, and end them after the block."""
    with ConsumerProcess(folder) as consumer, ForkServer(folder, module="proof.crash.programs") as fork_server:
        yield SharedProcesses(folder, consumer, fork_server)


def list_runs(points: Sequence[KillPoint], stores: Sequence[str], *, draw: Random | None = None) -> list[Run]:
    """List the runs of these points on these stores; with `draw` one of each point, on a store that it draws."""
    if draw is not None:
        return [Run(point, draw.choice(stores), draw.choice(SCENARIOS[point].occurrences)) for point in points]
    return [Run(point, store, nth) for store in stores for point in points for nth in SCENARIOS[point].occurrences]


def run_matrix(
    points: Sequence[KillPoint],
    stores: Sequence[str],
    *,
    on_result: Callable[[Result], None],
    draw: Random | None = None,
) -> list[Result]:
    """Execute every run that `list_runs` lists. `ServerMissing` before the first, if a store cannot be reached."""
    results = []
    with ExitStack() as stack:
        factories = {store: stack.enter_context(BACKENDS[store].find()) for store in stores}
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillarbox-crash-"))
        shared = stack.enter_context(start_shared_processes(Path(folder)))
        for run in list_runs(points, stores, draw=draw):
            results.append(shared.execute(run, factories[run.store]))
            on_result(results[-1])
    return results


# --- one run ---


class NotReached(Exception):
    """No process died at its point. The text says what happened instead."""


class KillResult(msgspec.Struct, frozen=True):
    """When the last process died, which relay goes on if one is there, how many messages were failed then, and how many
    processes died at the point."""

    at: int
    """On the monotonic clock, in nanoseconds."""
    survivor: Program | None = None
    still_failed: int = 0
    deaths: int = 1


def _do_nothing(_: Environment) -> None:
    pass


def run_scenario(
    environment: Environment,
    *,
    nth: int,
    timeout: float = TIMEOUT,
    after_kill: Callable[[Environment], None] = _do_nothing,
) -> Result:
    """Run a scenario to its end. Each kill may take `timeout` seconds; `after_kill` is called right after the last."""
    result = Result(point=environment.point, store=environment.backend, nth=nth)
    try:
        killed = _KILLS[environment.scenario.victim](environment, nth, timeout)
    except (TimedOut, NotReached) as reason:
        return msgspec.structs.replace(result, not_reached=str(reason), log=environment.read_logs())
    delivered = environment.read_delivered()
    after_kill(environment)
    survivor = killed.survivor or environment.start_relay()
    recovery, faults = None, []
    try:
        recovery = _recover(environment, survivor, killed_at=killed.at)
    except TimedOut as late:
        faults.append(str(late))
    evidence = environment.collect_evidence(
        recorded=delivered, still_failed=killed.still_failed, deaths=killed.deaths, exit_code=survivor.stop()
    )
    verdict = judge(evidence, environment.scenario, alone=not _has_second_relay(environment, nth))
    verdict = msgspec.structs.replace(verdict, faults=[*faults, *verdict.faults])
    log = "" if verdict.holds else environment.read_logs()
    return msgspec.structs.replace(result, verdict=verdict, recovery=recovery, log=log)


def _recover(environment: Environment, survivor: Program, *, killed_at: int) -> float:
    """Wait until everything is closed, and every lane has its owner. Return how many leases it took."""
    scenario = environment.scenario
    environment.arrivals.down_file.unlink(missing_ok=True)
    environment.write(scenario.load_after)
    if scenario.victim == "operator":
        environment.operate(lambda store: apply_to_failed(store, scenario.action, batch=BATCH))
    wait_until(environment.is_drained, within=TIMEOUT, what="every message is closed")
    environment.wait_for_owner(survivor)
    if scenario.forgets_relays:
        wait_until(lambda: environment.count("pillarbox_relay") == 1, within=TIMEOUT, what="dead relays are forgotten")
    recovery = (time.monotonic_ns() - killed_at) / 1e9 / LEASE
    if scenario.held is not None:
        environment.operate(_redrive)
        wait_until(lambda: not environment.count("pillarbox_outbox"), within=TIMEOUT, what="the held key goes on")
    return recovery


async def _redrive(store: Store) -> None:
    await store.redrive(Selection(states=[State.FAILED]), by="the matrix", limit=BATCH)


# --- the kill ---


def _has_second_relay(environment: Environment, nth: int) -> bool:
    """Return whether another relay is at work when one is killed."""
    return environment.scenario.victim == "relay" and nth > 1


def _kill_relay(environment: Environment, nth: int, timeout: float) -> KillResult:
    if _has_second_relay(environment, nth):
        return _kill_one_of_two(environment, nth, timeout)
    scenario = environment.scenario
    environment.load()
    for point in scenario.earlier_kills:
        _start_and_kill(environment, point, 1, timeout)
    environment.write(scenario.load_before_last)
    if scenario.deadly is not None:
        return _kill_until_given_up(environment, scenario.deadly, nth, timeout)
    kill = environment.plan_kill(environment.point, nth)
    relay = environment.start_relay(kill=kill)
    second = _start_second_relay(environment, relay, timeout) if scenario.second_relay_joins else None
    if scenario.stops_gracefully:
        wait_until(lambda: len(environment.arrivals.read()) >= _BUSY, within=timeout, what="messages arrive")
        relay.terminate()
    return KillResult(_wait_for_kill(environment, relay, kill, timeout), second)


def _kill_until_given_up(environment: Environment, deadly: str, nth: int, timeout: float) -> KillResult:
    """Start relays that die with the deadly message, one after the other. The one that gives it up goes on.

    How many die is the relays' decision: a death counts only if the relay heard an acknowledgement before it.
    """
    deaths: list[int] = []
    while len(deaths) <= environment.scenario.deaths[1]:
        kill = environment.plan_kill(environment.point, nth)
        relay = environment.start_relay(kill=kill)
        if _survives(environment, relay, deadly, timeout) and deaths:
            return KillResult(deaths[-1], relay, deaths=len(deaths))
        deaths.append(_wait_for_kill(environment, relay, kill, timeout))
    return KillResult(deaths[-1], deaths=len(deaths))


def _survives(environment: Environment, relay: Program, deadly: str, timeout: float) -> bool:
    """Wait until the deadly message kills the relay or is closed. Return whether the relay lives."""
    what = f"{deadly} kills a relay or is closed"
    wait_until(lambda: relay.has_ended or environment.is_closed(deadly), within=timeout, what=what)
    return not relay.has_ended


def _kill_one_of_two(environment: Environment, nth: int, timeout: float) -> KillResult:
    """Have two relays share the lanes before there is anything to deliver."""
    other = environment.start_relay()
    environment.wait_for_owner(other)
    kill = environment.plan_kill(environment.point, nth)
    relay = environment.start_relay(kill=kill)
    wait_until(lambda: environment.owns_any(relay) or relay.has_ended, within=timeout, what="lanes are shared")
    environment.load()
    return KillResult(_wait_for_kill(environment, relay, kill, timeout), other)


def _start_second_relay(environment: Environment, owner: Program, timeout: float) -> Program:
    """Start another relay when one owns all lanes."""
    wait_until(lambda: environment.owns_all(owner) or owner.has_ended, within=timeout, what="lanes are taken")
    return environment.start_relay()


def _start_and_kill(environment: Environment, point: KillPoint, nth: int, timeout: float) -> None:
    kill = environment.plan_kill(point, nth)
    _wait_for_kill(environment, environment.start_relay(kill=kill), kill, timeout)


def _kill_writer(environment: Environment, nth: int, timeout: float) -> KillResult:
    survivor = environment.start_relay()
    environment.load()
    kill = environment.plan_kill(environment.point, nth)
    spec = WriterSpec(
        backend=environment.backend, store=environment.database.url(), schema=environment.database.names.schema,
        kill=kill, key=WRITER_KEY, transactions=nth + 1, messages=BATCH,
    )  # fmt: skip
    return KillResult(_wait_for_kill(environment, environment.start(spec), kill, timeout), survivor)


def _kill_operator(environment: Environment, nth: int, timeout: float) -> KillResult:
    survivor = environment.start_relay()
    environment.load()
    failed = len(environment.scenario.redriven)
    wait_until(lambda: environment.count_failed() == failed, within=timeout, what=f"{failed} messages are failed")
    kill = environment.plan_kill(environment.point, nth)
    spec = OperatorSpec(
        backend=environment.backend, store=environment.database.url(), schema=environment.database.names.schema,
        kill=kill, action=environment.scenario.action, batch=BATCH,
    )  # fmt: skip
    at = _wait_for_kill(environment, environment.start(spec), kill, timeout)
    return KillResult(at, survivor, environment.count_failed())


_KILLS: Final[Mapping[Victim, Callable[[Environment, int, float], KillResult]]] = MappingProxyType(
    {"relay": _kill_relay, "writer": _kill_writer, "operator": _kill_operator}
)


def _wait_for_kill(environment: Environment, program: Program, kill: Kill, timeout: float) -> int:
    """Wait until the program dies at its point. Return when it died."""
    try:
        wait_until(lambda: program.has_ended, within=timeout, what=f"it comes to {kill.point}")
    except TimedOut as late:
        raise NotReached(str(late)) from None
    record = environment.read_kill_record(kill)
    if record is None or not program.was_killed:
        raise NotReached(f"it ended with code {program.exit_code} before it came to {kill.point}")
    return record.at
