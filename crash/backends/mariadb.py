"""MariaDB: a database of each place's own, and connections that tell of their statements."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pymysql
import pytest

from crash.backends.threads import Threads
from crash.backends.unserved import Unserved
from crash.mine import Mine
from crash.parcels import Parcel
from pillarbox.names import Names
from pillarbox.stores.mariadb import connection as product
from pillarbox.stores.mariadb.driver import connected
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url
from tests.mariadb_server import MariadbServer, scratch_mariadb
from tests.servers import found

__all__ = ["MariadbPlace", "in_server", "served", "wire"]

_TABLE: Final = (
    "create table parcel (subject varchar(200) primary key, `key` varchar(200) not null, number integer not null)"
)
_RESERVED: Final = re.compile(r"(?<![`\w])(key|partition)(?![`\w])")
_TIMEOUT: Final = 30.0


class MariadbPlace:
    """A database. Writers use PyMySQL, and wait for the disk as they always should."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        assert schema is None, "the database is the URL's"
        self.names = Names()
        self._url = url
        self._connection = connected(store_url(url).dsn, timeout=_TIMEOUT)

    def url(self, *, in_transactions: bool = False) -> str:
        del in_transactions  # whatever writes is in one, always
        return self._url

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(_RESERVED.sub(r"`\1`", sql).replace("?", "%s"), values or None)
            return list(cursor.fetchall())

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self._connection.begin()
        try:
            yield self._connection
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def book(self, handle: Any, parcel: Parcel) -> None:
        with handle.cursor() as cursor:
            cursor.execute("insert into parcel values (%s, %s, %s)", (parcel.subject, parcel.key, parcel.number))

    def install(self) -> None:
        """Make the tables."""
        asyncio.run(schema_at(store_url(self._url), names=self.names).install())
        with self._connection.cursor() as cursor:
            cursor.execute(_TABLE)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def served() -> Iterator[Callable[[Path], AbstractContextManager[MariadbPlace]]]:
    """Found as the tests find it; there it is told as a failed or skipped test."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(found(MariadbServer(), environ={**os.environ, "CI": "true"}))
        except pytest.fail.Exception as error:
            raise Unserved(str(error.msg)) from None
        yield in_server(url)


def in_server(url: str) -> Callable[[Path], AbstractContextManager[MariadbPlace]]:
    """Each place is a database of its own on this server."""

    @contextmanager
    def place(folder: Path) -> Iterator[MariadbPlace]:
        del folder
        with scratch_mariadb(url) as database, closing(MariadbPlace(database)) as made:
            made.install()
            yield made

    return place


# --- in the process that dies ---


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """Tells of its statements."""

    mine: Mine

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        changed: int = super().query(sql, unbuffered)
        text = sql.decode("utf-8", "replace") if isinstance(sql, (bytes, bytearray)) else str(sql)
        self.mine.ran(text, changed=changed)
        return changed

    def commit(self) -> None:
        self.mine.commits()
        super().commit()


def wire(mine: Mine) -> None:
    """Every connection of this process tells the mine."""
    _Connection.mine = mine
    pymysql.connect = _Connection
    product.ThreadPoolExecutor = Threads  # type: ignore[attr-defined]
