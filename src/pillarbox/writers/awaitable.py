"""A coroutine that reports an error when it was never awaited."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

__all__ = ["MustAwait"]

T = TypeVar("T")


class MustAwait(Coroutine[Any, Any, T], Generic[T]):
    """Runs once, when awaited. Dropped before that, it logs an error and warns, because nothing has been written.

    A coroutine and not only an awaitable, so that type checkers report a call whose result is not awaited, and so that
    `asyncio.create_task` takes it.
    """

    __slots__ = ("_factory", "_steps", "_what")

    def __init__(self, factory: Callable[[], Awaitable[T]], what: str) -> None:
        self._factory: Callable[[], Awaitable[T]] | None = factory
        self._steps: Generator[Any, Any, T] | None = None
        self._what = what

    def __await__(self) -> Generator[Any, Any, T]:
        factory, self._factory = self._factory, None
        if factory is None:
            raise RuntimeError(f"{self._what} was awaited twice; call it again to do it again.")
        return factory().__await__()

    def send(self, value: Any, /) -> Any:
        """Run to the next suspension. Called by tasks; everybody else awaits."""
        return self._start().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it is suspended, such as the cancellation of its task."""
        return self._start().throw(*error)

    def close(self) -> None:
        """Give it up on purpose. Nothing is reported then."""
        self._factory = None
        if self._steps is not None:
            self._steps.close()

    def _start(self) -> Generator[Any, Any, T]:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps

    def __del__(self) -> None:
        if self._factory is not None:
            text = f"{self._what} was never awaited, so nothing was written: put await before it."
            # Imported here because publishing needs it for nothing else, and every program pays for an import. It can
            # fail while the interpreter shuts down; the warning is given all the same.
            with suppress(ImportError):
                from logging import getLogger

                getLogger("pillarbox").error(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)
