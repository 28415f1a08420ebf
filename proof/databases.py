"""The stores of the matrix. One more is one file with the shape of `sqlite`, and one entry here."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import asyncpg
import msgspec
import psycopg
import pymysql
import pytest

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.mariadb import connection as mariadb_product
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.sqlite import connection as product
from pillarbox.stores.urls import parse_store_url
from proof.crash.steps import Stage
from proof.kill_points import KillPoint
from proof.messages import UNROUTED, Parcel, outbox
from tests.support.mariadb_server import MariadbServer, scratch_mariadb
from tests.support.postgres_server import PostgresServer, scratch_database, scratch_schema
from tests.support.servers import found

__all__ = [
    "BACKENDS",
    "MakePlace",
    "Place",
    "SqlitePlace",
    "Unserved",
    "in_database",
    "in_server",
    "roll_back",
    "write",
]


class Threads(ThreadPoolExecutor):
    """Work keeps the context of its caller: a statement belongs to a call."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))


class Unserved(Exception):
    """There is no such server here. The text is a sentence for people."""


_TABLE: Final = "create table parcel (subject text primary key, key text not null, number integer not null)"


class SqlitePlace:
    """A file. No commit waits for the disk: SIGKILL takes nothing back that was written."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        assert schema is None, "SQLite has no schemas"
        self.names = Names()
        self._url = url
        self._connection = sqlite3.connect(parse_store_url(url).path, timeout=30, isolation_level=None)
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
def in_sqlite() -> Iterator[Callable[[Path], AbstractContextManager[SqlitePlace]]]:
    """There is no server."""
    yield _place


@contextmanager
def _place(folder: Path) -> Iterator[SqlitePlace]:
    url = f"sqlite:///{folder / 'store.db'}?synchronous=normal"
    asyncio.run(open_schema(parse_store_url(url), names=Names()).install())
    with closing(SqlitePlace(url)) as place:
        place.rows(_TABLE)
        yield place


# --- in the process that dies ---


class _Connection(sqlite3.Connection):
    """Tells of its statements."""

    mine: KillPoint

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "commit":
            self.mine.commits()
        cursor = super().execute(sql, parameters)
        self.mine.ran(sql, changed=max(0, cursor.rowcount))
        return cursor


def wire(mine: KillPoint) -> None:
    """Every connection of this process tells the mine."""
    _Connection.mine = mine
    sqlite3.connect = partial(sqlite3.connect, factory=_Connection)  # type: ignore[assignment]
    product.ThreadPoolExecutor = Threads  # type: ignore[attr-defined]


_POSTGRES_TABLE: Final = b"create table parcel (subject text primary key, key text not null, number integer not null)"


class PostgresPlace:
    """A schema. Writers use psycopg, and wait for the disk as they always should."""

    def __init__(self, url: str, schema: str | None) -> None:
        self.names = Names(schema)
        self._url = urlsplit(url)._replace(query="").geturl()
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(f'set search_path = "{schema}"'.encode())

    def url(self, *, in_transactions: bool = False) -> str:
        """The store runs its hottest statements without a transaction around them, except behind a pooler."""
        return f"{self._url}?pooler=transaction" if in_transactions else self._url

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        return self._connection.execute(sql.replace("?", "%s").encode(), values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self._connection.transaction():
            yield self._connection

    def book(self, handle: psycopg.Connection[Any], parcel: Parcel) -> None:
        handle.execute("insert into parcel values (%s, %s, %s)", (parcel.subject, parcel.key, parcel.number))

    def install(self) -> None:
        """Make the tables."""
        asyncio.run(open_schema(parse_store_url(self._url), names=self.names).install())
        self._connection.execute(_POSTGRES_TABLE)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def in_postgres() -> Iterator[Callable[[Path], AbstractContextManager[PostgresPlace]]]:
    """Found as the tests find it; there it is told as a failed or skipped test."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(found(PostgresServer(), environ={**os.environ, "CI": "true"}))
        except pytest.fail.Exception as error:
            raise Unserved(str(error.msg)) from None
        yield in_database(stack.enter_context(scratch_database(url)))


def in_database(url: str) -> Callable[[Path], AbstractContextManager[PostgresPlace]]:
    """Each place is a schema of its own in this database."""

    @contextmanager
    def place(folder: Path) -> Iterator[PostgresPlace]:
        del folder
        with scratch_schema(url) as schema, closing(PostgresPlace(url, schema)) as made:
            made.install()
            yield made

    return place


# --- in the process that dies ---


def hook_postgres(mine: KillPoint) -> None:
    """Every pooled connection of this process tells the mine."""
    create_pool = asyncpg.create_pool

    def wired(dsn: str, *, connection_class: type[Any], **options: Any) -> Any:
        return create_pool(dsn, connection_class=_telling(connection_class, mine), **options)

    asyncpg.create_pool = wired  # type: ignore[assignment]


