"""When to look again: at once while there is work, less and less often when there is none, or when woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Final

from pillarbox.protocols import Wakeups

__all__ = ["Drowsing", "Sleeper", "wait_within"]

_SHORTEST: Final = 0.005
_DROWSY: Final = 0.04
_BUSY_ROUNDS: Final = 3
_LOOK: Final = 0.05
_STORM: Final = 4
"""So many notifications between two looks, and the writers pay for more than one wake-up is worth."""
_SHORTEST_REST: Final = 5
_LONGEST_REST: Final = 600
"""Looks after a storm before wake-ups are asked for again."""


async def wait_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but not longer than that: then the clock sets it. Every turn of a loop pays for this."""
    if not event.is_set():
        alarm = asyncio.get_running_loop().call_later(seconds, event.set)
        try:
            await event.wait()
        finally:
            alarm.cancel()


class Sleeper:
    """Adaptive polling: 5 ms after something was found, doubling up to the poll interval."""

    def __init__(self, *, poll_interval: timedelta) -> None:
        self.longest = poll_interval.total_seconds()
        self.shortest = min(_SHORTEST, self.longest)
        self._next = self.shortest
        self._found_in_a_row = 0
        self.finds = 0
        """How many rounds found something."""
        self.is_full = False
        """There is no room for more: that is no idleness, and a wake-up would help nobody."""

    def after(self, found: bool) -> float:
        """Seconds to wait after a round that found something, or nothing."""
        if found:
            self._next = self.shortest
            self._found_in_a_row += 1
            self.finds += 1
            return 0.0
        wait = self._next
        self._next = min(2 * wait, self.longest)
        self._found_in_a_row = 0
        return wait

    def woken(self) -> None:
        """Somebody knows that there is something: look often again."""
        self._next = self.shortest

    @property
    def is_drowsy(self) -> bool:
        """Nothing was found for a while: a wake-up would be welcome."""
        return self._next >= min(_DROWSY, self.longest) and not self.is_full

    @property
    def is_busy(self) -> bool:
        """Every look finds something, or there is no room for it: wake-ups would only cost the writers."""
        return self._found_in_a_row >= _BUSY_ROUNDS or self.is_full


class Drowsing:
    """Asks the writers to wake this relay while it has nothing to do, and only then: a notification costs them.

    A storm of notifications ends the asking at once. One that brought nothing, as when all that is written goes to a
    destination that is down, is followed by a longer and longer rest: polling goes on meanwhile.
    """

    def __init__(
        self,
        sleepers: Iterable[Sleeper],
        *,
        wakeups: Wakeups,
        tell: Callable[[], Awaitable[None]],
        peek: Callable[[], None],
    ) -> None:
        self._sleepers = list(sleepers)
        self._wakeups = wakeups
        self._tell = tell
        self._peek = peek
        self._hurry = asyncio.Event()
        self._heard = 0
        self._finds = 0
        self._rest = _SHORTEST_REST
        self._resting = 0
        self.is_asleep = False

    async def run(self) -> None:
        while True:
            await self.run_once()
            await wait_within(self._hurry, _LOOK)

    def notified(self) -> None:
        """A writer has told that it committed."""
        self._heard += 1
        if self._heard >= _STORM and self.is_asleep:
            self._hurry.set()

    async def run_once(self) -> None:
        """Arm or disarm. After arming comes one more look: what was committed just before would wake nobody."""
        heard, self._heard = self._heard, 0
        self._hurry.clear()
        self._resting = max(0, self._resting - 1)
        asleep = self._wakeups.is_listening and (self._sleeps_on(heard) if self.is_asleep else self._may_sleep())
        if asleep != self.is_asleep:
            self.is_asleep = asleep
            await self._tell()
            if asleep:
                self._finds = self._found()
                self._peek()

    def _may_sleep(self) -> bool:
        return not self._resting and all(sleeper.is_drowsy for sleeper in self._sleepers)

    def _sleeps_on(self, heard: int) -> bool:
        if heard >= _STORM:
            self._rest = _SHORTEST_REST if self._found() > self._finds else min(2 * self._rest, _LONGEST_REST)
            self._resting = self._rest
            return False
        return not any(sleeper.is_busy for sleeper in self._sleepers)

    def _found(self) -> int:
        return sum(sleeper.finds for sleeper in self._sleepers)
