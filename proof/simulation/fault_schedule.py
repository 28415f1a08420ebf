"""When what goes wrong: relays die and freeze, lines are cut, destinations go down, the store's clock is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from proof.simulation.destination import Broker, Mood
from proof.simulation.environment import Place
from proof.simulation.fault_kinds import FaultKind
from proof.simulation.network import StoreLine
from proof.simulation.process import Process

__all__ = ["FaultSchedule"]


class FaultSchedule:
    """Strikes at random during the storm."""

    def __init__(self, place: Place, processes: Sequence[Process]) -> None:
        self._place = place
        self._processes = processes
        for process in processes:
            self._again(FaultKind.KILL, process.kill)
            self._again(FaultKind.STOP, process.stop)
            self._again(FaultKind.FREEZE, partial(self._freeze, process))
            self._again(FaultKind.CUT, partial(self._cut, process))
            self._again(FaultKind.LAG, partial(self._lag, process))
        for broker in place.brokers.values():
            self._again(FaultKind.OUTAGE, partial(self._outage, broker))
        self._again(FaultKind.JUMP, self._jump)
        self._again(FaultKind.RESTART, self._restart)

    def _again(self, kind: FaultKind, strike: Callable[[], None]) -> None:
        """Strike after a while, and again, until the storm is over."""
        often = self._place.scenario.weather.get(kind, 0.0)
        if not often:
            return
        at = self._place.timeline.now + self._place.dice.expovariate(often)
        if at < self._place.scenario.storm:
            self._place.timeline.at(at, self._strike, kind, strike)

    def _strike(self, kind: FaultKind, strike: Callable[[], None]) -> None:
        self._place.ledger.seen[kind] += 1
        strike()
        self._again(kind, strike)

    def ambush(self, process: Process) -> None:
        """It is in the middle of something."""
        share = self._place.scenario.weather.get(FaultKind.AMBUSH, 0.0)
        if share and self._place.dice.random() < share:
            self._place.ledger.seen[FaultKind.AMBUSH] += 1
            strike = self._place.dice.choice([self._kill, self._freeze, self._cut])
            self._place.timeline.after(0.0, strike, process)

    # --- processes ---

    def _kill(self, process: Process) -> None:
        process.kill()

    def _freeze(self, process: Process) -> None:
        if process.is_running and not process.loop.is_frozen:
            lease = self._place.scenario.settings.lease.total_seconds()
            seconds = self._place.dice.choice([0.3, 1.2, 3.0]) * lease * self._place.dice.uniform(0.5, 1.5)
            self._place.trace(process.name, f"is frozen for {seconds:.3f}")
            process.freeze()
            self._place.timeline.after(seconds, self._thaw, process, process.loop)

    def _thaw(self, process: Process, loop: object) -> None:
        if process.is_running and process.loop is loop:
            process.thaw()

    def _cut(self, process: Process) -> None:
        """Off the store for a while. Some lines first grow slow."""
        if process.is_running:
            lease, dice = self._place.scenario.settings.lease.total_seconds(), self._place.dice
            slow_for = dice.choice([0.0, 1.0]) * lease
            process.line.slowness = dice.uniform(0.2, 0.6) * lease if slow_for else 0.0
            self._place.timeline.after(slow_for, self._sever, process.name, process.line)

    def _sever(self, name: str, line: StoreLine) -> None:
        seconds = self._place.dice.uniform(0.1, 1.5)
        self._place.trace(name, f"is cut off the store for {seconds:.3f}")
        line.is_cut = self._place.calm_at is None
        self._place.timeline.after(seconds, line.mend)

    def _lag(self, process: Process) -> None:
        """Its row in the registry is contended: renewals are answered late, then they do not get through at all."""
        if process.is_running:
            lease, dice = self._place.scenario.settings.lease.total_seconds(), self._place.dice
            process.line.lag = dice.uniform(0.2, 0.7) * lease
            self._place.trace(process.name, f"hears of its renewals {process.line.lag:.3f} late")
            self._place.timeline.after(dice.uniform(0.3, 1.0) * lease, self._starve, process.name, process.line)

    def _starve(self, name: str, line: StoreLine) -> None:
        seconds = self._place.dice.uniform(0.5, 2.0) * self._place.scenario.settings.lease.total_seconds()
        self._place.trace(name, f"cannot renew for {seconds:.3f}")
        line.is_starved = self._place.calm_at is None
        self._place.timeline.after(seconds, line.mend)

    # --- destinations and the store ---

    def _outage(self, broker: Broker) -> None:
        mood = self._place.dice.choice([Mood.REFUSES, Mood.BREAKS, Mood.HANGS, Mood.NACKS])
        seconds = self._place.dice.uniform(0.1, 1.5)
        self._place.trace(broker.name, f"{mood.value} for {seconds:.3f}")
        broker.mood = mood
        self._place.timeline.after(seconds, self._recover, broker)

    def _recover(self, broker: Broker) -> None:
        self._place.trace(broker.name, "is up")
        broker.mood = Mood.UP

    def _jump(self) -> None:
        by = self._place.dice.choice([-2.0, -0.5, 0.5, 2.0]) * self._place.dice.random()
        self._place.trace("store", f"sets its clock by {by:.3f}")
        self._place.clock.set(by)

    def _restart(self) -> None:
        """Every connection is lost, and with it what was read on it."""
        self._place.trace("store", "restarts")
        for process in self._processes:
            if process.is_running:
                process.line.reset()
