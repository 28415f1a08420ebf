"""The scenario of a seed: how many relays, their settings, what is written, and which faults are injected how often."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Final

from pillarbox.relay.settings import DEFAULT_DUTIES, DestinationSettings, Duty, RelaySettings, Retention
from pillarbox.retry import RetryPolicy

__all__ = ["CLOCK_MARGIN", "LANES", "FaultKind", "Scenario"]


class FaultKind(StrEnum):
    """A kind of fault. Each seed has some of them, so that none hides another."""

    # processes, per second and process
    KILL = "relay killed"
    FREEZE = "relay frozen"
    STOP = "relay stopped"
    DISCONNECT = "relay disconnected from store"
    RENEWAL_LAG = "renewals answered late, then lost"
    INTERRUPT = "relay interrupted at work"
    """As a share of the steps at which a write lands, a message arrives, or an answer is received."""
    # destinations, per second and destination
    OUTAGE = "destination down"
    BLOCKED = "address blocked"
    # the store, per second
    CLOCK_JUMP = "store clock set"
    RESTART = "store restarted"
    FAILOVER = "store lost its last commits"
    # operators, per second
    OPERATE = "operator acts"
    # single calls, as a share of all
    STORE_ERROR = "store call fails"
    STORE_SLOW = "store call slow"
    NACK = "message refused"
    LOST_ANSWER = "answer lost"
    SEND_SLOW = "send slow"
    # messages, as a share of all
    REJECTED = "message rejected"
    REFUSED = "message always refused"
    POISON = "poison message"
    DEFERRED = "message deferred"
    ROLLBACK = "transaction rolled back"
    UNRECORDABLE = "message refused by store"

    @classmethod
    def draw(cls, rng: Random) -> dict[FaultKind, float]:
        """Draw which faults a seed has, and their rates. One in ten has none that could end a lease."""
        drawn = {kind: rng.choice(rate) for kind, rate in _RATES.items() if rng.random() < 0.35}
        return drawn if rng.random() < 0.9 else {kind: rate for kind, rate in drawn.items() if not kind.can_end_leases}

    @property
    def can_end_leases(self) -> bool:
        """Whether it can end the lease of a relay that does nothing wrong."""
        return self in _ENDS_LEASES


_ENDS_LEASES: Final = frozenset({
    FaultKind.FREEZE, FaultKind.DISCONNECT, FaultKind.RENEWAL_LAG, FaultKind.INTERRUPT, FaultKind.CLOCK_JUMP,
    FaultKind.RESTART, FaultKind.FAILOVER, FaultKind.STORE_ERROR, FaultKind.STORE_SLOW,
})  # fmt: skip
_RATES: Final[dict[FaultKind, tuple[float, ...]]] = {
    FaultKind.KILL: (0.2, 0.5, 0.8),
    FaultKind.FREEZE: (0.2, 0.5, 0.8),
    FaultKind.STOP: (0.2, 0.5),
    FaultKind.DISCONNECT: (0.15, 0.4),
    FaultKind.RENEWAL_LAG: (0.5, 1.0),
    FaultKind.INTERRUPT: (0.02, 0.05, 0.1),
    FaultKind.OUTAGE: (0.2, 0.6),
    FaultKind.CLOCK_JUMP: (0.3,),
    FaultKind.RESTART: (0.3, 0.6),
    FaultKind.OPERATE: (1.0, 4.0),
    FaultKind.STORE_ERROR: (0.02, 0.05, 0.15),
    FaultKind.STORE_SLOW: (0.02, 0.1, 0.2),
    FaultKind.NACK: (0.05, 0.15, 0.3),
    FaultKind.LOST_ANSWER: (0.03, 0.1, 0.2),
    FaultKind.SEND_SLOW: (0.05, 0.2),
    FaultKind.REJECTED: (0.03, 0.1),
    FaultKind.REFUSED: (0.03, 0.1),
    FaultKind.POISON: (0.02, 0.05),
    FaultKind.DEFERRED: (0.05, 0.2),
    FaultKind.ROLLBACK: (0.1, 0.3),
}
_UNRECORDABLE_SHARES: Final = (0.03, 0.1)
_SLOW_CLAIMS: Final = (0.1, 0.3, 0.6)
_BLOCKED_RATES: Final = (0.3, 1.0)
_FAILOVER_RATES: Final = (0.5, 1.5)


CLOCK_MARGIN: Final = 0.1
"""The part of a lease that relays do not use. No relay can be safe with a clock that is further off than that."""
LANES: Final = 8
"""Partitions in use: few, so that keys share lanes and every relay has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that is decided before the run. The same seed decides the same."""

    seed: int
    relays: int
    settings: RelaySettings
    destinations: tuple[DestinationSettings, ...]
    send_batch: int
    """How many messages a transport sends at once."""
    keys: int
    lanes: int
    """How many lanes the keys share."""
    transactions: int
    fault_seconds: float
    """Seconds in which faults are injected."""
    fault_rates: dict[FaultKind, float]
    """Kind of fault to its rate per second, or its share of all calls or messages."""
    store_latency: float
    slow_claims: float
    """Share of claims that are recorded late: meanwhile messages of their lanes go back."""
    broker_latency: float
    rate_spread: float
    """How much faster or slower the clock of a process may run."""
    skips: bool
    """Whether some messages have no route, and relays close them."""
    notifies: bool
    """Whether the store wakes sleeping relays."""
    partial_relays: bool
    """Whether all relays but the first serve only some of the destinations."""
    once: bool
    """Whether the last relay ends when there is nothing to do, and is started again."""
    runs: bool
    """Whether destinations take runs: several messages of a key in one send."""
    one_key: bool
    """Whether a send has messages of one key only."""

    @property
    def has_addresses(self) -> bool:
        """Whether destinations have several addresses, each of which may be blocked."""
        return FaultKind.BLOCKED in self.fault_rates

    @property
    def keeps_leases(self) -> bool:
        """Whether no relay may lose its lease: no fault can end one, and no clock is too far off."""
        return self.rate_spread < CLOCK_MARGIN and not any(kind.can_end_leases for kind in self.fault_rates)

    def describe(self) -> list[str]:
        """Describe the scenario, for a person who replays it."""
        relay, rates = self.settings, ", ".join(f"{kind.value} {rate:g}" for kind, rate in self.fault_rates.items())
        return [
            f"seed {self.seed}: {self.relays} relays, {self.transactions} transactions, {self.keys} keys in "
            f"{self.lanes} lanes, faults for {self.fault_seconds:.1f} s",
            f"lease {_format_seconds(relay.lease)}, watch {_format_seconds(relay.watch_interval)}, poll "
            f"{_format_seconds(relay.poll_interval)}, lone cap {relay.lone_cap}, max lanes {relay.max_lanes}, "
            f"store {self.store_latency:g} s, slow claims {self.slow_claims:g}, broker {self.broker_latency:g} s, "
            f"{self._describe_runs()}",
            *(_describe_destination(settings) for settings in self.destinations),
            f"faults: {rates or 'none'}",
        ]

    def _describe_runs(self) -> str:
        return "no runs" if not self.runs else "runs of one key" if self.one_key else "runs"

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        """Draw the scenario of a seed."""
        rng = Random(seed)
        lease, relays = rng.choice([0.3, 0.4, 0.6, 1.0]), rng.choice([1, 2, 2, 3, 3])
        return cls(
            seed=seed,
            relays=relays,
            settings=_settings(rng, lease, relays),
            destinations=_destinations(rng, lease),
            send_batch=rng.choice([1, 3, 500]),
            keys=rng.choice([1, 2, 4, 8]),
            lanes=rng.choice([1, 2, LANES]),
            transactions=rng.randint(6, 24),
            fault_seconds=rng.uniform(1.5, 4.5),
            fault_rates=FaultKind.draw(rng) | _draw_unrecordable(seed) | _draw_blocked(seed) | _draw_failover(seed),
            store_latency=rng.choice([0.001, 0.005, 0.02]),
            slow_claims=_draw_slow_claims(seed),
            broker_latency=rng.choice([0.005, 0.03, 0.1, 0.5 * lease]),
            rate_spread=rng.choice([0.0, 0.001, 0.05, 0.05, 0.3]),
            skips=rng.random() < 0.25,
            notifies=rng.random() < 0.2,
            partial_relays=rng.random() < 0.3,
            once=rng.random() < 0.1,
            runs=(runs := _draw_runs(seed)),
            one_key=runs and seed % 3 == 0,
        )


def _draw_unrecordable(seed: int) -> dict[FaultKind, float]:
    """Draw the share of messages that the store refuses, from dice of its own: all else in a seed stays as it was."""
    rng = Random(f"unrecordable {seed}")
    return {FaultKind.UNRECORDABLE: rng.choice(_UNRECORDABLE_SHARES)} if rng.random() < 0.25 else {}


def _draw_blocked(seed: int) -> dict[FaultKind, float]:
    """Draw how often an address takes nothing, from dice of its own. Without it, destinations have one address."""
    rng = Random(f"blocked {seed}")
    return {FaultKind.BLOCKED: rng.choice(_BLOCKED_RATES)} if rng.random() < 0.3 else {}


def _draw_failover(seed: int) -> dict[FaultKind, float]:
    """Draw how often the store goes back in time, from dice of its own."""
    rng = Random(f"failover {seed}")
    return {FaultKind.FAILOVER: rng.choice(_FAILOVER_RATES)} if rng.random() < 0.2 else {}


def _draw_slow_claims(seed: int) -> float:
    """Draw the share of claims that are recorded late, from dice of its own."""
    rng = Random(f"slow claims {seed}")
    return rng.choice(_SLOW_CLAIMS) if rng.random() < 0.25 else 0.0


def _draw_runs(seed: int) -> bool:
    """Draw whether destinations take runs, from dice of its own."""
    return Random(f"runs {seed}").random() < 0.5


def _settings(rng: Random, lease: float, relays: int) -> RelaySettings:
    cleans = rng.random() < 0.2
    keep = timedelta(seconds=0.5) if cleans else timedelta(days=7)
    return RelaySettings(
        lease=timedelta(seconds=lease),
        poll_interval=timedelta(seconds=rng.choice([0.5, 1.0])),
        watch_interval=timedelta(seconds=rng.choice([0.2, 0.5])),
        stale_after=timedelta(seconds=rng.choice([1, 600])),
        max_lanes=rng.choice([None, None, None, -(-LANES // relays)]),
        duties=DEFAULT_DUTIES if cleans else (Duty.SEND, Duty.RETRY),
        retention=Retention(delivered=keep, discarded=keep, every=timedelta(seconds=1)),
        lone_cap=rng.choice([1, 2, 3]),
    )


def _destinations(rng: Random, lease: float) -> tuple[DestinationSettings, ...]:
    names = ["a", "b"][: rng.choice([1, 1, 2])]
    return tuple(_destination(rng, name, lease, others=[other for other in names if other != name]) for name in names)


def _destination(rng: Random, name: str, lease: float, *, others: list[str]) -> DestinationSettings:
    delay = timedelta(seconds=rng.choice([0.03, 0.1, 0.3]))
    return DestinationSettings(
        name=name,
        batch=rng.choice([1, 2, 5, 50]),
        window=rng.choice([1, 4, 9, 24, 40, 80]),
        send_timeout=timedelta(seconds=rng.choice([0.2, 1.0, 3 * lease])),
        ping_interval=timedelta(seconds=rng.choice([0.3, 1.0, 30.0])),
        retry=RetryPolicy(attempts=rng.choice([1, 2, 3, None]), schedule=[delay, 3 * delay], jitter=0.2),
        after_failure=rng.choice(["continue", "hold"]),
        rate=rng.choice([None, None, None, 20.0]),
        dead_letter=rng.choice([None, None, *others]) if name == "a" else None,
    )


def _describe_destination(settings: DestinationSettings) -> str:
    return (
        f"destination {settings.name}: batch {settings.batch}, window {settings.window}, send timeout "
        f"{_format_seconds(settings.send_timeout)}, attempts {settings.retry.attempts}, "
        f"{settings.after_failure} after a failure, dead letters to {settings.dead_letter}"
    )


def _format_seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
