"""Where the time comes from. Stores ask their database; tests freeze it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "FrozenClock", "SystemClock"]


class Clock(Protocol):
    """Tells the time of day, and a steady count of seconds for measuring spans."""

    def now(self) -> datetime:
        """The time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds that only ever grow."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class FrozenClock:
    """Stands still until told to move, so that tests compare times exactly."""

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
        """Move forward, on both hands, and return the new time."""
        if by < timedelta(0):
            raise ValueError("Time does not go backwards; use jump() for a clock that was set wrong.")
        self._at += by
        self._steady += by.total_seconds()
        return self._at

    def jump(self, to: datetime) -> None:
        """Set the time of day alone, as a wrong clock or its correction does."""
        self._at = to.astimezone(UTC)