def _telling(connection_class: type[Any], mine: KillPoint) -> type[Any]:
    class RelayTelemetry(connection_class):  # type: ignore[misc]
        async def execute(self, query: str, *values: Any, **options: Any) -> Any:
            if query.upper().startswith("COMMIT"):
                mine.commits()
            status = await super().execute(query, *values, **options)
            mine.ran(query, changed=_rows_of(status))
            return status

        async def fetch(self, query: str, *values: Any, **options: Any) -> Any:
            rows = await super().fetch(query, *values, **options)
            mine.ran(query, changed=len(rows))
            return rows

        async def fetchrow(self, query: str, *values: Any, **options: Any) -> Any:
            row = await super().fetchrow(query, *values, **options)
            mine.ran(query, changed=_number(row and row[0]))
            return row

        async def fetchval(self, query: str, *values: Any, **options: Any) -> Any:
            value = await super().fetchval(query, *values, **options)
            mine.ran(query, changed=_number(value))
            return value

    return RelayTelemetry


def _rows_of(status: str) -> int:
    """From `DELETE 3` or `INSERT 0 3`."""
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


def _number(value: object) -> int:
    """Statements that change rows and answer with one value count them."""
    return value if isinstance(value, int) else 0


_MARIADB_TABLE: Final = (
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
        self._connection = connect(parse_store_url(url).dsn, timeout=_TIMEOUT)

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
        asyncio.run(open_schema(parse_store_url(self._url), names=self.names).install())
        with self._connection.cursor() as cursor:
            cursor.execute(_MARIADB_TABLE)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def in_mariadb() -> Iterator[Callable[[Path], AbstractContextManager[MariadbPlace]]]:
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


class _MariadbConnection(pymysql.connections.Connection):  # type: ignore[misc]
    """Tells of its statements."""

    mine: KillPoint

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        changed: int = super().query(sql, unbuffered)
        text = sql.decode("utf-8", "replace") if isinstance(sql, (bytes, bytearray)) else str(sql)
        self.mine.ran(text, changed=changed)
        return changed

    def commit(self) -> None:
        self.mine.commits()
        super().commit()


def hook_mariadb(mine: KillPoint) -> None:
    """Every connection of this process tells the mine."""
    _MariadbConnection.mine = mine
    pymysql.connect = _MariadbConnection
    mariadb_product.ThreadPoolExecutor = Threads  # type: ignore[attr-defined]


class Place(Protocol):
    """One store with its tables, and the business table beside them."""

    names: Names

    def url(self, *, in_transactions: bool = False) -> str:
        """The store's URL; one under which every call is a transaction of its own, if the store has the choice."""

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        """Ask the tables. `?` stands for a value."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A handle that `Outbox.publish` takes. Commits at the end of the block, or rolls back on an error."""

    def book(self, handle: Any, parcel: Parcel) -> None:
        """Write the business row of a parcel."""

    def close(self) -> None:
        """Let go."""


MakePlace = Callable[[Path], AbstractContextManager[Place]]
"""A new place; the folder is for files. It is removed afterwards."""


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of store."""

    open_places: Callable[[], AbstractContextManager[MakePlace]]
    """Finds the server. Raises `Unserved` with a sentence for people where there is none."""
    reopened: Callable[[str, str | None], Place]
    """The place at this URL and schema again, in another process."""
    wire: Callable[[KillPoint], None]
    """Have the driver of this process tell the mine of statements and commits."""


BACKENDS: Final[Mapping[str, Backend]] = MappingProxyType(
    {
        "sqlite": Backend(open_places=in_sqlite, reopened=SqlitePlace, wire=wire),
        "postgres": Backend(open_places=in_postgres, reopened=PostgresPlace, wire=hook_postgres),
        "mariadb": Backend(open_places=in_mariadb, reopened=MariadbPlace, wire=hook_mariadb),
    }
)
"""By the name that people type."""


class RolledBack(Exception):
    """Thrown in the middle of a transaction, after publishing."""


def _nothing(_: Stage) -> None:
    pass


def write(place: Place, parcels: Sequence[Parcel], *, reached: Callable[[Stage], None] = _nothing) -> None:
    """One transaction. Tells how far it has come."""
    with place.transaction() as handle:
        _write(place, handle, parcels, reached=reached)
        reached(Stage.UNCOMMITTED)
    reached(Stage.ANSWERED)


def roll_back(place: Place, parcels: Sequence[Parcel]) -> None:
    """The same, and then it thinks better of it."""
    try:
        with place.transaction() as handle:
            _write(place, handle, parcels, reached=_nothing)
            raise RolledBack
    except RolledBack:
        pass


def _write(place: Place, handle: object, parcels: Sequence[Parcel], *, reached: Callable[[Stage], None]) -> None:
    for parcel in parcels:
        place.book(handle, parcel)
    reached(Stage.HALFWAY)
    shop = outbox(place.names)
    for routed, topic in ((True, None), (False, UNROUTED)):
        if chosen := [parcel for parcel in parcels if parcel.routed is routed]:
            shop.publish(handle, chosen, topic=topic)  # type: ignore[call-overload]
