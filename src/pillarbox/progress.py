"""Progress of a send: a timeout that starts again whenever an answer comes or bytes leave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final, Protocol, Self

__all__ = ["Slots", "StallTimeout", "bound_unsent", "note_progress"]

_CHECKS: Final = 10
"""How often progress is looked for in the length of a timeout."""
_MAX_UNSENT: Final = 64 * 1024
_NOTE_INTERVAL: Final = 0.1


class _Progress(Protocol):
    def note(self) -> None: ...


_current: ContextVar[_Progress | None] = ContextVar("pillarbox_progress", default=None)


def _reset(token: Token[_Progress | None]) -> None:
    """Restore the progress from before, unless another context closes the coroutine, which has its own.

    The garbage collector does so after an event loop that ended with tasks left. An error here would replace its
    `GeneratorExit`, and the coroutine would go on as if its send had failed.
    """
    with suppress(ValueError):
        _current.reset(token)


class StallTimeout:
    """Raises `TimeoutError` out of a block in which nothing moves for some time.

    What moves is told by `note_progress`, or seen by `measure`, whose value changes with it. Progress of an inner
    timeout is progress of the outer ones: a send that a transport knows to be moving is not ended by the relay.
    """

    def __init__(self, seconds: float, *, measure: Callable[[], object] = lambda: None) -> None:
        self._seconds = seconds
        self._measure = measure

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._outer = _current.get()
        self._token = _current.set(self)
        self._moved_at = self._loop.time()
        self._measured = self._measure()
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._seconds / _CHECKS, self._check)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        _reset(self._token)
        await self._timeout.__aexit__(kind, error, trace)

    def note(self) -> None:
        """Note that something moved: the time starts again."""
        self._moved_at = self._loop.time()
        if self._outer is not None:
            self._outer.note()

    def _check(self) -> None:
        if (measured := self._measure()) != self._measured:
            self._measured = measured
            self.note()
        now = self._loop.time()
        left = self._moved_at + self._seconds - now
        if left <= 0:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_later(min(left, self._seconds / _CHECKS), self._check)


class Slots:
    """Semaphore for requests. What waits for a slot makes progress while those that hold one do."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)
        self._waiting: set[_Progress] = set()
        self._noted_at = 0.0

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the block. `note_progress` in it is for those that wait, too."""
        outer = _current.get()
        if outer is not None:
            self._waiting.add(outer)
        try:
            await self._semaphore.acquire()
        finally:
            if outer is not None:
                self._waiting.discard(outer)
        token = _current.set(_Holder(self, outer))
        try:
            yield
        finally:
            _reset(token)
            self._semaphore.release()

    def note(self) -> None:
        """Note progress for all that wait, now and then: they may be thousands."""
        now = asyncio.get_running_loop().time()
        if now >= self._noted_at + _NOTE_INTERVAL:
            self._noted_at = now
            for waiting in self._waiting:
                waiting.note()


class _Holder:
    """Holder of a slot."""

    def __init__(self, slots: Slots, outer: _Progress | None) -> None:
        self._slots = slots
        self._outer = outer

    def note(self) -> None:
        self._slots.note()
        if self._outer is not None:
            self._outer.note()


def bound_unsent(connection: socket.socket) -> None:
    """Have the kernel take only bytes that it can soon send, where it has that option.

    Otherwise it takes megabytes at once, and on a slow link no progress shows until they are acknowledged.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT)


def note_progress() -> None:
    """Note that the send under way makes progress, in a transport that sees it."""
    if (progress := _current.get()) is not None:
        progress.note()
