"""Transports without a broker: they answer at once, after a while, never, or that nobody is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message

__all__ = ["Down", "Hanging", "NoOp", "Slow", "Tally"]

_FEATURES: Final = TransportFeatures(name="noop")


class Tally:
    """Counts what arrives, and knows how long the expected number took from the first on."""

    def __init__(self, expected: int = 0) -> None:
        self._expected = expected
        self._first = 0
        self._began = self._ended = 0.0
        self.arrived = 0
        self._complete = asyncio.Event()

    def add(self, count: int) -> None:
        if not self.arrived:
            self._began, self._first = time.perf_counter(), count
        self.arrived += count
        if self.arrived >= self._expected and not self._ended:
            self._ended = time.perf_counter()
            self._complete.set()

    async def rate(self) -> float:
        """Messages a second, between the first batch and the one that made the number full; waits for it."""
        await self._complete.wait()
        return (self._expected - self._first) / (self._ended - self._began)


class NoOp:
    """Acknowledges everything at once."""

    features: Final = _FEATURES

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._tally.add(len(messages))
        return [Outcome(True)] * len(messages)


class Slow(NoOp):
    """Acknowledges after a while, any number of batches side by side. Counts only what it is asked to count."""

    def __init__(self, tally: Tally, *, seconds: float, counts: Callable[[Message], bool]) -> None:
        super().__init__(tally)
        self._seconds = seconds
        self._counts = counts

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await asyncio.sleep(self._seconds)
        if counted := sum(map(self._counts, messages)):
            self._tally.add(counted)
        return [Outcome(True)] * len(messages)


class Down(NoOp):
    """Nobody is there."""

    async def ping(self) -> None:
        raise TransportUnavailable("connection refused")

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        raise TransportUnavailable("connection refused")


class Hanging(NoOp):
    """Takes everything and never answers."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await asyncio.Event().wait()
        return ()
