"""Opens the transactions that messages are handled in, from whatever the service has: sessions, engines, pools."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any, Final

import msgspec

from pillarbox.errors import ConfigError

__all__ = ["Transactions", "transactions_of"]

AsyncBegin = Callable[[], AbstractAsyncContextManager[Any]]
SyncBegin = Callable[[], AbstractContextManager[Any]]


class Transactions(msgspec.Struct, frozen=True):
    """How to begin a transaction: a block that commits at its end and rolls back when it raises.

    One of the two is set.
    """

    asynchronous: AsyncBegin | None = None
    synchronous: SyncBegin | None = None


def transactions_of(database: object) -> Transactions:
    """Transactions of SQLAlchemy's session makers and engines, of drivers' pools, of a SQLite file.

    Anything else must be a function that returns a context manager, sync or async, which gives the handle, commits at
    its end and rolls back on an exception. `ConfigError` for what is none of these.
    """
    for name in (f"{cls.__module__}.{cls.__qualname__}" for cls in type(database).__mro__):
        if name in _KNOWN:
            return _KNOWN[name](database)
    if isinstance(database, Path):
        return Transactions(synchronous=lambda: _sqlite(database))
    if callable(database):
        return _called(database)
    raise ConfigError(
        f"A {type(database).__qualname__} cannot open transactions: give a sessionmaker, an engine, a pool of "
        "asyncpg, psycopg, asyncmy or aiomysql, the Path of a SQLite file, or a function that returns a context "
        "manager."
    )


def _called(begin: Callable[[], Any]) -> Transactions:
    """What such a function returns tells which it is; making one opens nothing yet."""
    sample = begin()
    if inspect.iscoroutine(sample):
        sample.close()
        raise ConfigError("The function that opens transactions is a coroutine; decorate it with asynccontextmanager.")
    if hasattr(sample, "__aenter__"):
        return Transactions(asynchronous=begin)
    if hasattr(sample, "__enter__"):
        return Transactions(synchronous=begin)
    raise ConfigError("The function that opens transactions must return a context manager, sync or async.")


# --- what is known ---


def _session_maker(maker: Any) -> Transactions:
    return Transactions(synchronous=maker.begin)


def _async_session_maker(maker: Any) -> Transactions:
    return Transactions(asynchronous=maker.begin)


def _psycopg_pool(pool: Any) -> Transactions:
    return Transactions(synchronous=pool.connection)


def _async_psycopg_pool(pool: Any) -> Transactions:
    return Transactions(asynchronous=pool.connection)


def _asyncpg_pool(pool: Any) -> Transactions:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    return Transactions(asynchronous=begin)


def _mysql_pool(pool: Any) -> Transactions:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection:
            await connection.begin()
            try:
                yield connection
            except BaseException:
                with suppress(Exception):  # the connection is lost, or the driver closed it when it was cancelled
                    await connection.rollback()
                raise
            await connection.commit()

    return Transactions(asynchronous=begin)


def _memory(store: Any) -> Transactions:
    return Transactions(synchronous=store.transaction)


@contextmanager
def _sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE: a transaction that reads before it writes could otherwise not go on after another's commit."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
        connection.execute("pragma foreign_keys = on")
        connection.execute("begin immediate")
        try:
            yield connection
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        connection.execute("commit")


_KNOWN: Final[dict[str, Callable[[Any], Transactions]]] = {
    "sqlalchemy.orm.session.sessionmaker": _session_maker,
    "sqlalchemy.engine.base.Engine": _session_maker,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _async_session_maker,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _async_session_maker,
    "psycopg_pool.pool.ConnectionPool": _psycopg_pool,
    "psycopg_pool.pool_async.AsyncConnectionPool": _async_psycopg_pool,
    "asyncpg.pool.Pool": _asyncpg_pool,
    "asyncmy.pool.Pool": _mysql_pool,
    "aiomysql.pool.Pool": _mysql_pool,
    "pillarbox.stores.memory.store.MemoryStore": _memory,
}
