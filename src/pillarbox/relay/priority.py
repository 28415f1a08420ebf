"""Priority of retries over new messages: new ones wait while a retry is due."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from pillarbox.clock import Clock
from pillarbox.contracts.store import Cursor, ReadResult
from pillarbox.relay.destination import DestinationState

__all__ = ["ReadPriority", "survey_lanes"]

_SURVEY_LANES: Final = 8
"""Lanes of which one read finds the first fresh message each."""
_SOON: Final = 1.0
"""Seconds for which new messages wait for retries that were read, and for what is due behind them, since the last one
was sent."""
_LONGEST_HOLD: Final = 60.0
"""Seconds after which new messages are read once, though retries that go first are still due."""


class ReadPriority:
    """Which of `send` and `retry` goes first, and since when the other waits."""

    def __init__(self, clock: Clock, *, sends_first: bool) -> None:
        self.sends_first: Final = sends_first
        self._clock = clock
        self._waiting_read_at = -math.inf
        self._unsent = 0
        """How many retries that were read were not sent yet at the last look."""
        self._hold_until = clock.monotonic() + _LONGEST_HOLD
        self._surveyed: Collection[int] = ()
        """Lanes whose first fresh messages are known, before the first read of them."""

    def holds_fresh(self, now: float) -> bool:
        """Return whether new messages wait while a retry is due: not once a minute, so that they never starve."""
        return not self.sends_first and now < self._hold_until

    def note_waiting(self, now: float) -> None:
        """Note that retries were read."""
        self._waiting_read_at = now

    def note_unsent(self, now: float, count: int) -> None:
        """Note how many retries that were read are not sent yet: fewer than before means that some were."""
        if count < self._unsent:
            self._waiting_read_at = now
        self._unsent = count

    def is_soon(self, now: float) -> bool:
        """Return whether retries were read or sent a moment ago: the others, and what follows in their keys, go soon.

        No longer than that, for one that hangs must not hold all others up.
        """
        return now - self._waiting_read_at < _SOON

    def note_fresh(self) -> None:
        """Note that new messages are read."""
        self._hold_until, self._surveyed = self._clock.monotonic() + _LONGEST_HOLD, ()

    def begin_survey(self, lanes: Collection[int]) -> bool:
        """Return whether it is to be found out where the fresh messages of these lanes begin.

        That is done once. Where it fails, the reads go on without it.
        """
        is_wanted, self._surveyed = self._surveyed != lanes, lanes
        return is_wanted


async def survey_lanes(state: DestinationState, partitions: list[int], restart: Collection[int]) -> None:
    """Find out where the fresh messages of lanes begin that have not been read yet."""
    parts = [partitions[at : at + _SURVEY_LANES] for at in range(0, len(partitions), _SURVEY_LANES)]
    try:
        found = [await state.store.read(state.name, partitions=part, cursor=None, limit=len(part)) for part in parts]
    except BaseException:
        state.ordering.abort_read(restart)
        raise
    messages = [message for result in found for message in result.messages]
    complete = frozenset(partition for result in found for partition in result.complete)
    state.ordering.accept_survey(ReadResult(messages, Cursor(), complete), partitions)
