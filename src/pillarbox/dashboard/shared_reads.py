"""Reads that all open tabs share: what refreshes by itself costs a store the same for one viewer and for fifty."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast

from pillarbox.contracts.store import Store

__all__ = ["SharedReads"]

_SHARED: Final = frozenset({
    "claims", "count_blocked", "count_phases", "count_tries", "facts", "failure_groups", "find", "find_key",
    "inbox_activity", "inbox_failures", "inbox_records", "journal", "lane_backlogs", "now", "pauses", "registry",
    "rollups", "tables",
})  # fmt: skip
"""Calls that change nothing, and whose answer is small."""
_MOST: Final = 1_000


class SharedReads:
    """A store whose answers are kept for a moment. Whoever asks the same meanwhile gets the same answer.

    The time of the store is kept too, so that questions which depend on it are the same. A question that failed is
    asked again.
    """

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._answers: dict[tuple[str, str], tuple[float, asyncio.Task[Any]]] = {}

    def wrap(self, store: Store) -> Store:
        """Return the store with these calls shared. It is for reading alone."""
        return cast("Store", _Reader(store, self))

    async def ask(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the answer of a call, or the one that was given a moment ago."""
        key = name, repr((arguments, sorted(named.items())))
        now = time.monotonic()
        known = self._answers.get(key)
        if known is None or now - known[0] > self._seconds or _has_failed(known[1]):
            if len(self._answers) >= _MOST:
                self._forget(now)
            known = self._answers[key] = now, asyncio.ensure_future(call(*arguments, **named))
        # One viewer who leaves must not end the question of the others.
        return await asyncio.shield(known[1])

    def _forget(self, now: float) -> None:
        old = [key for key, (at, task) in self._answers.items() if task.done() and now - at > self._seconds]
        for key in old or list(self._answers):
            del self._answers[key]


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class _Reader:
    """Store of one request."""

    def __init__(self, store: Store, shared: SharedReads) -> None:
        self._store = store
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in _SHARED:
            return call

        async def ask(*arguments: Any, **named: Any) -> Any:
            if name == "find" and named.get("payloads", True):  # payloads are not kept, not even for a moment
                return await call(*arguments, **named)
            return await self._shared.ask(name, call, arguments, named)

        return ask
