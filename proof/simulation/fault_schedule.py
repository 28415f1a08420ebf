"""The schedule of faults: killed, frozen and disconnected relays, outages, clock jumps, restarts and failovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from random import Random

from pillarbox.contracts.transport import Outcome
from proof.simulation.actors import Writers
from proof.simulation.destination import ADDRESSES, Broker, BrokerMode
from proof.simulation.environment import Environment
from proof.simulation.network import StoreConnection
from proof.simulation.process import Process
from proof.simulation.scenario import FaultKind

__all__ = ["FaultSchedule"]


class FaultSchedule:
    """Injects faults at random times until they end."""

    def __init__(self, env: Environment, processes: Sequence[Process], writers: Writers) -> None:
        self._env = env
        self._processes = processes
        self._writers = writers
        self._failover_dice = Random(f"failovers {env.scenario.seed}")
        for process in processes:
            self._again(FaultKind.KILL, process.kill)
            self._again(FaultKind.STOP, process.stop)
            self._again(FaultKind.FREEZE, partial(self._freeze, process))
            self._again(FaultKind.DISCONNECT, partial(self._disconnect, process))
            self._again(FaultKind.RENEWAL_LAG, partial(self._delay_renewals, process))
        for broker in env.brokers.values():
            self._again(FaultKind.OUTAGE, partial(self._outage, broker))
            self._again(FaultKind.BLOCKED, partial(self._block, broker))
        self._again(FaultKind.CLOCK_JUMP, self._set_clock)
        self._again(FaultKind.RESTART, self._restart)
        self._schedule_failover()

    def _again(self, kind: FaultKind, strike: Callable[[], None]) -> None:
        """Schedule the next fault of a kind, and after it the one after that."""
        rate = self._env.scenario.fault_rates.get(kind, 0.0)
        if not rate:
            return
        at = self._env.timeline.now + self._env.rng.expovariate(rate)
        if at < self._env.scenario.fault_seconds:
            self._env.timeline.at(at, self._strike, kind, strike)

    def _strike(self, kind: FaultKind, strike: Callable[[], None]) -> None:
        self._env.deliveries.seen[kind] += 1
        strike()
        self._again(kind, strike)

    def interrupt(self, process: Process) -> None:
        """Perhaps inject a fault while a process is in the middle of a step."""
        share = self._env.scenario.fault_rates.get(FaultKind.INTERRUPT, 0.0)
        if share and self._env.rng.random() < share:
            self._env.deliveries.seen[FaultKind.INTERRUPT] += 1
            strike = self._env.rng.choice([self._kill, self._freeze, self._disconnect])
            self._env.timeline.after(0.0, strike, process)

    # --- processes ---

    def _kill(self, process: Process) -> None:
        process.kill()

    def _freeze(self, process: Process) -> None:
        if process.is_running and not process.loop.is_frozen:
            lease = self._env.scenario.settings.lease.total_seconds()
            seconds = self._env.rng.choice([0.3, 1.2, 3.0]) * lease * self._env.rng.uniform(0.5, 1.5)
            self._env.trace(process.name, f"is frozen for {seconds:.3f}")
            process.freeze()
            self._env.timeline.after(seconds, self._thaw, process, process.loop)

    def _thaw(self, process: Process, loop: object) -> None:
        if process.is_running and process.loop is loop:
            process.thaw()

    def _disconnect(self, process: Process) -> None:
        """Disconnect a process from the store for a while. Some connections become slow first."""
        if process.is_running:
            lease, rng = self._env.scenario.settings.lease.total_seconds(), self._env.rng
            slow_for = rng.choice([0.0, 1.0]) * lease
            process.connection.slowness = rng.uniform(0.2, 0.6) * lease if slow_for else 0.0
            self._env.timeline.after(slow_for, self._disconnect_now, process.name, process.connection)

    def _disconnect_now(self, name: str, connection: StoreConnection) -> None:
        seconds = self._env.rng.uniform(0.1, 1.5)
        self._env.trace(name, f"is cut off the store for {seconds:.3f}")
        connection.is_disconnected = self._env.faults_ended_at is None
        self._env.timeline.after(seconds, connection.restore)

    def _delay_renewals(self, process: Process) -> None:
        """Answer renewals of the lease late, then drop them: the relay's row in the registry is contended."""
        if process.is_running:
            lease, rng = self._env.scenario.settings.lease.total_seconds(), self._env.rng
            process.connection.renewal_lag = rng.uniform(0.2, 0.7) * lease
            self._env.trace(process.name, f"hears of its renewals {process.connection.renewal_lag:.3f} late")
            self._env.timeline.after(
                rng.uniform(0.3, 1.0) * lease, self._drop_renewals, process.name, process.connection
            )

    def _drop_renewals(self, name: str, connection: StoreConnection) -> None:
        seconds = self._env.rng.uniform(0.5, 2.0) * self._env.scenario.settings.lease.total_seconds()
        self._env.trace(name, f"cannot renew for {seconds:.3f}")
        connection.drops_renewals = self._env.faults_ended_at is None
        self._env.timeline.after(seconds, connection.restore)

    # --- destinations and the store ---

    def _outage(self, broker: Broker) -> None:
        mode = self._env.rng.choice([BrokerMode.REFUSES, BrokerMode.BREAKS, BrokerMode.HANGS, BrokerMode.NACKS])
        seconds = self._env.rng.uniform(0.1, 1.5)
        self._env.trace(broker.name, f"{mode.value} for {seconds:.3f}")
        broker.mode = mode
        self._env.timeline.after(seconds, self._recover, broker)

    def _recover(self, broker: Broker) -> None:
        self._env.trace(broker.name, "is up")
        broker.mode = BrokerMode.UP

    def _block(self, broker: Broker) -> None:
        """Let one address take nothing for a while: full, missing, or silent as a partition without a leader."""
        rng = self._env.rng
        address, seconds = rng.choice(ADDRESSES), rng.uniform(0.2, 2.5)
        is_missing = rng.random() < 0.5
        after = timedelta(seconds=0.3) if rng.random() < 0.2 else None
        self._env.trace(broker.name, f"takes nothing at {address} for {seconds:.3f}")
        broker.blocked[address] = Outcome(
            False, f"{address} takes nothing", not_now=True, missing=is_missing, retry_after=after
        )
        self._env.timeline.after(seconds, self._unblock, broker, address)

    def _unblock(self, broker: Broker, address: str) -> None:
        self._env.trace(broker.name, f"takes messages at {address}")
        broker.blocked.pop(address, None)

    def _set_clock(self) -> None:
        by = self._env.rng.choice([-2.0, -0.5, 0.5, 2.0]) * self._env.rng.random()
        self._env.trace("store", f"sets its clock by {by:.3f}")
        self._env.clock.set(by)

    def _restart(self) -> None:
        """Restart the store: every connection is lost, and the position of every reader with it."""
        self._env.trace("store", "restarts")
        for process in self._processes:
            if process.is_running:
                process.connection.reset()

    def _schedule_failover(self) -> None:
        """Schedule the next failover, with dice of its own: all else in a seed stays as it was before it."""
        rate = self._env.scenario.fault_rates.get(FaultKind.FAILOVER, 0.0)
        if not rate:
            return
        at = self._env.timeline.now + self._failover_dice.expovariate(rate)
        if at < self._env.scenario.fault_seconds:
            self._env.timeline.at(at, self._fail_over)

    def _fail_over(self) -> None:
        """Put a server in the store's place that lacks the last commits. A pooler keeps the connections, or none is."""
        env, rng = self._env, self._failover_dice
        env.deliveries.seen[FaultKind.FAILOVER] += 1
        self._writers.abort()
        gone = env.server.go_back(rng.choice([1, 3, 8]), keeps_marks=rng.random() < 0.5)
        env.trace("store", f"fails over and loses {', '.join(str(row.id) for row in gone) or 'nothing'}")
        if gone:
            env.timeline.after(rng.uniform(0.01, 0.3), self._writers.write_again, gone)
        if rng.random() < 0.3:
            for process in self._processes:
                if process.is_running:
                    process.connection.reset()
        self._schedule_failover()
