"""A check that hangs must not hang the doctor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

__all__ = ["Bounds", "Unanswered"]

T = TypeVar("T")

_GRACE: Final = 1.0
"""Seconds to clean up in after being cancelled."""


class Unanswered(Exception):
    """It took too long."""


class Bounds:
    """Gives each check its time, and gives up on what takes longer."""

    def __init__(self, within: timedelta) -> None:
        self.within = within
        self.given_up: list[asyncio.Task[Any]] = []
        """Not to be waited for: some do not stop when told to, and of others a thread is left that cannot be told."""

    async def run(self, check: Coroutine[Any, Any, T]) -> T:
        """Its result, or its error, or `Unanswered`."""
        task = asyncio.create_task(check)
        try:
            done, _ = await asyncio.wait([task], timeout=self.within.total_seconds())
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        await self._give_up(task)
        raise Unanswered(f"no answer within {self.within.total_seconds():g} s")

    async def _give_up(self, task: asyncio.Task[Any]) -> None:
        self.given_up.append(task)
        task.cancel()
        await asyncio.wait([task], timeout=_GRACE)
        if task.done() and not task.cancelled():
            task.exception()  # it no longer matters, and asyncio is not to complain that nobody asked
