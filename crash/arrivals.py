"""What came to the consumer: one line for each request, in the order they came, written before it is answered."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

__all__ = ["Arrival", "Arrivals"]


class Arrival(msgspec.Struct, frozen=True):
    """One request with a parcel in it."""

    subject: str
    key: str
    number: int
    status: int
    """The answer to it."""
    at: int
    """On the steady clock, which all processes of a machine share, in nanoseconds."""

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refused(self) -> bool:
        """By a word on this very parcel: 500 or 422. A 503 is said about the consumer."""
        return self.status in (500, 422)


class Arrivals:
    """The file of one scene. A line outlives whoever wrote it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def away(self) -> Path:
        """While this file is there, the consumer answers 503."""
        return self._path.with_suffix(".away")

    def record(self, subject: str, key: str, number: int, *, status: int) -> None:
        line = msgspec.json.encode(Arrival(subject, key, number, status, time.monotonic_ns())) + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def read(self) -> list[Arrival]:
        """All of them, in order."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        return [msgspec.json.decode(line, type=Arrival) for line in lines if line.endswith(b"\n")]
