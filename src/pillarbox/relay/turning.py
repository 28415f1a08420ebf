"""Whether a loop turns, asked from outside of it."""

from __future__ import annotations

import asyncio
from typing import Final

from pillarbox.clock import Clock

__all__ = ["Turning"]


class Turning:
    """Gives a loop something to do whenever it is asked, and tells for how long that has been left undone.

    A loop that only waits, be it for a database that is away, turns. Safe to ask from any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Clock) -> None:
        self._loop: Final = loop
        self._clock: Final = clock
        self._asked_at: float | None = None

    def idle_for(self) -> float:
        """Seconds since it was first asked and did not answer; 0 while it answers, and when it has ended."""
        if (asked_at := self._asked_at) is not None:
            return max(self._clock.monotonic() - asked_at, 0.0)
        self._asked_at = self._clock.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._asked_at = None
        return 0.0

    def _answer(self) -> None:
        self._asked_at = None
