"""Fetches what a client has to say, in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["Fetching"]

_AT_ONCE: Final = 0.001
"""Seconds, as all of these. For so long after something was sent or came, every turn of the loop has a look."""
_SHARE: Final = 0.25
_SLOWEST: Final = 0.005
_IDLE: Final = 1.0
_FEW: Final = 16
"""More answers than these are fetched less often, so that what follows from them happens together too."""


class Fetching:
    """Calls `poll` again and again: soon while answers are waited for, seldom otherwise.

    Not in a thread: the client takes and drops the interpreter's lock for each answer, so that a thread waits for
    a busy loop once per message. That was 3,000 messages a second where this has 170,000.
    """

    def __init__(self, poll: Callable[[], int], *, awaited: Callable[[], int]) -> None:
        self._poll = poll
        self._awaited = awaited
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._next = self._loop.call_soon(self._turn)
        self._is_idle = False

    def hurry(self) -> None:
        """Something was sent: its answer may come at once."""
        self._heard_at = self._loop.time()
        if self._is_idle:
            self._is_idle = False
            self._next.cancel()
            self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()

    def _turn(self) -> None:
        # First the appointment, then the work: what is called in it may stop this.
        now = self._loop.time()
        self._next = self._loop.call_later(self._wait(now), self._turn)
        if self._poll():
            self._heard_at = now

    def _wait(self, now: float) -> float:
        """The longer nothing came, the later the next look: an answer is at most a quarter later by it."""
        awaited = self._awaited()
        self._is_idle = not awaited
        if not awaited:
            return _IDLE
        quiet = now - self._heard_at
        if quiet < _AT_ONCE:
            return 0.0 if awaited <= _FEW else _AT_ONCE
        return min(max(quiet * _SHARE, _AT_ONCE), _SLOWEST)
