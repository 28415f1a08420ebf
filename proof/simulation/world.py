"""Runs one seed: a phase with faults, a phase without, and a check of every message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pillarbox.message import Message, State
from proof.simulation.actors import Operators, Writers
from proof.simulation.archivist import Archivist
from proof.simulation.checker import Promise, Violation
from proof.simulation.environment import Environment
from proof.simulation.fault_schedule import FaultSchedule
from proof.simulation.process import Process, patch_relay
from proof.simulation.quiet import QUIET_SECONDS, QuietPhase
from proof.simulation.scenario import Scenario
from proof.simulation.trace import PrintLine
from proof.simulation.virtual_time import Spinning

__all__ = ["Result", "World", "simulate"]

_RECOVERY_SECONDS: Final = 60.0
"""Seconds without faults in which every message must come to its end."""
_CHECK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one seed."""

    seed: int
    violations: list[Violation]
    duplicates: int
    messages: int
    seconds: float
    """Seconds of virtual time."""
    seen: Counter[str]


def simulate(seed: int, *, print_line: PrintLine | None = None) -> Result:
    """Run a seed to its end. The same seed runs the same way."""
    scenario = Scenario.draw(seed)
    with patch_relay(scenario):
        world = World(scenario, print_line=print_line)
        world.run()
        return world.result()


class World:
    """Relays, writers, operators and the schedule of faults, in one environment."""

    def __init__(self, scenario: Scenario, *, print_line: PrintLine | None = None) -> None:
        self._scenario = scenario
        self._env = Environment(scenario, print_line=print_line)
        self._writers = Writers(self._env)
        self._operators = Operators(self._env)
        self._archivist = Archivist(self._env)
        self._quiet = QuietPhase(self._env, self._writers)
        self._processes = [self._process(number) for number in range(scenario.relays)]
        self._fault_schedule = FaultSchedule(self._env, self._processes, self._writers)
        for process in self._processes:
            self._env.timeline.after(self._env.rng.choice([0.0, 0.3]), process.start)
        self._env.timeline.at(scenario.fault_seconds, self._end_faults)
        self._check_end()

    def _process(self, number: int) -> Process:
        scenario = self._scenario
        serves = scenario.destinations
        if scenario.partial_relays and number and scenario.settings.max_lanes is None:
            serves = (serves[number % len(serves)],)
        once = scenario.once and number == scenario.relays - 1
        return Process(
            f"r{number + 1}", self._env, serves=serves, once=once, on_end=self._restart, on_step=self._on_step
        )

    def run(self) -> None:
        """Run until every message is closed, or the time is up."""
        try:
            seconds = _RECOVERY_SECONDS + (0.0 if self._quiet.is_done else QUIET_SECONDS + _RECOVERY_SECONDS)
            self._env.timeline.run(until=self._scenario.fault_seconds + seconds)
        except Spinning as error:
            self._env.deliveries.report(Promise.CRASHED, self._env.timeline.now, str(error))
        for process in self._processes:
            process.end()
        self._check_messages()

    def _check_end(self) -> None:
        """End the run if there is nothing left to wait for."""
        env = self._env
        is_over = env.faults_ended_at is not None and self._writers.is_done and not env.data.open.ids()
        if env.deliveries.violations or (is_over and self._quiet.is_done):
            env.timeline.end()
        elif is_over:
            self._quiet.begin()
        env.timeline.after(_CHECK_SECONDS, self._check_end)

    def _restart(self, process: Process) -> None:
        self._env.timeline.after(self._env.rng.choice([0.05, 0.3, 0.8]), process.start)

    def _on_step(self, process: Process) -> None:
        self._fault_schedule.interrupt(process)

    def _end_faults(self) -> None:
        self._env.end_faults()
        self._writers.write_witnesses()
        for process in self._processes:
            if process.is_running:
                process.connection.restore()
                process.thaw()
        self._operators.restore()

    # --- the check ---

    def _check_messages(self) -> None:
        """Check what became of every committed message."""
        env = self._env
        if env.deliveries.violations:
            return
        ends = {message.id: message for message in env.data.messages()}
        for id in env.deliveries.rows.keys() - env.deliveries.purged:
            self._check_message(id, ends.get(id))

    def _check_message(self, id: int, end: Message | None) -> None:
        deliveries, now = self._env.deliveries, self._env.timeline.now
        if end is None:
            deliveries.report(Promise.LOST, now, f"{id} is nowhere")
        elif end.state in (State.PENDING, State.SENDING):
            deliveries.report(Promise.STUCK, now, f"{id} of {end.key} is {end.state.value}, waiting for {end.waits}")
        elif end.state is State.DELIVERED and not deliveries.taken[end.destination, id]:
            deliveries.report(Promise.LOST, now, f"{id} counts as delivered, and {end.destination} never got it")
        else:
            self._env.failures.check_end(end, now)

    def result(self) -> Result:
        deliveries = self._env.deliveries
        return Result(
            self._scenario.seed, deliveries.violations, deliveries.duplicates, len(deliveries.rows),
            self._env.timeline.now, deliveries.seen,
        )  # fmt: skip
