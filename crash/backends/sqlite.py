"""SQLite: a file, and a connection that tells of its statements."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from crash.backends.threads import Threads
from crash.mine import Mine
from crash.parcels import Parcel
from pillarbox.names import Names
from pillarbox.stores.schema import schema_at
from pillarbox.stores.sqlite import connection as product
from pillarbox.stores.urls import store_url

__all__ = ["SqlitePlace", "served", "wire"]

_TABLE: Final = "create table parcel (subject text primary key, key text not null, number integer not null)"


class SqlitePlace:
    """A file. No commit waits for the disk: SIGKILL takes nothing back that was written."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        assert schema is None, "SQLite has no schemas"
        self.names = Names()
        self._url = url
        self._connection = sqlite3.connect(store_url(url).path, timeout=30, isolation_level=None)
        self._connection.execute("pragma synchronous = normal")

    def url(self, *, in_transactions: bool = False) -> str:
        del in_transactions  # they are, always
        return self._url

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("begin immediate")
        with self._connection:
            yield self._connection

    def book(self, handle: sqlite3.Connection, parcel: Parcel) -> None:
        handle.execute("insert into parcel values (?, ?, ?)", (parcel.subject, parcel.key, parcel.number))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def served() -> Iterator[Callable[[Path], AbstractContextManager[SqlitePlace]]]:
    """There is no server."""
    yield _place


@contextmanager
def _place(folder: Path) -> Iterator[SqlitePlace]:
    url = f"sqlite:///{folder / 'store.db'}?synchronous=normal"
    asyncio.run(schema_at(store_url(url), names=Names()).install())
    with closing(SqlitePlace(url)) as place:
        place.rows(_TABLE)
        yield place


# --- in the process that dies ---


class _Connection(sqlite3.Connection):
    """Tells of its statements."""

    mine: Mine

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "commit":
            self.mine.commits()
        cursor = super().execute(sql, parameters)
        self.mine.ran(sql, changed=max(0, cursor.rowcount))
        return cursor


def wire(mine: Mine) -> None:
    """Every connection of this process tells the mine."""
    _Connection.mine = mine
    sqlite3.connect = partial(sqlite3.connect, factory=_Connection)  # type: ignore[assignment]
    product.ThreadPoolExecutor = Threads  # type: ignore[attr-defined]
