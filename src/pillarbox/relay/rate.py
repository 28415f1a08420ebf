"""A rate limit: tokens that grow with time, spent one per message. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["Rate"]

_ROUNDING: Final = 1e-6
"""A token that lacks so little is there: waiting for the rest takes no time that a clock could show."""


class Rate:
    """At most so many messages a second, with a burst of one second's worth (at least one)."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second or 0.0)
        self._tokens = self._most
        self._at: float | None = None

    def allowed(self, now: float, wanted: int) -> int:
        """How many of the wanted messages may go now."""
        if self._per_second is None:
            return wanted
        if self._at is not None:
            self._tokens = min(self._most, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        return min(wanted, int(self._tokens + _ROUNDING))

    def spend(self, count: int) -> None:
        """That many went."""
        if self._per_second is not None:
            self._tokens -= count

    def wait(self) -> float:
        """Seconds until one more may go, from when `allowed` was last asked."""
        if self._per_second is None or self._tokens + _ROUNDING >= 1:
            return 0.0
        return (1 - self._tokens) / self._per_second
