"""Asks the tables about one relay, and answers probes with what they say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from pillarbox.errors import PillarboxError
from pillarbox.health.verdicts import MOST_STUCK, Seen, Verdict, is_live, is_ready
from pillarbox.monitor import STUCK_AFTER, Monitor, Status
from pillarbox.protocols import OpenClaim, Registry, Store
from pillarbox.relay.relay import Pulse

__all__ = ["Probes"]

_FRESH: Final = 1.0
"""Seconds for which an answer is good enough: probes and scrapes must not load the database."""
_WITHIN: Final = 2.0
"""Seconds in which the tables must answer: a platform that waits in vain would take a relay for dead."""

T = TypeVar("T")


class Probes:
    """What a platform asks. `store` is a connection of its own: a relay that hangs must not hang this."""

    def __init__(self, store: Store, pulse: Callable[[], Pulse]) -> None:
        self._store = store
        self._pulse = pulse
        self._tables = _Kept(self._looked)
        self._status = _Kept(self._asked)
        self._opening = asyncio.Lock()
        self._is_open = False

    async def close(self) -> None:
        self._tables.stop()
        self._status.stop()
        await self._store.close()

    async def live(self) -> Verdict:
        return is_live(await self._seen())

    async def ready(self) -> Verdict:
        return is_ready(await self._seen())

    async def status(self) -> Status | None:
        """How things are; the last known while the store cannot be reached, None before the first."""
        await self._status.answer()
        return self._status.latest

    async def _seen(self) -> Seen:
        tables = await self._tables.answer() or _Tables(trouble=f"it did not answer within {_WITHIN:g} s")
        pulse = self._pulse()
        return Seen(
            relay_id=pulse.relay_id,
            stopping=pulse.stopping,
            idle_for=pulse.idle_for,
            lease=pulse.lease,
            registry=tables.registry,
            stuck=[claim for claim in tables.stuck if claim.relay_id == pulse.relay_id],
            trouble=tables.trouble,
        )

    async def _looked(self) -> _Tables:
        try:
            await self._opened()
            registry = await self._store.registry(lease=self._pulse().lease)
            return _Tables(registry, await self._store.claims(older_than=STUCK_AFTER, limit=MOST_STUCK))
        except PillarboxError as error:
            return _Tables(trouble=str(error))

    async def _asked(self) -> Status | None:
        try:
            await self._opened()
            return await Monitor(self._store, lease=self._pulse().lease).status()
        except PillarboxError:
            return self._status.latest

    async def _opened(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self._store.open()
                self._is_open = True


class _Tables(msgspec.Struct, frozen=True):
    """What the tables say; without a registry, why they say nothing."""

    registry: Registry | None = None
    stuck: Sequence[OpenClaim] = ()
    trouble: str | None = None


class _Kept(Generic[T]):
    """An answer that is asked for once, by however many want it, and kept for a moment."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[T] | None = None
        self._at = 0.0
        self.latest: T | None = None

    async def answer(self) -> T | None:
        """A fresh one, or None: there is none in time. Then the question stands, and the next to ask waits for it too.

        It is not taken back: a driver that has to interrupt what the server does not answer may hang over that itself.
        """
        if self.latest is not None and time.monotonic() - self._at <= _FRESH:
            return self.latest
        if self._task is None:
            self._task = asyncio.create_task(self._remembered())
        task = self._task
        await asyncio.wait({task}, timeout=_WITHIN)
        return task.result() if task.done() else None

    async def _remembered(self) -> T:
        try:
            self.latest = await self._ask()
            self._at = time.monotonic()
            return self.latest
        finally:
            self._task = None

    def stop(self) -> None:
        """Nobody waits for an answer any more."""
        if self._task is not None:
            self._task.cancel()
