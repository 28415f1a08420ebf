"""Wake-ups of an SQLite store: SQLite sends no notification, so a poller looks for commits of others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Final

from pillarbox.contracts.store import Wakeups
from pillarbox.errors import StoreError
from pillarbox.stores.sqlite.connection import Database

__all__ = ["poll_commits"]

_INTERVAL: Final = 0.005


@asynccontextmanager
async def poll_commits(database: Database, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
    """Call `wake` soon after another connection committed, while the block runs."""
    poller = _Poller(database, wake)
    task = asyncio.create_task(poller.run())
    try:
        yield poller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Poller:
    """Reads the file's `data_version` on a connection of its own, which never reads or writes a row.

    That version counts the commits of the store too. The version on the store's own connection counts those of
    others only, and is read when something changed: a busy relay must not wake itself.
    """

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self.is_listening = False

    async def run(self) -> None:
        with closing(sqlite3.connect(self._database.path, isolation_level=None, timeout=0)) as connection:
            version, others = _read_version(connection), await self._read_others()
            self.is_listening = True
            self._wake()  # a commit between the two reads changes neither from now on
            while True:
                await asyncio.sleep(_INTERVAL)
                if (latest := _read_version(connection)) != version:
                    version, before, others = latest, others, await self._read_others()
                    if others != before or others is None:
                        self._wake()

    async def _read_others(self) -> int | None:
        """Return the version that only others change; None while it cannot be read."""
        try:
            return await self._database.call(_read_version)
        except StoreError:
            return None


def _read_version(connection: sqlite3.Connection) -> int | None:
    try:
        version: int = connection.execute("pragma data_version").fetchone()[0]
    except sqlite3.OperationalError:
        return None
    return version
