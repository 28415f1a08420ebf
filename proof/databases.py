"""The databases of the crash matrix and the chain. A new store is a class here and an entry in `BACKENDS`."""

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
from pillarbox.stores.mariadb import connection as mariadb_connection
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.sqlite import connection as sqlite_connection
from pillarbox.stores.urls import parse_store_url
from proof.kill_points import KillSwitch, Stage
from proof.messages import UNROUTED, NumberedEvent, build_outbox
from tests.support.mariadb_server import MariadbServer, scratch_mariadb
from tests.support.postgres_server import PostgresServer, scratch_database, scratch_schema
from tests.support.servers import Server, found

__all__ = [
    "BACKENDS",
    "CreateDatabase",
    "Database",
    "ServerMissing",
    "SqliteDatabase",
    "find_server",
    "find_sqlite",
    "make_database_factory",
    "make_schema_factory",
    "roll_back",
    "write",
]


class ContextThreads(ThreadPoolExecutor):
    """A thread pool that runs work in the context of its caller, so that a statement belongs to a call."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))


class ServerMissing(Exception):
    """There is no such server here. The text is a sentence for people."""


@contextmanager
def find_server(server: Server) -> Iterator[str]:
    """Find a server as the tests do, and yield its URL; `ServerMissing` if there is none."""
    with ExitStack() as stack:
        try:
            # With CI set, a missing server is a failed test and not a skipped one.
            url = stack.enter_context(found(server, environ={**os.environ, "CI": "true"}))
        except pytest.fail.Exception as error:
            raise ServerMissing(str(error.msg)) from None
        yield url


_TABLE: Final = "create table business_row (subject text primary key, key text not null, number integer not null)"


class SqliteDatabase:
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

    def insert_row(self, handle: sqlite3.Connection, event: NumberedEvent) -> None:
        handle.execute("insert into business_row values (?, ?, ?)", (event.subject, event.key, event.number))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def find_sqlite() -> Iterator[Callable[[Path], AbstractContextManager[SqliteDatabase]]]:
    """Yield the factory at once: SQLite has no server."""
    yield _create_sqlite_database


@contextmanager
def _create_sqlite_database(folder: Path) -> Iterator[SqliteDatabase]:
    url = f"sqlite:///{folder / 'store.db'}?synchronous=normal"
    asyncio.run(open_schema(parse_store_url(url), names=Names()).install())
    with closing(SqliteDatabase(url)) as database:
        database.rows(_TABLE)
        yield database


# --- in the process that dies ---


class _Connection(sqlite3.Connection):
    """Reports its statements to the kill switch."""

    kill_switch: KillSwitch
    inner: int = 0
    """How many statements of a trigger the running statement has run."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql == "commit":
            self.kill_switch.on_commit()
        elif (trigger := _split_trigger(sql)) is not None:
            self._report_trigger()
            sql = trigger
        self.inner = 0
        cursor = super().execute(sql, parameters)
        if not self.inner:  # those were reported one by one, before the statement around them had committed
            self.kill_switch.on_statement(sql, changed=max(0, cursor.rowcount))
        return cursor

    def _report_trigger(self) -> None:
        def on_statement(sql: str, changed: int) -> None:
            self.inner += 1
            self.kill_switch.on_statement(sql, changed=changed)

        self.create_function("on_statement", 2, on_statement)
        self.create_function("on_commit", 0, self.kill_switch.on_commit)


_TRIGGER: Final = re.compile(r"create temp trigger .*?\nbegin\n(?P<body>.*)\nend\s*$", re.DOTALL)
_TRIGGER_WRITE: Final = re.compile(r"^    (?P<verb>insert|update|delete) .*?;$", re.DOTALL | re.MULTILINE)


def _split_trigger(sql: str) -> str | None:
    """Return a trigger that reports each of its writes, and the commit that follows them; None if it is none.

    A claim and a settlement of deliveries are one statement each, whose trigger writes. The transaction begins and ends
    within it, so nothing outside could tell how far it has come.
    """
    match = _TRIGGER.search(sql)
    if match is None:
        return None
    body = _TRIGGER_WRITE.sub(
        lambda write: f"{write[0]}\n    select on_statement('{write['verb']}', changes());", match["body"]
    )
    return f"{sql[: match.start('body')]}{body}\n    select on_commit();\nend"


