"""What relays say of themselves, for the trace; and what they must not say when nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.contracts.store import FailedOutcome
from pillarbox.message import Message
from pillarbox.telemetry import Telemetry
from proof.simulation.checker import Breach
from proof.simulation.environment import Place

__all__ = ["RelayTelemetry"]

_GRACE: Final = 3.0
"""Seconds in which the last troubles of a storm may still show."""


class RelayTelemetry(Telemetry):
    """One relay's words."""

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._place = place

    def _say(self, what: str) -> None:
        if self._place.trace.is_on:
            self._place.trace(self._name, what)

    def _must_not(self, what: str) -> None:
        place = self._place
        now, lease = place.timeline.now, place.scenario.settings.lease.total_seconds()
        is_calm = place.calm_at is not None and now > place.calm_at + 2 * lease + _GRACE
        if is_calm or place.scenario.spares_leases:
            place.ledger.fault(Breach.STARVED, now, f"{self._name}: {what}")

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        self._say(f"heard that {destination} took {[message.id for message in messages]}")

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        state = failure.state.value if failure.waits is None else failure.waits.value
        self._place.ledger.seen[state] += 1
        self._say(f"{message.id} to {destination} is {state} after {failure.attempts}: {failure.error}")

    def on_returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        self._place.ledger.seen["returned"] += 1
        self._say(f"gives back {[message.id for message in messages]} of {destination}: {reason}")

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self._place.ledger.seen["breaker"] += 1
        self._say(f"leaves {destination} alone for {seconds:.3f}: {reason}")

    def on_breaker_closed(self, destination: str) -> None:
        self._say(f"{destination} answers again")

    def on_paused(self, destination: str, *, reason: str) -> None:
        self._place.ledger.seen["paused"] += 1
        self._say(f"{destination} is paused: {reason}")

    def on_resumed(self, destination: str) -> None:
        self._say(f"{destination} is resumed")

    def on_lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        self._place.ledger.seen["inherited"] += inherited
        self._say(f"took lanes {list(partitions)} of {destination}, and {inherited} messages")

    def on_lanes_released(self, destination: str, partitions: Iterable[int]) -> None:
        self._place.ledger.seen["handed over"] += 1
        self._say(f"left lanes {list(partitions)} of {destination}")

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        self._place.ledger.seen["fenced"] += 1
        self._say(f"is refused in lanes {list(partitions)} of {destination}")
        self._must_not(f"refused in lanes {list(partitions)} of {destination}")

    def on_lease_lost(self, *, reason: str) -> None:
        self._place.ledger.seen["lease lost"] += 1
        self._say(f"starts again: {reason}")
        self._must_not(reason)

    def on_store_failed(self, what: str, error: Exception) -> None:
        self._place.ledger.seen["store failed"] += 1
        self._say(f"{what} failed: {error}")

    def on_duty_failed(self, what: str, error: Exception) -> None:
        self._say(f"{what} failed: {error}")
