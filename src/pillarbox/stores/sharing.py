"""Connections and threads that all stores of one process share, so that a thousand stores are not a thousand pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pillarbox.errors import ConfigError
from pillarbox.stores.urls import StoreUrl

if TYPE_CHECKING:
    from pillarbox.stores.postgres.sharing import SharedDatabase
    from pillarbox.stores.sqlite.sharing import SharedFiles

__all__ = ["CONNECTIONS", "LEAST_CONNECTIONS", "THREADS", "SharedConnections"]

CONNECTIONS: Final = 8
"""Connections to one PostgreSQL database, for all stores in it."""
LEAST_CONNECTIONS: Final = 3
THREADS: Final = 32
"""Threads for the SQLite files of all stores."""


class SharedConnections:
    """Hands out what stores share. Stores of one database get the same pool, whatever their schemas are.

    `connections` bounds those to one PostgreSQL database, and one more listens there. `threads` bounds the threads that
    wait for SQLite files. A MySQL store has connections of its own, as few as possible. Use it in one event loop.
    """

    def __init__(self, *, connections: int = CONNECTIONS, threads: int = THREADS) -> None:
        if connections < LEAST_CONNECTIONS:
            raise ConfigError(
                f"Stores share at least {LEAST_CONNECTIONS} connections: one for heartbeats, and two to work with."
            )
        if threads < 1:
            raise ConfigError("Stores share at least 1 thread.")
        self._connections = connections
        self._thread_count = threads
        self._databases: dict[tuple[str | None, ...], SharedDatabase] = {}
        self._files: SharedFiles | None = None

    def get_postgres(self, url: StoreUrl) -> SharedDatabase:
        """Return what the stores in the database of this URL share."""
        from pillarbox.stores.postgres.driver import load_driver
        from pillarbox.stores.postgres.sharing import SharedDatabase

        key = (url.dsn, url.driver, url.options.get("pooler"), url.options.get("dialect"))
        if key not in self._databases:
            self._databases[key] = SharedDatabase(load_driver(url.driver), url.dsn, connections=self._connections)
        return self._databases[key]

    def get_sqlite(self) -> SharedFiles:
        """Return what all SQLite stores share."""
        from pillarbox.stores.sqlite.sharing import SharedFiles

        if self._files is None:
            self._files = SharedFiles(threads=self._thread_count)
        return self._files

    def close(self) -> None:
        """End the threads. Call it after all stores are closed."""
        if self._files is not None:
            self._files.close()
        self._files = None
