"""What relays say of themselves, for the trace; and what they must not say when nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.message import Message
from pillarbox.protocols import Trouble
from pillarbox.telemetry import Telemetry
from simulation.faults import Breach
from simulation.place import Place

__all__ = ["Telling"]

_GRACE: Final = 3.0
"""Seconds in which the last troubles of a storm may still show."""


class Telling(Telemetry):
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

    def delivered(self, destination: str, messages: Sequence[Message]) -> None:
        self._say(f"heard that {destination} took {[message.id for message in messages]}")

    def troubled(self, destination: str, message: Message, trouble: Trouble) -> None:
        state = trouble.state.value if trouble.waits is None else trouble.waits.value
        self._place.ledger.seen[state] += 1
        self._say(f"{message.id} to {destination} is {state} after {trouble.attempts}: {trouble.error}")

    def returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        self._place.ledger.seen["returned"] += 1
        self._say(f"gives back {[message.id for message in messages]} of {destination}: {reason}")

    def breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self._place.ledger.seen["breaker"] += 1
        self._say(f"leaves {destination} alone for {seconds:.3f}: {reason}")

    def breaker_closed(self, destination: str) -> None:
        self._say(f"{destination} answers again")

    def paused(self, destination: str, *, reason: str) -> None:
        self._place.ledger.seen["paused"] += 1
        self._say(f"{destination} is paused: {reason}")

    def resumed(self, destination: str) -> None:
        self._say(f"{destination} is resumed")

    def lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        self._place.ledger.seen["inherited"] += inherited
        self._say(f"took lanes {list(partitions)} of {destination}, and {inherited} messages")

    def lanes_left(self, destination: str, partitions: Iterable[int]) -> None:
        self._place.ledger.seen["handed over"] += 1
        self._say(f"left lanes {list(partitions)} of {destination}")

    def fenced(self, destination: str, partitions: Iterable[int]) -> None:
        self._place.ledger.seen["fenced"] += 1
        self._say(f"is refused in lanes {list(partitions)} of {destination}")
        self._must_not(f"refused in lanes {list(partitions)} of {destination}")

    def lease_lost(self, *, reason: str) -> None:
        self._place.ledger.seen["lease lost"] += 1
        self._say(f"starts again: {reason}")
        self._must_not(reason)

    def store_failed(self, what: str, error: Exception) -> None:
        self._place.ledger.seen["store failed"] += 1
        self._say(f"{what} failed: {error}")

    def duty_failed(self, what: str, error: Exception) -> None:
        self._say(f"{what} failed: {error}")
