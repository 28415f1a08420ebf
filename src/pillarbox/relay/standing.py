"""Whether this relay may act: its name in the registry, and how long its lease surely holds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

__all__ = ["Standing"]

_LONGEST_HOLD: Final = 1.0
_HOLD_STEP: Final = 0.01


class Standing:
    """A relay's standing under one random id.

    The lease is counted on the steady clock from before its renewal was sent, so whatever the clocks of relay and
    database say, sending stops before another relay may take over.
    """

    def __init__(self, *, lease: timedelta) -> None:
        self._lease = lease.total_seconds()
        self._margin = self._lease / 10
        self.relay_id: UUID = uuid4()
        self._until = 0.0
        self._claims = 0
        self._unclaimed: set[int] = set()
        self._held_until = 0.0

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent at that moment was granted."""
        self._until = max(self._until, sent_at + self._lease)

    def may_act(self, now: float) -> bool:
        """Whether the lease surely holds a little longer."""
        return now < self._until - self._margin

    # --- what was inherited ---

    def inherited(self, message_ids: Iterable[int], *, now: float) -> None:
        """These were in the hands of relays that died. What is known of that is in no claim before they have one again.

        Were anything deadly sent meanwhile, it would be forgotten: two deadly messages could take turns for ever.
        """
        self._unclaimed.update(message_ids)
        self._held_until = now + min(_LONGEST_HOLD, self._lease / 3)

    def claimed(self, message_ids: Iterable[int]) -> None:
        """These are in a claim, or put aside."""
        if self._unclaimed:
            self._unclaimed.difference_update(message_ids)

    def hold(self, now: float) -> float:
        """Seconds in which nothing may be sent, for what was inherited is not claimed yet. Not for long: some waits."""
        return _HOLD_STEP if self._unclaimed and now < self._held_until else 0.0

    # --- claims ---

    def next_claim(self) -> int:
        """A number for a claim; none comes twice under one id."""
        return self.next_claims(1)

    def next_claims(self, count: int) -> int:
        """The first of so many numbers in a row, for claims that somebody else makes in this relay's name."""
        first = self._claims + 1
        self._claims += count
        return first
