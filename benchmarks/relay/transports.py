"""Transports without a broker: they acknowledge at once, after a while or never, or cannot be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message

__all__ = ["DeliveryCounter", "DownTransport", "HangingTransport", "NoOpTransport", "SlowTransport"]

_FEATURES: Final = TransportFeatures(name="noop")


class DeliveryCounter:
    """Counts deliveries, and measures how long the expected number took after the first."""

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
        """Wait for the expected number, and return the messages per second after the first batch."""
        await self._complete.wait()
        return (self._expected - self._first) / (self._ended - self._began)


class NoOpTransport:
    """Acknowledges everything at once."""

    features: Final = _FEATURES

    def __init__(self, counter: DeliveryCounter) -> None:
        self._counter = counter

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._counter.add(len(messages))
        return [Outcome(True)] * len(messages)


class SlowTransport(NoOpTransport):
    """Acknowledges after a while, any number of batches in parallel. Counts only messages that `counts` selects."""

    def __init__(self, counter: DeliveryCounter, *, seconds: float, counts: Callable[[Message], bool]) -> None:
        super().__init__(counter)
        self._seconds = seconds
        self._counts = counts

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await asyncio.sleep(self._seconds)
        if counted := sum(map(self._counts, messages)):
            self._counter.add(counted)
        return [Outcome(True)] * len(messages)


class DownTransport(NoOpTransport):
    """Cannot be reached."""

    async def ping(self) -> None:
        raise TransportUnavailable("connection refused")

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        raise TransportUnavailable("connection refused")


class HangingTransport(NoOpTransport):
    """Accepts everything and never answers."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await asyncio.Event().wait()
        return ()
