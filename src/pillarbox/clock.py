"""Clocks. Stores use the time of their database; tests use a clock that stands still."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "FrozenClock", "SystemClock"]


class Clock(Protocol):
    """Gives the time of day, and a steady count of seconds for measuring durations."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Return a number of seconds that only ever grows."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class FrozenClock:
    """Stands still until `advance` is called, so that tests compare times exactly."""

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if at.tzinfo is None:
            raise ValueError("A FrozenClock needs an aware datetime; give it a tzinfo.")
        self._at = at.astimezone(UTC)
        self._steady = 0.0

    def now(self) -> datetime:
        return self._at

    def monotonic(self) -> float:
        return self._steady

    def advance(self, by: timedelta) -> datetime:
        """Move both times forward, and return the new time of day."""
        if by < timedelta(0):
            raise ValueError("Time does not go backwards; use jump() for a clock that was set wrong.")
        self._at += by
        self._steady += by.total_seconds()
        return self._at

    def jump(self, to: datetime) -> None:
        """Set the time of day alone, as a wrong clock or its correction does."""
        self._at = to.astimezone(UTC)
