"""Circuit breaker of a destination, and the timer of its pings. Pure: times are the caller's monotonic seconds."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final

__all__ = ["Breaker", "BreakerState", "PingTimer"]

_FIRST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(seconds=30)


class BreakerState(StrEnum):
    """Closed: messages flow. Open: nothing is sent. Half open: one message is sent as a probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens on an outage, lets one probe through after a while, closes on the first acknowledgement.

    The wait doubles with each probe that fails, up to half a minute, and is spread by the caller's dice.
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
        """Open, because the destination is down; return for how many seconds."""
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
        """Become half open if it is time for a probe; return whether a probe may be sent."""
        if self.state is BreakerState.OPEN and now >= self._until:
            self.state = BreakerState.HALF_OPEN
        return self.state is BreakerState.HALF_OPEN

    def close(self) -> bool:
        """Close, because the destination acknowledged something; return whether it was not closed before."""
        was_closed = self.is_closed
        self.state = BreakerState.CLOSED
        self.reason = None
        self.opened = 0
        return not was_closed

    def wait(self, now: float) -> float:
        """Return the seconds until a probe may be sent."""
        return max(0.0, self._until - now) if self.state is BreakerState.OPEN else 0.0

    def open_for(self, now: float) -> float:
        """Return the seconds since it opened; 0 while it is closed."""
        return 0.0 if self.is_closed else now - self._since

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED


class PingTimer:
    """Due when nothing was acknowledged and no ping was sent for an interval."""

    def __init__(self, *, interval: timedelta) -> None:
        self._interval = interval.total_seconds()
        self._acknowledged = -1
        self._next = 0.0

    def is_due(self, now: float, *, acknowledged: int) -> bool:
        """Return whether to ping now. An acknowledgement since the last call starts a new interval, as a ping does."""
        if acknowledged == self._acknowledged and now < self._next:
            return False
        is_due = acknowledged == self._acknowledged
        self._acknowledged = acknowledged
        self._next = now + self._interval
        return is_due
