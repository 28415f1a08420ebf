"""Whether a cluster can be reached, pieced together from what the client lets slip. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pillarbox.transports.kafka.verdicts import Code
from pillarbox.transports.redaction import one_line

__all__ = ["Reach"]


class Reach:
    """The client reconnects by itself for ever, and says only in passing that it cannot."""

    def __init__(self, *, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._trouble: str | None = None
        self.down: str | None = None
        """Why no broker can be reached, as far as is known."""

    def heard(self, code: int, said: str) -> None:
        """The client has trouble with a connection, or with the last one it had."""
        told = self.told(said)
        if code == Code._ALL_BROKERS_DOWN:
            self.down = self._trouble or told
        else:
            self._trouble = told
            if self.down is not None:
                self.down = told

    def silent(self, said: str) -> None:
        """No broker answered in time."""
        self.down = self._trouble or self.told(said)

    def answered(self) -> None:
        """A broker answered."""
        self.down = self._trouble = None

    def told(self, said: str) -> str:
        """Fit for people: without secrets, on one line."""
        return self._hide(one_line(said)).rstrip(".")
