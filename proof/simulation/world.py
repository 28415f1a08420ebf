"""One seed: a storm, a calm, and the count afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from pillarbox.message import Message, State
from proof.simulation.actors import Operators, Writers
from proof.simulation.checker import Breach, Fault
from proof.simulation.environment import Place
from proof.simulation.fault_schedule import FaultSchedule
from proof.simulation.process import Process, simulated
from proof.simulation.scenario import Scenario
from proof.simulation.trace import Tell
from proof.simulation.virtual_time import Spinning

__all__ = ["Result", "World", "simulate"]

_PATIENCE: Final = 60.0
"""Seconds of calm in which everything must come to its end."""
_LOOK: Final = 0.05


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed came to."""

    seed: int
    faults: list[Fault]
    duplicates: int
    messages: int
    seconds: float
    """Of virtual time."""
    seen: Counter[str]


def simulate(seed: int, *, tell: Tell | None = None) -> Result:
    """Run a seed to its end. The same seed runs the same way."""
    scenario = Scenario.drawn(seed)
    with simulated(scenario):
        world = World(scenario, tell=tell)
        world.run()
        return world.result()


class World:
    """Relays, writers and people in one place, and the fates."""

    def __init__(self, scenario: Scenario, *, tell: Tell | None = None) -> None:
        self._scenario = scenario
        self._place = Place(scenario, tell=tell)
        self._writers = Writers(self._place)
        self._people = Operators(self._place)
        self._processes = [self._process(number) for number in range(scenario.relays)]
        self._fates = FaultSchedule(self._place, self._processes)
        for process in self._processes:
            self._place.timeline.after(self._place.dice.choice([0.0, 0.3]), process.start)
        self._place.timeline.at(scenario.storm, self._calm)
        self._look()

    def _process(self, number: int) -> Process:
        scenario = self._scenario
        serves = scenario.destinations
        if scenario.picky and number and scenario.settings.max_lanes is None:
            serves = (serves[number % len(serves)],)
        once = scenario.once and number == scenario.relays - 1
        return Process(
            f"r{number + 1}", self._place, serves=serves, once=once, on_death=self._died, on_moment=self._moment
        )

    def run(self) -> None:
        """Until everything is closed, or patience ends."""
        try:
            self._place.timeline.run(until=self._scenario.storm + _PATIENCE)
        except Spinning as error:
            self._place.ledger.fault(Breach.CRASHED, self._place.timeline.now, str(error))
        for process in self._processes:
            process.end()
        self._count()

    def _look(self) -> None:
        """Whether there is anything left to wait for."""
        place = self._place
        if place.ledger.faults or (place.calm_at is not None and self._writers.is_done and not place.data.open.ids()):
            place.timeline.end()
        place.timeline.after(_LOOK, self._look)

    def _died(self, process: Process) -> None:
        self._place.timeline.after(self._place.dice.choice([0.05, 0.3, 0.8]), process.start)

    def _moment(self, process: Process) -> None:
        self._fates.ambush(process)

    def _calm(self) -> None:
        self._place.calm()
        for process in self._processes:
            if process.is_running:
                process.line.mend()
                process.thaw()
        self._people.mend()

    # --- the count ---

    def _count(self) -> None:
        """What every committed message came to."""
        place = self._place
        if place.ledger.faults:
            return
        ends = {message.id: message for message in place.data.messages()}
        for id in place.ledger.rows.keys() - place.ledger.purged:
            self._count_one(id, ends.get(id))

    def _count_one(self, id: int, end: Message | None) -> None:
        ledger, now = self._place.ledger, self._place.timeline.now
        if end is None:
            ledger.fault(Breach.LOST, now, f"{id} is nowhere")
        elif end.state in (State.PENDING, State.SENDING):
            ledger.fault(Breach.STUCK, now, f"{id} of {end.key} is {end.state.value}, waiting for {end.waits}")
        elif end.state is State.DELIVERED and not ledger.taken[end.destination, id]:
            ledger.fault(Breach.LOST, now, f"{id} counts as delivered, and {end.destination} never got it")

    def result(self) -> Result:
        ledger = self._place.ledger
        return Result(
            self._scenario.seed, ledger.faults, ledger.duplicates, len(ledger.rows), self._place.timeline.now,
            ledger.seen,
        )  # fmt: skip
