"""What one seed is about: how many relays, how they are set, what is written, what goes wrong and how often."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final

from pillarbox.relay.settings import DEFAULT_DUTIES, DestinationSettings, Duty, RelaySettings, Retention
from pillarbox.retry import RetryPolicy
from proof.simulation.fault_kinds import FaultKind

__all__ = ["CLOCK_MARGIN", "LANES", "Scenario"]

CLOCK_MARGIN: Final = 0.1
"""The part of a lease that relays keep clear of. A clock that is further off than that cannot be helped."""
LANES: Final = 8
"""Partitions in use: few, so that keys share lanes and every relay has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that is decided before the first second. The same seed decides the same."""

    seed: int
    relays: int
    settings: RelaySettings
    destinations: tuple[DestinationSettings, ...]
    send_batch: int
    """How many messages the transports take at once."""
    keys: int
    lanes: int
    """How many lanes the keys share."""
    transactions: int
    storm: float
    """Seconds in which things go wrong."""
    weather: dict[FaultKind, float]
    """What goes wrong, and how often: a rate per second, or a share of all answers."""
    store_latency: float
    broker_latency: float
    rate_spread: float
    """How much longer or shorter a process's seconds may be."""
    skips: bool
    """Whether some messages have no route, and relays close them."""
    wakes: bool
    """Whether the store wakes sleeping relays."""
    picky: bool
    """Whether relays but the first serve only some of the destinations."""
    once: bool
    """Whether the last relay is one that ends when there is nothing to do, and is started again."""

    @property
    def spares_leases(self) -> bool:
        """Whether nothing goes wrong by which a relay could lose its lease, or its clock deceive it."""
        return self.rate_spread < CLOCK_MARGIN and not any(kind.costs_leases for kind in self.weather)

    def told(self) -> list[str]:
        """For a person who replays it."""
        relay, wrong = self.settings, ", ".join(f"{kind.value} {often:g}" for kind, often in self.weather.items())
        return [
            f"seed {self.seed}: {self.relays} relays, {self.transactions} transactions, {self.keys} keys in "
            f"{self.lanes} lanes, a storm of {self.storm:.1f} s",
            f"lease {_seconds(relay.lease)}, watch {_seconds(relay.watch_interval)}, poll "
            f"{_seconds(relay.poll_interval)}, lone cap {relay.lone_cap}, max lanes {relay.max_lanes}, "
            f"store {self.store_latency:g} s, broker {self.broker_latency:g} s",
            *(_destination_told(settings) for settings in self.destinations),
            f"goes wrong: {wrong or 'nothing'}",
        ]

    @classmethod
    def drawn(cls, seed: int) -> Scenario:
        """The scenario of a seed."""
        dice = Random(seed)
        lease, relays = dice.choice([0.3, 0.4, 0.6, 1.0]), dice.choice([1, 2, 2, 3, 3])
        return cls(
            seed=seed,
            relays=relays,
            settings=_settings(dice, lease, relays),
            destinations=_destinations(dice, lease),
            send_batch=dice.choice([1, 3, 500]),
            keys=dice.choice([1, 2, 4, 8]),
            lanes=dice.choice([1, 2, LANES]),
            transactions=dice.randint(6, 24),
            storm=dice.uniform(1.5, 4.5),
            weather=FaultKind.drawn(dice),
            store_latency=dice.choice([0.001, 0.005, 0.02]),
            broker_latency=dice.choice([0.005, 0.03, 0.1, 0.5 * lease]),
            rate_spread=dice.choice([0.0, 0.001, 0.05, 0.05, 0.3]),
            skips=dice.random() < 0.25,
            wakes=dice.random() < 0.2,
            picky=dice.random() < 0.3,
            once=dice.random() < 0.1,
        )


def _settings(dice: Random, lease: float, relays: int) -> RelaySettings:
    cleans = dice.random() < 0.2
    keep = timedelta(seconds=0.5) if cleans else timedelta(days=7)
    return RelaySettings(
        lease=timedelta(seconds=lease),
        poll_interval=timedelta(seconds=dice.choice([0.5, 1.0])),
        watch_interval=timedelta(seconds=dice.choice([0.2, 0.5])),
        stale_after=timedelta(seconds=dice.choice([1, 600])),
        max_lanes=dice.choice([None, None, None, -(-LANES // relays)]),
        duties=DEFAULT_DUTIES if cleans else (Duty.SEND, Duty.RETRY),
        retention=Retention(delivered=keep, discarded=keep, every=timedelta(seconds=1)),
        lone_cap=dice.choice([1, 2, 3]),
    )


def _destinations(dice: Random, lease: float) -> tuple[DestinationSettings, ...]:
    names = ["a", "b"][: dice.choice([1, 1, 2])]
    return tuple(_destination(dice, name, lease, others=[other for other in names if other != name]) for name in names)


def _destination(dice: Random, name: str, lease: float, *, others: list[str]) -> DestinationSettings:
    delay = timedelta(seconds=dice.choice([0.03, 0.1, 0.3]))
    return DestinationSettings(
        name=name,
        batch=dice.choice([1, 2, 5, 50]),
        window=dice.choice([1, 4, 9, 24, 40, 80]),
        send_timeout=timedelta(seconds=dice.choice([0.2, 1.0, 3 * lease])),
        ping_interval=timedelta(seconds=dice.choice([0.3, 1.0, 30.0])),
        retry=RetryPolicy(attempts=dice.choice([1, 2, 3, None]), schedule=[delay, 3 * delay], jitter=0.2),
        after_failure=dice.choice(["continue", "hold"]),
        rate=dice.choice([None, None, None, 20.0]),
        dead_letter=dice.choice([None, None, *others]) if name == "a" else None,
    )


def _destination_told(settings: DestinationSettings) -> str:
    return (
        f"destination {settings.name}: batch {settings.batch}, window {settings.window}, send timeout "
        f"{_seconds(settings.send_timeout)}, attempts {settings.retry.attempts}, {settings.after_failure} after a "
        f"failure, dead letters to {settings.dead_letter}"
    )


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
