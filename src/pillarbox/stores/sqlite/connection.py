"""The one connection of an SQLite store, in a thread of its own: the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pillarbox.clock import Clock
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.protocols import Selection
from pillarbox.stores.sql import Statements
from pillarbox.stores.sqlite.driver_errors import cannot_open, mapped_errors
from pillarbox.stores.stepwise.rows import json_of, microseconds
from pillarbox.stores.stepwise.selection import Parameters

__all__ = ["Database", "Synchronous", "Transaction"]

T = TypeVar("T")
Synchronous = Literal["full", "normal"]
"""Whether a commit waits for the disk. `normal` may lose the last commits when the machine loses power."""

_OLDEST_SQLITE: Final = (3, 35)
_CACHED_STATEMENTS: Final = 256
_LOOK: Final = 0.01


class Transaction:
    """As the protocol says; one moment for the whole of it."""

    def __init__(self, connection: sqlite3.Connection, statements: Statements, *, now: int, session: object) -> None:
        self._connection = connection
        self._statements = statements
        self.now = now
        self.session = session
        """The connection's identity."""

    def rows(self, name: str, values: Mapping[str, object] = {}, *, selection: Selection | None = None) -> list[Any]:
        """Run a statement and fetch what it returns. A selection narrows it down, but for the state."""
        if selection is None:
            return self._connection.execute(self._statements[name], self._bound(values)).fetchall()
        where, chosen = Parameters().selected(selection)
        bound = self._bound({**values, **chosen})
        return self._connection.execute(self._statements.filled(name, where), bound).fetchall()

    def run(self, name: str, values: Mapping[str, object] = {}) -> int:
        """Run a statement that changes rows, and say how many."""
        return self._connection.execute(self._statements[name], self._bound(values)).rowcount

    def _bound(self, values: Mapping[str, object]) -> dict[str, object]:
        """A list goes as the JSON that `json_each` takes apart again."""
        bound = {name: json_of(value) if type(value) is list else value for name, value in values.items()}
        return {**bound, "now": self.now}


class Database:
    """Opens the file, and runs transactions on it one after the other."""

    def __init__(
        self, path: Path, *, statements: Statements, clock: Clock, synchronous: Synchronous, busy_timeout: timedelta
    ) -> None:
        self.path = path
        self._statements = statements
        self._clock = clock
        self.synchronous: Synchronous = synchronous
        """As the store was told, for what must not be lost."""
        self._busy_timeout = busy_timeout.total_seconds()
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._session: object = None
        self._level = ""

    async def open(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pillarbox-sqlite")
            try:
                await self._in_thread(self._connect)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            done = asyncio.wrap_future(thread.submit(self._disconnect))
            thread.shutdown(wait=False)
            # Cancelling the caller must not leave the file open.
            await asyncio.shield(done)
            thread.shutdown()

    async def asked(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """What the connection itself knows, outside any transaction."""
        return await self._in_thread(lambda: question(self._ready(None)))

    async def rows(self, name: str, values: Mapping[str, object] = {}) -> list[Any]:
        """One statement that only reads."""
        return await self.reading(lambda tx: tx.rows(name, values))

    async def reading(self, work: Callable[[Transaction], T]) -> T:
        """One snapshot, no lock."""
        return await self._in_thread(self._transaction, "begin", None, work)

    async def writing(self, work: Callable[[Transaction], T]) -> T:
        """One write transaction, on disk when this returns."""
        return await self._in_thread(self._transaction, "begin immediate", self.synchronous, work)

    async def relaxed(self, work: Callable[[Transaction], T]) -> T:
        """One write transaction that does not wait for the disk: losing it in a power cut costs only a repeat."""
        return await self._in_thread(self._transaction, "begin immediate", "normal", work)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._thread is None:
            raise StoreUnavailable("The SQLite store is not open; call open() first.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def _transaction(self, begin: str, level: Synchronous | None, work: Callable[[Transaction], T]) -> T:
        with mapped_errors(self.path):
            connection = self._ready(level)
            connection.execute(begin)
            try:
                now = microseconds(self._clock.now())
                result = work(Transaction(connection, self._statements, now=now, session=self._session))
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        return result

    def _ready(self, level: Synchronous | None) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable("The SQLite store is not open; call open() first.")
        if level is not None and level != self._level:
            self._connection.execute(f"pragma synchronous = {level}")
            self._level = level
        return self._connection

    def _connect(self) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: use a Python with SQLite 3.35 or newer.")
        if (reason := cannot_open(self.path)) is not None:
            raise reason
        with mapped_errors(self.path):
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=self._busy_timeout,
                isolation_level=None,
                cached_statements=_CACHED_STATEMENTS,
            )
            _prepare(self._connection, self.path, within=self._busy_timeout)
        self._session = object()
        self._level = ""

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _prepare(connection: sqlite3.Connection, path: Path, *, within: float) -> None:
    """Check that it is a database, and in WAL: there readers and the writer do not wait for each other."""
    if _switched(connection, until=time.monotonic() + within) != "wal":
        raise ConfigError(f"SQLite cannot keep a write-ahead log for {path}: put the file on a local disk.")
    connection.create_function("casefolded", 1, _casefolded, deterministic=True)


def _switched(connection: sqlite3.Connection, *, until: float) -> str:
    """The journal mode, after asking for WAL. The first to ask needs the file for itself, and SQLite does not wait."""
    while True:
        try:
            mode: str = connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_LOOK)
        else:
            return mode


def _casefolded(text: str | None) -> str | None:
    """SQLite's own `lower` knows the letters of ASCII alone."""
    return None if text is None else text.casefold()
