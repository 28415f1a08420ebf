"""The story of one run, line by line, for a person; nothing at all when nobody reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from simulation.timeline import Timeline

__all__ = ["Tell", "Trace", "fingerprint"]

Tell = Callable[[str], None]


class Trace:
    """Writes down what happens, if there is somebody to `tell`."""

    def __init__(self, timeline: Timeline, tell: Tell | None = None) -> None:
        self._timeline = timeline
        self._tell = tell
        self.is_on = tell is not None

    def __call__(self, who: str, what: str) -> None:
        if self._tell is not None:
            self._tell(f"{self._timeline.now:9.4f} {who:8} {what}")


def fingerprint(lines: list[str]) -> str:
    """Two runs with the same one went the same way."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
