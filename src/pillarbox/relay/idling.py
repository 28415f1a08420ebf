"""When a destination to which nothing is sent should be asked whether it is there. Pure."""

from __future__ import annotations

from datetime import timedelta

__all__ = ["Idling"]


class Idling:
    """Due when so long nothing was acknowledged and nothing was asked. All times are the caller's steady seconds."""

    def __init__(self, *, every: timedelta) -> None:
        self._every = every.total_seconds()
        self._acknowledged = -1
        self._next = 0.0

    def is_due(self, now: float, *, acknowledged: int) -> bool:
        """Whether to ask now; then the next time is counted from here. What was acknowledged is answer enough."""
        if acknowledged == self._acknowledged and now < self._next:
            return False
        is_due = acknowledged == self._acknowledged
        self._acknowledged = acknowledged
        self._next = now + self._every
        return is_due
