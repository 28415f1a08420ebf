"""Noticing writers: SQLite counts the commits of other connections, and asking costs a few microseconds."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Final

from pillarbox.errors import StoreError
from pillarbox.protocols import Wakeups
from pillarbox.stores.sqlite.connection import Database

__all__ = ["Watching"]

_INTERVAL: Final = 0.005


class _Eye:
    """Looks at the file's `data_version`, on a connection of its own that never reads or writes a row.

    That counts the commits of the store too. Whether there were others the store's own connection knows, and is asked
    when something changed: a busy relay must not wake itself.
    """

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self.is_listening = False

    async def run(self) -> None:
        with closing(sqlite3.connect(self._database.path, isolation_level=None, timeout=0)) as connection:
            seen, others = self._version(connection), await self._others()
            self.is_listening = True
            self._wake()  # what was committed between the two looks changes neither from now on
            while True:
                await asyncio.sleep(_INTERVAL)
                if (version := self._version(connection)) != seen:
                    seen, before, others = version, others, await self._others()
                    if others != before or others is None:
                        self._wake()

    async def _others(self) -> int | None:
        """The version as it is changed by anybody but the store; None while that cannot be told."""
        try:
            return await self._database.asked(self._version)
        except StoreError:
            return None

    @staticmethod
    def _version(connection: sqlite3.Connection) -> int | None:
        try:
            version: int = connection.execute("pragma data_version").fetchone()[0]
        except sqlite3.OperationalError:
            return None
        return version


class Watching:
    """The wake-up part of the store."""

    _database: Database

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
        eye = _Eye(self._database, wake)
        task = asyncio.create_task(eye.run())
        try:
            yield eye
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
