"""Lines in the log that somebody outside can cause: at most some of them each minute."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LogLimit"]

_WINDOW: Final = 60.0


class LogLimit:
    """Writes at most `most` lines a minute, and counts the others. For any thread.

    A client that sends nonsense, or guesses passwords, must not fill the disk with lines about it.
    """

    def __init__(self, log: logging.Logger, *, most: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._began_at = clock()
        self._count = 0

    def write(self, level: int, text: str, *values: object, error: BaseException | None = None) -> None:
        """Write a line with the traceback of an error, if this minute has room for it."""
        with self._lock:
            left_out = 0
            if self._clock() - self._began_at >= _WINDOW:
                left_out = max(self._count - self._most, 0)
                self._began_at, self._count = self._clock(), 0
            self._count += 1
            is_shown = self._count <= self._most
        if left_out:
            self._log.log(level, "%d more lines of this kind were left out before", left_out)
        if is_shown:
            self._log.log(level, text, *values, exc_info=error)
