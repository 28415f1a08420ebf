"""Lease of one relay: its id in the registry, until when it may act, and the numbers of its claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from pillarbox.clock import Clock
from pillarbox.errors import StoreError

__all__ = ["Lease", "LoopProgress", "StoreFailures"]

_LONGEST_PAUSE: Final = 1.0
_PAUSE_STEP: Final = 0.01
"""Seconds after which a paused sender asks again."""


class Lease:
    """Lease under one random relay id.

    It is counted on the monotonic clock from before its renewal was sent. So sending stops before another relay may
    take over, whatever the wall clocks of relay and database show.
    """

    def __init__(self, *, duration: timedelta) -> None:
        self.relay_id: UUID = uuid4()
        self._duration = duration.total_seconds()
        self._margin = self._duration / 10
        """Seconds before its end at which the relay stops acting: a call needs time, and clocks differ in speed."""
        self._until = 0.0
        self._claims = 0
        self._unclaimed: set[int] = set()
        """Recovered messages that are not claimed again yet."""
        self._paused_until = 0.0

    @property
    def duration(self) -> float:
        """Its length in seconds."""
        return self._duration

    def extend(self, sent_at: float) -> None:
        """Note that a renewal which was sent at that moment was granted."""
        # The answers to two renewals may come in the wrong order: the later renewal counts.
        self._until = max(self._until, sent_at + self._duration)

    def may_act(self, now: float) -> bool:
        """Return whether the lease surely holds a little longer."""
        return now < self._until - self._margin

    # --- recovered messages ---

    def pause_for_claims(self, message_ids: Iterable[int], *, now: float) -> None:
        """Send nothing until these messages of dead relays are claimed again, or a short time has passed.

        Their strikes are in no claim until then. If this relay died of another message meanwhile, they would be lost,
        and two deadly messages could take turns for ever.
        """
        self._unclaimed.update(message_ids)
        self._paused_until = now + min(_LONGEST_PAUSE, self._duration / 3)

    def note_claimed(self, message_ids: Iterable[int]) -> None:
        """Note that these messages are claimed, or parked."""
        if self._unclaimed:
            self._unclaimed.difference_update(message_ids)

    def pause_left(self, now: float) -> float:
        """Return the seconds until the sender should ask again, 0 if it may send.

        The pause is bounded, because some of the recovered messages may wait for a retry or behind another message.
        """
        return _PAUSE_STEP if self._unclaimed and now < self._paused_until else 0.0

    # --- claim numbers ---

    def next_claim_number(self) -> int:
        """Return a number for a claim; none comes twice under one relay id."""
        return self.reserve_claim_numbers(1)

    def reserve_claim_numbers(self, count: int) -> int:
        """Reserve consecutive numbers, for claims that a takeover makes in this relay's name; return the first."""
        first = self._claims + 1
        self._claims += count
        return first


class LoopProgress:
    """Progress of one loop of a relay. The lease is renewed only while every loop makes progress.

    A loop that waits for the store is not stuck: every call of the store ends by itself, and a store that is slow or
    locked would be as slow for the relay that took over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_turn = clock.monotonic()
        self._is_waiting = False

    @property
    def last_turn(self) -> float:
        """Time of the last turn; the present while the loop waits for the store."""
        return self._clock.monotonic() if self._is_waiting else self._last_turn

    @contextmanager
    def wait_for_store(self) -> Iterator[None]:
        """Count the block as progress, and its end as a turn. It waits for nothing but the store."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
            self._last_turn = self._clock.monotonic()


class StoreFailures:
    """Since when one kind of call to the store fails, and why."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self._error: StoreError | None = None

    def note(self, error: StoreError) -> None:
        """Note that a call failed."""
        self._error = error
        if self._since is None:
            self._since = self._clock.monotonic()

    def end(self) -> None:
        """Note that a call succeeded."""
        self._since = None

    def check(self, *, within: float) -> None:
        """Raise the last error, if calls have failed for so many seconds."""
        if self._since is not None and self._error is not None and self._clock.monotonic() - self._since >= within:
            raise self._error
