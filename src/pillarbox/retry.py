"""When to try again, and when to give up. Pure: the caller brings the dice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.errors import ConfigError

__all__ = ["DEFAULT_RETRY", "Backoff", "RetryPolicy"]

_LONGEST: Final = timedelta(days=3650)
"""No wait is longer, whatever is configured: spreading it must not overflow."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Waits after each spent attempt, and the number of attempts.

    Without a `schedule` the waits double from `first` to `longest`; with one its last delay repeats. `jitter` spreads
    each wait by that part of it, up and down, so that what failed together does not come back together.
    """

    attempts: int | None = 5
    """The first and the retries together; None goes on forever."""
    first: timedelta = timedelta(seconds=2)
    longest: timedelta = timedelta(minutes=5)
    schedule: Sequence[timedelta] = ()
    jitter: float = 0.2

    def __post_init__(self) -> None:
        check_fields(self)
        if self.attempts is not None and self.attempts < 1:
            raise ConfigError('A retry policy needs at least 1 attempt; None, in a file "forever", is no limit.')
        if not 0 <= self.jitter < 1:
            raise ConfigError("A retry policy's jitter is a part of the delay: at least 0 and below 1.")
        if self.first <= timedelta(0) or any(delay < timedelta(0) for delay in self.schedule):
            raise ConfigError("A retry policy's delays must be positive.")

    def gives_up(self, spent: int) -> bool:
        """Return whether that many spent attempts were all there are."""
        return self.attempts is not None and spent >= self.attempts

    def delay(self, spent: int, *, dice: float) -> timedelta:
        """Return the wait after that many spent attempts (1 or more). `dice` is between 0 and 1."""
        return self._plain_delay(spent) * (1 + self.jitter * (2 * dice - 1))

    def _plain_delay(self, spent: int) -> timedelta:
        if self.schedule:
            return min(self.schedule[min(spent, len(self.schedule)) - 1], _LONGEST)
        longest = min(self.longest, _LONGEST)
        return timedelta(seconds=min(self.first.total_seconds() * 2.0 ** min(spent - 1, 60), longest.total_seconds()))


DEFAULT_RETRY: Final = RetryPolicy()
"""min(2^n s, 5 min), 5 attempts, with jitter."""


class Backoff:
    """Waits between the repeats of one call: doubling from `first` to `longest` seconds, each spread by half."""

    def __init__(self, *, first: float, longest: float, dice: random.Random) -> None:
        self._wait = first
        self._longest = longest
        self._dice = dice

    def next_wait(self) -> float:
        """Return the seconds to wait before the next repeat."""
        wait = self._wait * (0.5 + self._dice.random() / 2)
        self._wait = min(2 * self._wait, self._longest)
        return wait

    def slow_down(self) -> None:
        """Wait as long as possible from now on: a quick repeat will not help."""
        self._wait = self._longest
