"""The one seam through which the relay tells what happens. Handlers turn it into log lines, metrics and spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pillarbox.message import Message
from pillarbox.protocols import Trouble

__all__ = ["SeveralTelemetries", "Telemetry"]


class Telemetry:
    """Every method does nothing: override what interests you. Calls are per batch wherever a batch is at hand."""

    def delivered(self, destination: str, messages: Sequence[Message]) -> None:
        """The destination acknowledged these."""

    def troubled(self, destination: str, message: Message, trouble: Trouble) -> None:
        """A message was not delivered: it waits for another attempt, is held, or failed."""

    def returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        """Messages went back untouched: no attempt was spent."""

    def settled(self, destination: str, *, delivered: int, troubled: int) -> None:
        """A batch of outcomes was recorded."""

    def breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        """The destination is down and left alone for so long."""

    def breaker_closed(self, destination: str) -> None:
        """The destination answers again."""

    def paused(self, destination: str, *, reason: str) -> None:
        """The destination was paused."""

    def resumed(self, destination: str) -> None:
        """The destination was resumed."""

    def lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        """The relay owns more lanes, and messages that were in a dead relay's hands."""

    def lanes_left(self, destination: str, partitions: Iterable[int]) -> None:
        """The relay handed lanes over."""

    def fenced(self, destination: str, partitions: Iterable[int]) -> None:
        """A write was refused: another relay owns those lanes."""

    def lease_lost(self, *, reason: str) -> None:
        """The relay dropped everything and starts again under a new id."""

    def store_failed(self, what: str, error: Exception) -> None:
        """The store could not be reached; it is tried again."""

    def duty_failed(self, what: str, error: Exception) -> None:
        """Cleaning, forgetting or forwarding failed; it is tried again at its next turn."""

    def cleaned(self, *, messages: int, inbox: int) -> None:
        """The janitor removed closed messages and dedup records."""


class SeveralTelemetries(Telemetry):
    """Tells several of them, in order."""

    def __init__(self, *telemetries: Telemetry) -> None:
        self._telemetries = telemetries

    def delivered(self, destination: str, messages: Sequence[Message]) -> None:
        for one in self._telemetries:
            one.delivered(destination, messages)

    def troubled(self, destination: str, message: Message, trouble: Trouble) -> None:
        for one in self._telemetries:
            one.troubled(destination, message, trouble)

    def returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        for one in self._telemetries:
            one.returned(destination, messages, reason=reason)

    def settled(self, destination: str, *, delivered: int, troubled: int) -> None:
        for one in self._telemetries:
            one.settled(destination, delivered=delivered, troubled=troubled)

    def breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        for one in self._telemetries:
            one.breaker_opened(destination, reason=reason, seconds=seconds)

    def breaker_closed(self, destination: str) -> None:
        for one in self._telemetries:
            one.breaker_closed(destination)

    def paused(self, destination: str, *, reason: str) -> None:
        for one in self._telemetries:
            one.paused(destination, reason=reason)

    def resumed(self, destination: str) -> None:
        for one in self._telemetries:
            one.resumed(destination)

    def lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        for one in self._telemetries:
            one.lanes_taken(destination, partitions, inherited=inherited)

    def lanes_left(self, destination: str, partitions: Iterable[int]) -> None:
        for one in self._telemetries:
            one.lanes_left(destination, partitions)

    def fenced(self, destination: str, partitions: Iterable[int]) -> None:
        for one in self._telemetries:
            one.fenced(destination, partitions)

    def lease_lost(self, *, reason: str) -> None:
        for one in self._telemetries:
            one.lease_lost(reason=reason)

    def store_failed(self, what: str, error: Exception) -> None:
        for one in self._telemetries:
            one.store_failed(what, error)

    def duty_failed(self, what: str, error: Exception) -> None:
        for one in self._telemetries:
            one.duty_failed(what, error)

    def cleaned(self, *, messages: int, inbox: int) -> None:
        for one in self._telemetries:
            one.cleaned(messages=messages, inbox=inbox)
