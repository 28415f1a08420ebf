"""Every kind of handle, behind one face: what an application does with it, spelled in its driver's words."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from inspect import isawaitable
from typing import Any, Protocol

from pillarbox import writers
from pillarbox.contracts.writer import Insert
from tests.support.writers.places import Place


class Handle(Protocol):
    """One open handle. `tx` is what an application gives to the outbox."""

    @property
    def tx(self) -> Any: ...

    async def open(self, place: Place) -> None: ...

    async def close(self) -> None:
        """Close without a commit."""

    async def begin(self) -> None:
        """Begin a transaction where the driver does not begin one by itself."""

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Rolls back to here when left by an exception."""

    async def order(self, number: int) -> None:
        """Write a business row."""

    async def flush_written(self) -> None:
        """Make sure that the database has all that was given so far."""

    def statements(self) -> AbstractAsyncContextManager[list[str]]:
        """What is sent to the database meanwhile, without BEGIN and COMMIT."""


class Undo(Exception):
    """Leaves a savepoint."""


def undo() -> None:
    """Roll back to the savepoint around."""
    raise Undo


async def insert(handle: Handle, batch: Insert) -> None:
    """Insert as `Outbox.publish` does."""
    await resolve(writers.insert(handle.tx, batch))


async def write_staged(handle: Handle) -> None:
    """A session at rest flushes nothing; a savepoint makes it write."""
    if hasattr(handle.tx, "flush"):
        async with handle.savepoint():
            pass


async def resolve(answer: Awaitable[Any] | Any) -> Any:
    return await answer if isawaitable(answer) else answer


def is_counted(sql: str) -> bool:
    return sql.split(maxsplit=1)[0].lower().rstrip(";") not in {"begin", "commit", "rollback"}
