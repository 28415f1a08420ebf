"""From a handle to the writer for it, by the names of its classes: no driver is imported that nobody uses."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import ClassVar, Final, Protocol

from pillarbox.errors import UnsupportedHandle
from pillarbox.protocols import AsyncWriter, Writer

__all__ = ["WriterClass", "writer_class"]


class WriterClass(Protocol):
    """Makes the writer for one handle."""

    is_async: ClassVar[bool]

    def __call__(self, tx: object, /) -> Writer | AsyncWriter: ...


_WRITERS: Final = {
    "pillarbox.stores.memory.transaction.MemoryTransaction": "memory.memory_writer",
    "sqlite3.Connection": "sqlite3.Sqlite3Writer",
    "aiosqlite.core.Connection": "aiosqlite.AiosqliteWriter",
    "psycopg.Connection": "psycopg.PsycopgWriter",
    "psycopg.AsyncConnection": "psycopg.AsyncPsycopgWriter",
    "asyncpg.connection.Connection": "asyncpg.AsyncpgWriter",
    "asyncpg.pool.PoolConnectionProxy": "asyncpg.AsyncpgWriter",
    "pymysql.connections.Connection": "pymysql.PymysqlWriter",
    "MySQLdb.connections.Connection": "mysqldb.MysqldbWriter",
    "asyncmy.connection.Connection": "asyncmy.AsyncmyWriter",
    "aiomysql.connection.Connection": "aiomysql.AiomysqlWriter",
    "sqlalchemy.engine.base.Connection": "sqlalchemy.ConnectionWriter",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy.AsyncConnectionWriter",
    "sqlalchemy.orm.session.Session": "sqlalchemy_session.SessionWriter",
    "sqlalchemy.orm.scoping.scoped_session": "sqlalchemy_session.ScopedSessionWriter",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy_session.AsyncSessionWriter",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "sqlalchemy_session.AsyncScopedSessionWriter",
    "django.db.backends.base.base.BaseDatabaseWrapper": "django.DjangoWriter",
    "django.utils.connection.ConnectionProxy": "django.DjangoWriter",
}
"""The class of a handle, and the writer in this package that joins it."""

_POOL: Final = "it is a pool: take a connection from it, begin a transaction, and give that connection"
_ENGINE: Final = "it is an engine: give a connection or a session that it made"
_FACTORY: Final = "it makes sessions: call it and give the session"
_CURSOR: Final = "it is a cursor: give its connection"
_TRANSACTION: Final = "it is a transaction: give the connection or session that began it"

_HINTS: Final = {
    "asyncpg.pool.Pool": _POOL,
    "asyncpg.pool.PoolAcquireContext": _POOL,
    "psycopg_pool.base.BasePool": _POOL,
    "psycopg2.pool.AbstractConnectionPool": _POOL,
    "asyncmy.pool.Pool": _POOL,
    "aiomysql.pool.Pool": _POOL,
    "sqlalchemy.pool.base.Pool": _POOL,
    "sqlalchemy.engine.base.Engine": _ENGINE,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _ENGINE,
    "sqlalchemy.orm.session.sessionmaker": _FACTORY,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _FACTORY,
    "sqlite3.Cursor": _CURSOR,
    "aiosqlite.cursor.Cursor": _CURSOR,
    "psycopg._cursor_base.BaseCursor": _CURSOR,
    "asyncpg.cursor.BaseCursor": _CURSOR,
    "pymysql.cursors.Cursor": _CURSOR,
    "MySQLdb.cursors.BaseCursor": _CURSOR,
    "asyncmy.cursors.Cursor": _CURSOR,
    "aiomysql.cursors.Cursor": _CURSOR,
    "sqlalchemy.engine.base.Transaction": _TRANSACTION,
    "sqlalchemy.orm.session.SessionTransaction": _TRANSACTION,
    "sqlalchemy.ext.asyncio.engine.AsyncTransaction": _TRANSACTION,
    "sqlalchemy.ext.asyncio.session.AsyncSessionTransaction": _TRANSACTION,
    "psycopg.transaction.BaseTransaction": _TRANSACTION,
    "asyncpg.transaction.Transaction": _TRANSACTION,
    "aiomysql.sa.connection.SAConnection": "it is aiomysql's own: give its .connection",
    "mysql.connector.abstracts.MySQLConnectionAbstract": "MySQL Connector/Python is not supported: use PyMySQL",
    "mariadb.connections.Connection": "MariaDB Connector/Python is not supported: use PyMySQL",
    "psycopg2.extensions.connection": "psycopg2 is supported through SQLAlchemy only: give a Connection or a Session",
}
"""What people give by mistake, and what they meant."""


@lru_cache(maxsize=256)  # bounded, because every sessionmaker makes a class of its own
def writer_class(handle: type) -> WriterClass:
    """The writer for handles of this class or of one it is derived from, or `UnsupportedHandle`."""
    names = [f"{known.__module__}.{known.__qualname__}" for known in handle.__mro__]
    for name in names:
        if name in _WRITERS:
            module, _, writer = _WRITERS[name].partition(".")
            found: WriterClass = getattr(import_module(f"pillarbox.writers.{module}"), writer)
            return found
    raise UnsupportedHandle(_refusal(names))


def _refusal(names: list[str]) -> str:
    hint = next((_HINTS[name] for name in names if name in _HINTS), "it is not a connection or session that is known")
    return (
        f"Cannot write through a {names[0]}, because {hint}. Supported are connections of sqlite3, aiosqlite, psycopg, "
        "asyncpg, PyMySQL, mysqlclient, asyncmy and aiomysql, SQLAlchemy's Connection, AsyncConnection, Session and "
        "AsyncSession, and Django's connections."
    )
