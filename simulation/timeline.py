"""Virtual time: what is to happen, in order of time, and nothing in between."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, Protocol

__all__ = ["Runnable", "Spinning", "Timeline"]

_MOST_AT_ONCE: Final = 200_000
"""Events of one moment, after which time would never go on."""


class Spinning(Exception):
    """Something keeps itself busy without letting time go on."""


class Runnable(Protocol):
    """What has work of its own to do before time goes on."""

    def run_ready(self) -> None:
        """Do it all."""


class Timeline:
    """One queue for everything that happens: steps of relays, answers of stores and brokers, commits, faults."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runnable: list[Runnable] = []
        """Who has work to do at this moment."""
        self.running: Runnable | None = None
        """Who did the last of it."""
        self._queue: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._number = 0
        self._is_over = False

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        """Call then; what is for the same moment is called in the order it was asked for."""
        self._number += 1
        heappush(self._queue, (when, self._number, call, args))

    def after(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        """Call in so many seconds."""
        self._number += 1
        heappush(self._queue, (self.now + seconds, self._number, call, args))

    def end(self) -> None:
        """Nothing more is to happen."""
        self._is_over = True

    def run(self, *, until: float) -> None:
        """Let time go on until that moment, or its end."""
        queue, runnable = self._queue, self.runnable
        at_once = 0
        while queue and queue[0][0] <= until and not self._is_over:
            when, _, call, args = heappop(queue)
            if when > self.now:
                self.now, at_once = when, 0
            elif (at_once := at_once + 1) > _MOST_AT_ONCE:
                raise Spinning(f"time stands still at {self.now:.3f}")
            call(*args)
            while runnable:
                runnable.pop().run_ready()
