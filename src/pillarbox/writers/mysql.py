"""Writers for MariaDB and MySQL connections: PyMySQL, mysqlclient, asyncmy and aiomysql."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, TypeVar

from pillarbox.contracts.writer import InboxCommand, Insert
from pillarbox.errors import NotInTransaction
from pillarbox.writers.inbox_sql import StatementResult, build_steps, run_steps, run_steps_async
from pillarbox.writers.insert_sql import SAVEPOINT, Dialect, Statement, build_insert, build_lock

__all__ = ["AiomysqlWriter", "AsyncmyWriter", "MysqldbWriter", "PymysqlWriter"]

R = TypeVar("R")

_AUTOCOMMITS: Final = (
    "This connection is in autocommit mode and outside a transaction, so the message would be committed on its own: "
    "call its begin() first, or open it without autocommit."
)
_IN_TRANSACTION: Final = 1
"""The bit of `server_status` that is set inside a transaction."""


@cache
def _plain_cursor(driver: str) -> Any:
    """Return the driver's plain cursor class, so that the connection's own cursor class does not matter.

    The driver is loaded already, because a connection of it was given.
    """
    return import_module(f"{driver}.cursors").Cursor


class PymysqlWriter:
    """Joins the transaction of a `pymysql.Connection`, or the one its next statement opens."""

    is_async: ClassVar = False
    driver: ClassVar = "pymysql"
    __slots__ = ("_tx",)

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        self._check()
        lock = build_lock(batch, Dialect.MYSQL)
        if lock is not None:
            self._run(lock)
        inserts = build_insert(batch, Dialect.MYSQL)
        if len(inserts) > 1:
            self._insert_all(inserts)
            return
        for statement in inserts:
            self._run(statement)

    def execute(self, command: InboxCommand[R]) -> R:
        self._check()
        return run_steps(build_steps(command, Dialect.MYSQL), self._run)

    def _check(self) -> None:
        """Raise `NotInTransaction` when the next statement would commit by itself."""
        tx = self._tx
        if not tx.get_autocommit():
            return
        if tx.server_status & _IN_TRANSACTION:
            tx.ping(reconnect=False)  # errors carry no status: a deadlock may have ended the transaction unseen
        if not tx.server_status & _IN_TRANSACTION:
            raise NotInTransaction(_AUTOCOMMITS)

    def _insert_all(self, inserts: Sequence[Statement]) -> None:
        self._run(Statement(SAVEPOINT.set))
        try:
            for statement in inserts:
                self._run(statement)
        except Exception:
            with suppress(Exception):  # a deadlock has rolled back everything, and the savepoint with it
                self._run(Statement(SAVEPOINT.undo))
            raise
        self._run(Statement(SAVEPOINT.release))

    def _run(self, statement: Statement) -> StatementResult:
        with self._tx.cursor(_plain_cursor(self.driver)) as cursor:
            cursor.execute(statement.sql, tuple(statement.parameters))
            return StatementResult(cursor.rowcount, cursor.fetchall() if statement.has_rows else ())


class MysqldbWriter(PymysqlWriter):
    """Joins the transaction of a connection of mysqlclient, whose module is `MySQLdb`."""

    driver: ClassVar = "MySQLdb"
    __slots__ = ()

    def _check(self) -> None:
        """Raise `NotInTransaction` in autocommit mode: this driver does not show whether a transaction is open."""
        if self._tx.get_autocommit():
            raise NotInTransaction(
                "This MySQLdb connection is in autocommit mode, so the message may be committed on its own: call "
                "connection.autocommit(False), and commit() at the end."
            )


class AsyncmyWriter:
    """Joins the transaction of an `asyncmy.Connection`, its own or a pool's, or the one its next statement opens."""

    is_async: ClassVar = True
    driver: ClassVar = "asyncmy"
    __slots__ = ("_tx",)

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self._check()
        lock = build_lock(batch, Dialect.MYSQL)
        if lock is not None:
            await self._run(lock)
        inserts = build_insert(batch, Dialect.MYSQL)
        if len(inserts) > 1:
            await self._insert_all(inserts)
            return
        for statement in inserts:
            await self._run(statement)

    async def execute(self, command: InboxCommand[R]) -> R:
        await self._check()
        return await run_steps_async(build_steps(command, Dialect.MYSQL), self._run)

    async def _check(self) -> None:
        """Raise `NotInTransaction` when the next statement would commit by itself."""
        tx = self._tx
        if not tx.get_autocommit():
            return
        if tx.get_transaction_status():
            await tx.ping(reconnect=False)  # as in `PymysqlWriter._check`
        if not tx.get_transaction_status():
            raise NotInTransaction(_AUTOCOMMITS)

    async def _insert_all(self, inserts: Sequence[Statement]) -> None:
        await self._run(Statement(SAVEPOINT.set))
        try:
            for statement in inserts:
                await self._run(statement)
        except Exception:  # not when cancelled: the driver has closed the connection
            with suppress(Exception):
                await self._run(Statement(SAVEPOINT.undo))
            raise
        await self._run(Statement(SAVEPOINT.release))

    async def _run(self, statement: Statement) -> StatementResult:
        async with self._tx.cursor(_plain_cursor(self.driver)) as cursor:
            await cursor.execute(statement.sql, tuple(statement.parameters))
            return StatementResult(cursor.rowcount, await cursor.fetchall() if statement.has_rows else ())


class AiomysqlWriter(AsyncmyWriter):
    """Joins the transaction of an `aiomysql.Connection`, its own or a pool's, or the one its next statement opens."""

    driver: ClassVar = "aiomysql"
    __slots__ = ()
