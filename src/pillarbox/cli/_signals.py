"""SIGINT and SIGTERM: the first stops gracefully, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

__all__ = ["stop_on_signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(
    stop: Callable[[str], None], *, loop: asyncio.AbstractEventLoop, before_exit: Callable[[], None] | None = None
) -> Iterator[None]:
    """At the first signal have the loop call `stop` with its name; at the second end the process, as if killed.

    The second works even while something blocks the loop. `before_exit` is called before it ends the process.
    """
    is_stopping = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            if before_exit is not None:
                before_exit()
            os._exit(128 + number)
        is_stopping = True
        loop.call_soon_threadsafe(stop, signal.Signals(number).name)

    earlier = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
