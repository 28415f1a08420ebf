"""A store behind a line that can be cut or slowed, as the relay sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from pillarbox.contracts.store import Store, Wakeups
from pillarbox.errors import StoreUnavailable

__all__ = ["Wire"]

_NOT_OVER_THE_LINE = ("features", "close", "wakeups")


class Wire:
    """Hands everything through. Cut, each call fails; `broken` names calls that do, `slow` those that take longer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_cut = False
        self.broken: set[str] = set()
        self.slow: dict[str, float] = {}
        self.under_way: list[str] = []
        """The slow calls that have begun, by name."""
        self.refused: list[str] = []
        """The calls that failed, by name."""
        self.wakes = 0
        """How often the store woke the relay."""

    @property
    def store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return found if name in _NOT_OVER_THE_LINE else self._over_the_line(name, found)

    def _over_the_line(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any, **options: Any) -> Any:
            if self.is_cut or name in self.broken:
                self.refused.append(name)
                raise StoreUnavailable("the line was cut")
            if name in self.slow:
                self.under_way.append(name)
                await asyncio.sleep(self.slow[name])
            return await call(*args, **options)

        return called

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
        def woken() -> None:
            self.wakes += 1
            wake()

        async with self._store.wakeups(woken) as wakeups:
            yield wakeups
