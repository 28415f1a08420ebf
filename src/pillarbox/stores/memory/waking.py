"""Being woken by writers of the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pillarbox.protocols import Wakeups
from pillarbox.stores.memory.data import Parts

__all__ = ["Waking"]


class _Listener:
    is_listening = True


class Waking(Parts):
    """The wake-up part of the store."""

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
        self._data.wakes.append(wake)
        try:
            yield _Listener()
        finally:
            self._data.wakes.remove(wake)
