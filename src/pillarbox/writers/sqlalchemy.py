"""Writes through SQLAlchemy's `Connection` and `AsyncConnection`."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy.exc import SQLAlchemyError

from pillarbox.errors import NotInTransaction, UnsupportedHandle
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers import statements
from pillarbox.writers.inbox import Did, perform, program
from pillarbox.writers.sqlite3 import would_autocommit
from pillarbox.writers.statements import SAVEPOINT, Statement, Statements, Style

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["AsyncConnectionWriter", "ConnectionWriter", "ask", "check", "insert"]

_STYLES: Final = {
    ("postgresql", "asyncpg"): Style.DOLLAR,
    ("postgresql", "psycopg"): Style.FORMAT,
    ("postgresql", "psycopg_async"): Style.FORMAT,
    ("postgresql", "psycopg2"): Style.FORMAT,
    ("sqlite", "pysqlite"): Style.QMARK,
    ("sqlite", "aiosqlite"): Style.QMARK,
    **{
        (dialect, driver): Style.MYSQL
        for dialect in ("mysql", "mariadb")
        for driver in ("pymysql", "mysqldb", "asyncmy", "aiomysql")
    },
}
_KEEP_COUNT: Final = {"preserve_rowcount": True}


class ConnectionWriter:
    """Joins the transaction of a `Connection`, or the one its next statement opens."""

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: Connection) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        check(self._tx)
        insert(self._tx, batch)

    def ask(self, ask_: InboxAsk) -> Any:
        check(self._tx)
        return ask(self._tx, ask_)


class AsyncConnectionWriter:
    """`ConnectionWriter` for an `AsyncConnection`."""

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: AsyncConnection) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self._tx.run_sync(lambda tx: ConnectionWriter(tx).insert(batch))

    async def ask(self, ask: InboxAsk) -> Any:
        return await self._tx.run_sync(lambda tx: ConnectionWriter(tx).ask(ask))


def insert(tx: Connection, batch: Insert) -> None:
    """Write the batch now. The connection has been checked."""
    style = _style(tx)
    locks = statements.lock(batch, style)
    if locks is not None:
        tx.exec_driver_sql(locks.sql, _bound(locks)).close()
    inserts = statements.insert(batch, style)
    if len(inserts) > 1:
        _insert_all(tx, inserts, style)
        return
    for statement in inserts:
        tx.exec_driver_sql(statement.sql, _bound(statement))


def ask(tx: Connection, ask: InboxAsk) -> Any:
    """Do what is asked of the inbox now. The connection has been checked."""

    def execute(statement: Statement) -> Did:
        result = tx.exec_driver_sql(statement.sql, _bound(statement), execution_options=_KEEP_COUNT)
        if statement.has_rows:
            rows = [tuple(row) for row in result]
            return Did(len(rows), rows)
        return Did(result.rowcount)

    return perform(program(ask, _style(tx)), execute)


def check(tx: Connection) -> None:
    """Refuse a connection that would autocommit, or whose dialect is not supported."""
    if _autocommits(tx, _style(tx)):
        raise NotInTransaction(
            "This SQLAlchemy connection has the isolation level AUTOCOMMIT, so the message would be committed on its "
            "own: use an engine, connection or session without that isolation level."
        )


def _autocommits(tx: Connection, style: Style) -> bool:
    driver: Any = tx.connection
    if style is Style.QMARK:
        return _sqlite_autocommits(tx, driver.driver_connection)
    if style is Style.MYSQL:
        return bool(driver.driver_connection.get_autocommit())
    return bool(driver.dbapi_connection.autocommit)


def _sqlite_autocommits(tx: Connection, driver: Any) -> bool:
    if driver.isolation_level is None and not tx.in_transaction():
        # Where the application emits BEGIN itself, in an event, it does so now.
        tx.begin()
    return would_autocommit(driver, autocommit=_autocommit(driver))


def _autocommit(driver: Any) -> object:
    try:
        return getattr(getattr(driver, "_conn", driver), "autocommit", None)
    except sqlite3.ProgrammingError:  # belongs to another thread, which does not let us look
        return None


def _insert_all(tx: Connection, inserts: Statements, style: Style) -> None:
    driver: Any = tx.connection.driver_connection
    if style is Style.QMARK and not driver.in_transaction:
        # Releasing a savepoint that stands outside a transaction would commit it.
        tx.exec_driver_sql(f"begin {driver.isolation_level}")
    tx.exec_driver_sql(SAVEPOINT.set)
    try:
        for statement in inserts:
            tx.exec_driver_sql(statement.sql, _bound(statement))
    except BaseException:
        with suppress(SQLAlchemyError):  # what ended the whole transaction took the savepoint with it
            tx.exec_driver_sql(SAVEPOINT.undo)
            tx.exec_driver_sql(SAVEPOINT.release)
        raise
    tx.exec_driver_sql(SAVEPOINT.release)


def _style(tx: Connection) -> Style:
    dialect = tx.dialect
    style = _STYLES.get((dialect.name, dialect.driver))
    if style is None:
        raise UnsupportedHandle(
            f"Cannot write through SQLAlchemy's {dialect.name}+{dialect.driver}: use PostgreSQL by asyncpg, psycopg or "
            "psycopg2, SQLite by pysqlite or aiosqlite, or MariaDB and MySQL by pymysql, mysqldb, asyncmy or aiomysql."
        )
    return style


def _bound(statement: Statement) -> tuple[Any, ...]:
    return tuple(statement.parameters)
