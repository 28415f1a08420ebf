"""Signals: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["stopping_on_signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[str], None], *, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The first SIGINT or SIGTERM has the loop call `stop` with its name; the second ends the process, as if killed.

    The second does not need the loop: it works while something blocks it.
    """
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        loop.call_soon_threadsafe(stop, signal.Signals(number).name)

    earlier = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
