"""Clocks that disagree: the store's, and one for each process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from simulation.timeline import Timeline

__all__ = ["EPOCH", "ProcessClock", "StoreClock"]

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class StoreClock:
    """The database's clock. It may be set forwards or backwards."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._offset = 0.0
        self.was_set = False

    def set(self, by: float) -> None:
        """Somebody corrects it."""
        self._offset += by
        self.was_set = True

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._timeline.now + self._offset)

    def monotonic(self) -> float:
        return self._timeline.now


class ProcessClock:
    """A process's clock: its seconds are a little longer or shorter, and its day is another."""

    def __init__(self, timeline: Timeline, *, rate: float, offset: float) -> None:
        self._timeline = timeline
        self._rate = rate
        self._offset = offset
        self._least = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        shown = self._timeline.now * self._rate + self._offset
        return shown if shown > self._least else self._least

    def virtual(self, when: float) -> float:
        """The moment at which this clock shows that."""
        return max(self._timeline.now, (when - self._offset) / self._rate)

    def reached(self, when: float) -> None:
        """A timer went off: whatever rounding says, the clock shows its time now."""
        self._least = max(self._least, when)
