"""The memory transport: the reference that other transports are compared with, and what tests run on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Finding, Outcome, Severity, TransportFeatures
from pillarbox.transports.settings import settings_from
from pillarbox.transports.urls import TransportUrl

__all__ = ["MemoryTransport", "memory_transport"]


class MemoryTransport:
    """Delivers into a list. Can be told to fail in every way a broker can, without waiting for anything."""

    def __init__(self, *, batch: int = 500) -> None:
        self.features = TransportFeatures(name="memory", batch=batch)
        self.received: list[Message] = []
        """What was taken, in order of arrival. A message sent twice is in it twice."""
        self.arrived = asyncio.Event()
        """Set by a send that `hang` has stopped."""
        self._is_open = False
        self._is_up = True
        self._answers: deque[Outcome] = deque()
        self._cuts: deque[int] = deque()
        self._moves = asyncio.Event()
        self._moves.set()

    # the contract

    async def open(self) -> None:
        await asyncio.sleep(0)
        self._is_open = self._is_up
        self._check(mid_send=False)

    async def close(self) -> None:
        self._is_open = False
        self._moves.set()

    async def ping(self) -> None:
        await asyncio.sleep(0)
        self._check(mid_send=False)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._check(mid_send=False)
        await self._arrive()
        self._check(mid_send=True)
        if self._cuts:
            self.received.extend(messages[: self._cuts.popleft()])
            raise TransportUnavailable("The memory transport was told to break in the middle.", mid_send=True)
        return [self._taken(message) for message in messages]

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        del topics
        return [_FORGETS]

    # what tests can make it do

    def refuse_next(
        self, count: int = 1, *, error: str = "refused as told", retry_after: timedelta | None = None
    ) -> None:
        """Take not the next messages, but perhaps the same ones later."""
        self._answers.extend([Outcome(delivered=False, error=error, retry_after=retry_after)] * count)

    def reject_next(self, count: int = 1, *, error: str = "rejected as told") -> None:
        """Take the next messages never."""
        self._answers.extend([Outcome(delivered=False, error=error, rejected=True)] * count)

    def cut_next(self, *, taken: int = 0) -> None:
        """Break the connection under the next send, when this many of its messages were taken but not answered."""
        self._cuts.append(taken)

    def go_down(self) -> None:
        """Be away, also for what hangs now."""
        self._is_up = False
        self._moves.set()

    def hang(self) -> None:
        """Let every send wait, and take nothing, until `come_back`."""
        self.arrived.clear()
        self._moves.clear()

    def come_back(self) -> None:
        """Be up, and let go on what hangs."""
        self._is_up = True
        self._moves.set()

    def _check(self, *, mid_send: bool) -> None:
        if not self._is_up:
            raise TransportUnavailable("The memory transport was told to be down.", mid_send=mid_send)
        if not self._is_open:
            raise TransportUnavailable("The memory transport is not open; call open() first.", mid_send=mid_send)

    async def _arrive(self) -> None:
        if self._moves.is_set():
            await asyncio.sleep(0)
            return
        self.arrived.set()
        await self._moves.wait()

    def _taken(self, message: Message) -> Outcome:
        if self._answers:
            return self._answers.popleft()
        self.received.append(message)
        return Outcome(delivered=True)


_FORGETS: Final = Finding(
    code="memory.forgets",
    severity=Severity.WARNING,
    what="The memory transport delivers into a list of the relay's own process.",
    why="Every message counts as delivered, and is gone with the process.",
    fix="Use it in tests alone; give the destination the URL of a broker or an endpoint.",
)


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    batch: int = 500


def memory_transport(url: TransportUrl) -> MemoryTransport:
    """For `memory:`. Nothing but its own options may follow."""
    if url.place not in ("", "//"):
        raise ConfigError("The memory transport has no place: write memory: and nothing after it but options.")
    return MemoryTransport(batch=settings_from(_Settings, url.options, transport="memory").batch)
