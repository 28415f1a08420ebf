"""Writes through an `aiosqlite` connection."""

from __future__ import annotations

from typing import Any, ClassVar

import aiosqlite

from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers.sqlite3 import Sqlite3Writer

__all__ = ["AiosqliteWriter"]


class AiosqliteWriter:
    """Joins the transaction of an `aiosqlite.Connection`, or the one its next statement opens.

    Everything happens in one visit to the connection's own thread: no statement of another task comes between.
    """

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: aiosqlite.Connection) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self._tx._execute(Sqlite3Writer(self._tx._conn).insert, batch)  # type: ignore[no-untyped-call]

    async def ask(self, ask: InboxAsk) -> Any:
        return await self._tx._execute(Sqlite3Writer(self._tx._conn).ask, ask)  # type: ignore[no-untyped-call]
