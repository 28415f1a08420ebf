"""Waits of a schema change for locks: short ones, again and again.

Writers and relays queue up behind a change that waits for a lock. So each wait is short, and between two of them
everybody goes on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pillarbox.retry import Backoff

__all__ = ["DEFAULT_LOCK_TIMEOUT", "DEFAULT_PATIENCE", "LockWait", "Report", "ignore_report"]

DEFAULT_LOCK_TIMEOUT: Final = timedelta(seconds=2)
DEFAULT_PATIENCE: Final = timedelta(minutes=1)
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 3.0

Report = Callable[[str], None]
"""Takes one sentence of progress, for a person."""


def ignore_report(_: str) -> None:
    """Take a sentence and do nothing."""


class LockWait:
    """Patience of one schema change: how long it pauses before it asks for a lock again, and when it gives up."""

    def __init__(self, *, lock_timeout: timedelta, patience: timedelta, report: Report) -> None:
        self.lock_timeout = lock_timeout
        self._patience = patience.total_seconds()
        self._report = report
        self._until: float | None = None
        self._backoff = Backoff(first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, dice=random.Random())  # noqa: S311

    def begin(self) -> None:
        """Start to count: what comes now is another change."""
        self._until = None
        self._backoff = Backoff(first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, dice=random.Random())  # noqa: S311

    def next_pause(self, reason: str) -> float | None:
        """Return the seconds to pause after a lock was not to be had; None when patience is over."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._patience
        pause = self._backoff.next_wait()
        if now + pause > self._until:
            return None
        self._report(f"A transaction uses the tables ({reason}): trying again in {pause:.1f} s.")
        return pause
