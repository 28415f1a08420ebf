"""The environment of one seed: time, tables, network, destinations and checkers."""

from __future__ import annotations

from random import Random

from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.memory import MemoryData
from proof.simulation.checker import DeliveryChecker, FailureChecker
from proof.simulation.destination import Broker
from proof.simulation.network import Network
from proof.simulation.scenario import Scenario
from proof.simulation.store import Refusals, Server, WatchedStore
from proof.simulation.trace import PrintLine, Trace
from proof.simulation.virtual_time import StoreClock, Timeline

__all__ = ["Environment"]


class Environment:
    """Everything that relays, writers and operators of one seed share."""

    def __init__(self, scenario: Scenario, *, print_line: PrintLine | None = None) -> None:
        self.scenario = scenario
        self.rng = Random(scenario.seed)
        self.timeline = Timeline()
        self.trace = Trace(self.timeline, print_line)
        self.data = MemoryData()
        self.clock = StoreClock(self.timeline)
        self.deliveries = DeliveryChecker()
        attempts = {settings.name: settings.retry.attempts for settings in scenario.destinations}
        self.failures = FailureChecker(self.deliveries, attempts=attempts, lone_cap=scenario.settings.lone_cap)
        self.refusals = Refusals(self.deliveries)
        self.server = Server(self.data, self.deliveries, self.failures)
        self.network = Network(
            self.timeline,
            self.rng,
            latency=scenario.store_latency,
            slow_claims=scenario.slow_claims,
            fault_rates=scenario.fault_rates,
            trace=self.trace,
        )
        self.brokers = {settings.name: self._broker(settings) for settings in scenario.destinations}
        self.faults_ended_at: float | None = None
        """Since when there are no more faults; None while there are."""

    def _broker(self, settings: DestinationSettings) -> Broker:
        return Broker(
            settings.name, timeline=self.timeline, rng=self.rng, deliveries=self.deliveries, trace=self.trace,
            latency=self.scenario.broker_latency,
            send_timeout=settings.send_timeout.total_seconds(), fault_rates=self.scenario.fault_rates,
        )  # fmt: skip

    def connect(self) -> WatchedStore:
        """Open a connection to the store with no network in between."""
        return WatchedStore(
            self.data, clock=self.clock, deliveries=self.deliveries, failures=self.failures, refusals=self.refusals,
            server=self.server,
        )  # fmt: skip

    def end_faults(self) -> None:
        """End all faults. From now on every message must come to its end."""
        self.faults_ended_at = self.timeline.now
        self.trace("world", "faults end")
        self.network.end_faults()
        self.refusals.end_faults()
        for broker in self.brokers.values():
            broker.end_faults()
