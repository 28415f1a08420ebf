"""Registry of writers by the class name of the handle, so that no driver is imported that nobody uses."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import ClassVar, Final, Protocol

from pillarbox.contracts.writer import AsyncWriter, Writer
from pillarbox.errors import UnsupportedHandle

__all__ = ["WriterClass", "find_writer_class"]


class WriterClass(Protocol):
    """Builds the writer for one handle."""

    is_async: ClassVar[bool]

    def __call__(self, tx: object, /) -> Writer | AsyncWriter: ...


_WRITERS: Final = {
    "pillarbox.stores.memory.MemoryTransaction": "memory.memory_writer",
    "sqlite3.Connection": "sqlite.SqliteWriter",
    "aiosqlite.core.Connection": "sqlite.AiosqliteWriter",
    "psycopg.Connection": "psycopg.PsycopgWriter",
    "psycopg.AsyncConnection": "psycopg.AsyncPsycopgWriter",
    "asyncpg.connection.Connection": "asyncpg.AsyncpgWriter",
    "asyncpg.pool.PoolConnectionProxy": "asyncpg.AsyncpgWriter",
    "pymysql.connections.Connection": "mysql.PymysqlWriter",
    "MySQLdb.connections.Connection": "mysql.MysqldbWriter",
    "asyncmy.connection.Connection": "mysql.AsyncmyWriter",
    "aiomysql.connection.Connection": "mysql.AiomysqlWriter",
    "sqlalchemy.engine.base.Connection": "sqlalchemy.ConnectionWriter",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy.AsyncConnectionWriter",
    "sqlalchemy.orm.session.Session": "sqlalchemy.SessionWriter",
    "sqlalchemy.orm.scoping.scoped_session": "sqlalchemy.ScopedSessionWriter",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy.AsyncSessionWriter",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "sqlalchemy.AsyncScopedSessionWriter",
    "django.db.backends.base.base.BaseDatabaseWrapper": "django.DjangoWriter",
    "django.utils.connection.ConnectionProxy": "django.DjangoWriter",
}
"""Class of a handle → module and name of the writer that joins it."""

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
"""Classes that people give by mistake → advice."""


@lru_cache(maxsize=256)  # bounded, because every sessionmaker makes a class of its own
def find_writer_class(handle: type) -> WriterClass:
    """Find the writer for handles of this class or of one of its bases; raise `UnsupportedHandle` if there is none."""
    names = [f"{known.__module__}.{known.__qualname__}" for known in handle.__mro__]
    for name in names:
        if name in _WRITERS:
            module, _, writer = _WRITERS[name].partition(".")
            found: WriterClass = getattr(import_module(f"pillarbox.writers.{module}"), writer)
            return found
    hint = next((_HINTS[name] for name in names if name in _HINTS), "it is not a connection or session that is known")
    raise UnsupportedHandle(
        f"Cannot write through a {names[0]}, because {hint}. Supported are connections of sqlite3, aiosqlite, psycopg, "
        "asyncpg, PyMySQL, mysqlclient, asyncmy and aiomysql, SQLAlchemy's Connection, AsyncConnection, Session and "
        "AsyncSession, and Django's connections."
    )
