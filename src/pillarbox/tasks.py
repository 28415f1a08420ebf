"""Tasks that end when they are cancelled, though a driver dropped the cancellation.

`asyncio.wait_for` of Python 3.11, which drivers use, drops a cancellation that comes together with the answer. A loop
around such a call would go on, and whoever waits for its end would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["cancel_all", "check_cancelled"]

_AGAIN: Final = 10.0
"""Seconds after which a task that has not ended is cancelled again. What a task does at its end takes less."""


def check_cancelled() -> None:
    """Raise `CancelledError` if this task was cancelled before and went on. For the beginning of each turn of a loop.

    A timeout of `asyncio.timeout` takes its own cancellation back, so it does not count.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def cancel_all(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and futures, and wait until all have ended. Their errors are dropped."""
    everything = list(futures)
    left = {future for future in everything if not future.done()}
    while left:
        for future in left:
            future.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN)
    await asyncio.gather(*everything, return_exceptions=True)
