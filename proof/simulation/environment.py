"""What everybody in one world shares: time, tables, destinations, and the books of what truly happened."""

from __future__ import annotations

from random import Random

from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.memory import MemoryData
from proof.simulation.checker import Evidence, Ledger
from proof.simulation.destination import Broker
from proof.simulation.network import Network
from proof.simulation.scenario import Scenario
from proof.simulation.store import WatchedStore
from proof.simulation.trace import Tell, Trace
from proof.simulation.virtual_time import StoreClock, Timeline

__all__ = ["Place"]


class Place:
    """Made once per seed."""

    def __init__(self, scenario: Scenario, *, tell: Tell | None = None) -> None:
        self.scenario = scenario
        self.dice = Random(scenario.seed)
        self.timeline = Timeline()
        self.trace = Trace(self.timeline, tell)
        self.data = MemoryData()
        self.clock = StoreClock(self.timeline)
        self.ledger = Ledger()
        attempts = {settings.name: settings.retry.attempts for settings in scenario.destinations}
        self.evidence = Evidence(self.ledger, attempts=attempts, lone_cap=scenario.settings.lone_cap)
        self.network = Network(
            self.timeline, self.dice, latency=scenario.store_latency, weather=scenario.weather, trace=self.trace
        )
        self.brokers = {settings.name: self._broker(settings) for settings in scenario.destinations}
        self.calm_at: float | None = None
        """Since when nothing goes wrong any more."""

    def _broker(self, settings: DestinationSettings) -> Broker:
        return Broker(
            settings.name, timeline=self.timeline, dice=self.dice, ledger=self.ledger, trace=self.trace,
            latency=self.scenario.broker_latency,
            patience=settings.send_timeout.total_seconds(), weather=self.scenario.weather,
        )  # fmt: skip

    def connect(self) -> WatchedStore:
        """A connection to the store with nothing in between."""
        return WatchedStore(self.data, clock=self.clock, ledger=self.ledger, evidence=self.evidence)

    def calm(self) -> None:
        """From now on nothing goes wrong, and everything must find its end."""
        self.calm_at = self.timeline.now
        self.trace("world", "calm")
        self.network.calm()
        for broker in self.brokers.values():
            broker.calm()
