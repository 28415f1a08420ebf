"""When the director strikes: which relay is killed, and when the consumer goes down and comes back. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from random import Random
from typing import Final

import msgspec

from pillarbox.demo.story import Story

__all__ = ["ConsumerDown", "ConsumerUp", "Cue", "KillRelay", "Progress", "Script"]

_EVERY: Final = (0.5, 1.0)
_FEWEST_KILLS: Final = 3


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the story is, at one look."""

    seconds: float
    orders: int
    """To be committed in the end."""
    committed: int
    rolled_back: int
    delivered: int
    sending: int
    pending: int
    failed: int
    kills: int
    outages: int
    received: int
    """Different messages that the consumer has processed or refused."""
    consumer_is_up: bool
    shop_is_done: bool
    relays: Sequence[int]
    """Those that are registered and alive, by their number."""

    @property
    def is_delivered(self) -> bool:
        """Nothing is left to deliver, and nothing more will come."""
        return self.shop_is_done and not self.sending and not self.pending

    @property
    def is_received(self) -> bool:
        """And nothing waits at a broker for the consumer."""
        return self.is_delivered and self.received >= self.committed - self.failed


class KillRelay(msgspec.Struct, frozen=True):
    """SIGKILL for this one; another is started in its place."""

    relay: int


class ConsumerDown(msgspec.Struct, frozen=True):
    """SIGKILL for the consumer."""


class ConsumerUp(msgspec.Struct, frozen=True):
    """The consumer is started again."""


Cue = KillRelay | ConsumerDown | ConsumerUp


class _Outage(Enum):
    AHEAD = auto()
    NOW = auto()
    OVER = auto()


class Script:
    """Asked at every look what is to be done now.

    Relays are killed until all orders are placed, the consumer is back and most is delivered; then they are left in
    peace. Only a relay that has registered is killed, and only when enough was delivered since the last one died, or
    nothing can be: killing programs that have not begun would prove nothing.
    """

    def __init__(self, story: Story) -> None:
        self._story = story
        self._dice = Random(f"{story.seed} kills")  # noqa: S311 - a story, not a secret
        self._kill_at = 0.0
        self._kill_after = 1
        """Deliveries that the next kill waits for."""
        self._outage = _Outage.AHEAD
        self._back_at = 0.0

    def cues(self, progress: Progress) -> Iterator[Cue]:
        """What to do now."""
        yield from self._outage_cues(progress)
        if not self._is_calm(progress) and progress.relays and self._is_time_to_kill(progress):
            self._kill_at = progress.seconds + self._dice.uniform(*_EVERY)
            self._kill_after = progress.delivered + self._story.kill_after
            yield KillRelay(self._dice.choice(progress.relays))

    def is_over(self, progress: Progress) -> bool:
        """Everything that was to happen has happened, and everything has arrived."""
        return self._is_calm(progress) and progress.is_received

    def _is_time_to_kill(self, progress: Progress) -> bool:
        can_deliver = self._outage is not _Outage.NOW and not progress.is_delivered
        return progress.seconds >= self._kill_at and (progress.delivered >= self._kill_after or not can_deliver)

    def _is_calm(self, progress: Progress) -> bool:
        is_told = progress.shop_is_done and self._outage is _Outage.OVER and progress.kills >= _FEWEST_KILLS
        return is_told and (progress.delivered >= self._story.kills_until or progress.is_delivered)

    def _outage_cues(self, progress: Progress) -> Iterator[Cue]:
        if self._outage is _Outage.AHEAD and progress.committed >= self._story.outage_after:
            self._outage = _Outage.NOW
            self._back_at = progress.seconds + self._story.outage_seconds
            yield ConsumerDown()
        elif self._outage is _Outage.NOW and progress.seconds >= self._back_at:
            self._outage = _Outage.OVER
            yield ConsumerUp()
