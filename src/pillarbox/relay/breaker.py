"""Whether a destination is worth trying: closed it is, open it is not, half open one message finds out."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final

__all__ = ["Breaker", "BreakerState"]

_FIRST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(seconds=30)


class BreakerState(StrEnum):
    """What people see of it."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens on an outage, lets one probe through after a while, closes on the first acknowledgement.

    The wait doubles with each probe that fails, up to half a minute, and is spread by the caller's dice. All times are
    the caller's steady seconds.
    """

    def __init__(self, *, first: timedelta = _FIRST, longest: timedelta = _LONGEST) -> None:
        self._first = first.total_seconds()
        self._longest = longest.total_seconds()
        self.state = BreakerState.CLOSED
        self.reason: str | None = None
        self.opened = 0
        """How often in a row it opened without an acknowledgement in between."""
        self._until = 0.0
        self._since = 0.0

    def open(self, now: float, *, reason: str, dice: float, at_least: timedelta | None = None) -> float:
        """The destination is down. Answers for how many seconds it is left alone."""
        if self.is_closed:
            self._since = now
        self.state = BreakerState.OPEN
        self.reason = reason
        wait = min(self._first * (1 << min(self.opened, 10)), self._longest)
        wait *= 0.5 + dice / 2
        if at_least is not None:
            wait = max(wait, at_least.total_seconds())
        self.opened += 1
        self._until = now + wait
        return wait

    def half_open(self, now: float) -> bool:
        """Whether it is time for a probe; then the breaker waits for its outcome."""
        if self.state is BreakerState.OPEN and now >= self._until:
            self.state = BreakerState.HALF_OPEN
        return self.state is BreakerState.HALF_OPEN

    def close(self) -> bool:
        """The destination acknowledged something. Answers whether that is news."""
        was = self.state
        self.state = BreakerState.CLOSED
        self.reason = None
        self.opened = 0
        return was is not BreakerState.CLOSED

    def wait(self, now: float) -> float:
        """Seconds until a probe may go."""
        return max(0.0, self._until - now) if self.state is BreakerState.OPEN else 0.0

    def was_open_for(self, now: float) -> float:
        """Seconds since it opened and did not close again."""
        return 0.0 if self.is_closed else now - self._since

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED
