"""An answer that must be awaited, and says so when it was not."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

__all__ = ["MustAwait"]

T = TypeVar("T")

_log = logging.getLogger("pillarbox")


class MustAwait(Awaitable[T], Generic[T]):
    """Runs when awaited, once. Dropped without that, it logs an error and warns: nothing has been written."""

    __slots__ = ("_make", "_what")

    def __init__(self, coro_factory: Callable[[], Awaitable[T]], what: str) -> None:
        self._make: Callable[[], Awaitable[T]] | None = coro_factory
        self._what = what

    def __await__(self) -> Generator[Any, Any, T]:
        make, self._make = self._make, None
        if make is None:
            raise RuntimeError(f"{self._what} was awaited twice; call it again to do it again.")
        return make().__await__()

    def __del__(self) -> None:
        if self._make is not None:
            said = f"{self._what} was never awaited, so nothing was written: put await before it."
            _log.error(said)
            warnings.warn(said, RuntimeWarning, stacklevel=2, source=self)