def hook_sqlite(kill_switch: KillSwitch) -> None:
    """Have every connection of this process report to the kill switch."""
    _Connection.kill_switch = kill_switch
    sqlite3.connect = partial(sqlite3.connect, factory=_Connection)  # type: ignore[assignment]
    sqlite_connection.ThreadPoolExecutor = ContextThreads  # type: ignore[attr-defined]


class PostgresDatabase:
    """A schema. Writers use psycopg, and wait for the disk as they always should."""

    def __init__(self, url: str, schema: str | None) -> None:
        self.names = Names(schema)
        self._url = urlsplit(url)._replace(query="").geturl()
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(f'set search_path = "{schema}"'.encode())

    def url(self, *, in_transactions: bool = False) -> str:
        """Return the URL. The store runs its hottest statements without a transaction, except behind a pooler."""
        return f"{self._url}?pooler=transaction" if in_transactions else self._url

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        return self._connection.execute(sql.replace("?", "%s").encode(), values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self._connection.transaction():
            yield self._connection

    def insert_row(self, handle: psycopg.Connection[Any], event: NumberedEvent) -> None:
        handle.execute("insert into business_row values (%s, %s, %s)", (event.subject, event.key, event.number))

    def install(self) -> None:
        """Create the tables."""
        asyncio.run(open_schema(parse_store_url(self._url), names=self.names).install())
        self._connection.execute(_TABLE.encode())

    def close(self) -> None:
        self._connection.close()


@contextmanager
def find_postgres() -> Iterator[Callable[[Path], AbstractContextManager[PostgresDatabase]]]:
    """Find the server, and make a database of its own in it for the run."""
    with find_server(PostgresServer()) as url, scratch_database(url) as database:
        yield make_schema_factory(database)


def make_schema_factory(url: str) -> Callable[[Path], AbstractContextManager[PostgresDatabase]]:
    """Return a factory that makes each database a schema of this one."""

    @contextmanager
    def create(folder: Path) -> Iterator[PostgresDatabase]:
        del folder
        with scratch_schema(url) as schema, closing(PostgresDatabase(url, schema)) as database:
            database.install()
            yield database

    return create


# --- in the process that dies ---


def hook_postgres(kill_switch: KillSwitch) -> None:
    """Have every pooled connection of this process report to the kill switch."""
    create_pool = asyncpg.create_pool

    def create_hooked_pool(dsn: str, *, connection_class: type[Any], **options: Any) -> Any:
        return create_pool(dsn, connection_class=_hook_class(connection_class, kill_switch), **options)

    asyncpg.create_pool = create_hooked_pool  # type: ignore[assignment]


def _hook_class(connection_class: type[Any], kill_switch: KillSwitch) -> type[Any]:
    class HookedConnection(connection_class):  # type: ignore[misc]
        async def execute(self, query: str, *values: Any, **options: Any) -> Any:
            if query.upper().startswith("COMMIT"):
                kill_switch.on_commit()
            status = await super().execute(query, *values, **options)
            kill_switch.on_statement(query, changed=_parse_row_count(status))
            return status

        async def fetch(self, query: str, *values: Any, **options: Any) -> Any:
            rows = await super().fetch(query, *values, **options)
            kill_switch.on_statement(query, changed=len(rows))
            return rows

        async def fetchrow(self, query: str, *values: Any, **options: Any) -> Any:
            row = await super().fetchrow(query, *values, **options)
            kill_switch.on_statement(query, changed=_count_rows(row and row[0]))
            return row

        async def fetchval(self, query: str, *values: Any, **options: Any) -> Any:
            value = await super().fetchval(query, *values, **options)
            kill_switch.on_statement(query, changed=_count_rows(value))
            return value

    return HookedConnection


def _parse_row_count(status: str) -> int:
    """Parse `DELETE 3` or `INSERT 0 3`."""
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


def _count_rows(value: object) -> int:
    """Return how many rows a statement changed that answers with one value: it is their number."""
    return value if isinstance(value, int) else 0


_MARIADB_TABLE: Final = (
    "create table business_row (subject varchar(200) primary key, `key` varchar(200) not null, number integer not null)"
)
_RESERVED: Final = re.compile(r"(?<![`\w])(key|partition)(?![`\w])")
_TIMEOUT: Final = 30.0


class MariadbDatabase:
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

    def insert_row(self, handle: Any, event: NumberedEvent) -> None:
        with handle.cursor() as cursor:
            cursor.execute("insert into business_row values (%s, %s, %s)", (event.subject, event.key, event.number))

    def install(self) -> None:
        """Create the tables."""
        asyncio.run(open_schema(parse_store_url(self._url), names=self.names).install())
        with self._connection.cursor() as cursor:
            cursor.execute(_MARIADB_TABLE)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def find_mariadb() -> Iterator[Callable[[Path], AbstractContextManager[MariadbDatabase]]]:
    """Find the server."""
    with find_server(MariadbServer()) as url:
        yield make_database_factory(url)


def make_database_factory(url: str) -> Callable[[Path], AbstractContextManager[MariadbDatabase]]:
    """Return a factory that makes each database one of its own on this server."""

    @contextmanager
    def create(folder: Path) -> Iterator[MariadbDatabase]:
        del folder
        with scratch_mariadb(url) as database_url, closing(MariadbDatabase(database_url)) as database:
            database.install()
            yield database

    return create


# --- in the process that dies ---


class _MariadbConnection(mariadb_connection._Connection):
    """Reports its statements to the kill switch."""

    kill_switch: KillSwitch

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        changed: int = super().query(sql, unbuffered)
        text = sql.decode("utf-8", "replace") if isinstance(sql, (bytes, bytearray)) else str(sql)
        self.kill_switch.on_statement(text, changed=changed)
        return changed

    def commit(self) -> None:
        self.kill_switch.on_commit()
        super().commit()


def hook_mariadb(kill_switch: KillSwitch) -> None:
    """Have every connection of this process report to the kill switch."""
    _MariadbConnection.kill_switch = kill_switch
    pymysql.connect = _MariadbConnection
    mariadb_connection._Connection = _MariadbConnection  # type: ignore[misc]
    mariadb_connection.ThreadPoolExecutor = ContextThreads  # type: ignore[attr-defined]


class Database(Protocol):
    """A store with its tables, and the business table beside them."""

    names: Names

    def url(self, *, in_transactions: bool = False) -> str:
        """Return the store's URL; with `in_transactions` one under which every call is a transaction of its own."""

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        """Run a query. `?` stands for a value."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Yield a handle for `Outbox.publish`. Commits at the end of the block, or rolls back on an error."""

    def insert_row(self, handle: Any, event: NumberedEvent) -> None:
        """Write the business row of an event."""

    def close(self) -> None:
        """Close the connection."""


CreateDatabase = Callable[[Path], AbstractContextManager[Database]]
"""Creates a database, and removes it at the end of the block; the folder is for files."""


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of store."""

    find: Callable[[], AbstractContextManager[CreateDatabase]]
    """Finds the server; `ServerMissing` if there is none."""
    reopen: Callable[[str, str | None], Database]
    """Opens the database at this URL and schema again, in another process."""
    hook: Callable[[KillSwitch], None]
    """Has the driver of this process report statements and commits to the kill switch."""


BACKENDS: Final[Mapping[str, Backend]] = MappingProxyType(
    {
        "sqlite": Backend(find=find_sqlite, reopen=SqliteDatabase, hook=hook_sqlite),
        "postgres": Backend(find=find_postgres, reopen=PostgresDatabase, hook=hook_postgres),
        "mariadb": Backend(find=find_mariadb, reopen=MariadbDatabase, hook=hook_mariadb),
    }
)
"""By the name that `--stores` takes."""


class RolledBack(Exception):
    """Raised in the middle of a transaction, after publishing."""


def _ignore(_: Stage) -> None:
    pass


def write(database: Database, events: Sequence[NumberedEvent], *, on_stage: Callable[[Stage], None] = _ignore) -> None:
    """Write rows and messages in one transaction; call `on_stage` with how far it has come."""
    with database.transaction() as handle:
        _write(database, handle, events, on_stage=on_stage)
        on_stage(Stage.UNCOMMITTED)
    on_stage(Stage.ANSWERED)


def roll_back(database: Database, events: Sequence[NumberedEvent]) -> None:
    """Write rows and messages, and roll back."""
    try:
        with database.transaction() as handle:
            _write(database, handle, events, on_stage=_ignore)
            raise RolledBack
    except RolledBack:
        pass


def _write(
    database: Database, handle: object, events: Sequence[NumberedEvent], *, on_stage: Callable[[Stage], None]
) -> None:
    for event in events:
        database.insert_row(handle, event)
    on_stage(Stage.HALFWAY)
    outbox = build_outbox(database.names)
    for routed, topic in ((True, None), (False, UNROUTED)):
        if matching := [event for event in events if event.routed is routed]:
            outbox.publish(handle, matching, topic=topic)  # type: ignore[call-overload]
