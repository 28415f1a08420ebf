"""Event loop on virtual time: when nothing is ready, its time jumps to the next timer. For code without real I/O."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

__all__ = ["LoopClock", "run_virtually"]

T = TypeVar("T")
_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: what would be a wait is added to the time."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("Everything waits, and no timer is set: this would hang.")
            self.seconds += max(timeout, 0.0)
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.seconds


class LoopClock:
    """Shows the time of the running loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.monotonic())


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
