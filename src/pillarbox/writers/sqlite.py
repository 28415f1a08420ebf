"""Writers for SQLite connections: `sqlite3` and `aiosqlite`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from pillarbox.contracts.writer import InboxCommand, Insert
from pillarbox.errors import NotInTransaction
from pillarbox.writers.inbox_sql import StatementResult, build_steps, run_steps
from pillarbox.writers.insert_sql import SAVEPOINT, Dialect, Statement, build_insert

if TYPE_CHECKING:
    import aiosqlite

__all__ = ["AiosqliteWriter", "SqliteWriter", "would_autocommit"]

R = TypeVar("R")


class SqliteWriter:
    """Joins the transaction of a `sqlite3.Connection`, or the one its next statement opens."""

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: sqlite3.Connection) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        self._check()
        inserts = build_insert(batch, Dialect.SQLITE)
        if len(inserts) > 1:
            self._insert_all(inserts)
            return
        for statement in inserts:
            self._tx.execute(statement.sql, statement.parameters)

    def execute(self, command: InboxCommand[R]) -> R:
        self._check()
        return run_steps(build_steps(command, Dialect.SQLITE), self._run)

    def _run(self, statement: Statement) -> StatementResult:
        cursor = self._tx.cursor()
        cursor.row_factory = None
        cursor.execute(statement.sql, statement.parameters)
        return StatementResult(cursor.rowcount, cursor.fetchall() if statement.has_rows else ())

    def _insert_all(self, inserts: Sequence[Statement]) -> None:
        if not self._tx.in_transaction:
            # Releasing a savepoint that stands outside a transaction would commit it.
            self._tx.execute(f"begin {self._tx.isolation_level}")
        self._tx.execute(SAVEPOINT.set)
        try:
            for statement in inserts:
                self._tx.execute(statement.sql, statement.parameters)
        except BaseException:
            if self._tx.in_transaction:
                self._tx.execute(SAVEPOINT.undo)
                self._tx.execute(SAVEPOINT.release)
            raise
        self._tx.execute(SAVEPOINT.release)

    def _check(self) -> None:
        if would_autocommit(self._tx, autocommit=getattr(self._tx, "autocommit", None)):
            raise NotInTransaction(
                "This SQLite connection is in autocommit mode and outside a transaction, so the message would be "
                "committed on its own: execute BEGIN first, or open the connection without isolation_level=None."
            )


class AiosqliteWriter:
    """Joins the transaction of an `aiosqlite.Connection`, or the one its next statement opens.

    Everything happens in one visit to the connection's own thread: no statement of another task comes between.
    """

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: aiosqlite.Connection) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self._tx._execute(SqliteWriter(self._tx._conn).insert, batch)  # type: ignore[no-untyped-call]

    async def execute(self, command: InboxCommand[R]) -> R:
        result: R = await self._tx._execute(SqliteWriter(self._tx._conn).execute, command)  # type: ignore[no-untyped-call]
        return result


class _SqliteState(Protocol):
    """The transaction state that every kind of SQLite connection shows."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def isolation_level(self) -> str | None: ...


def would_autocommit(tx: _SqliteState, *, autocommit: object = None) -> bool:
    """Return True when a statement executed now would commit by itself.

    `autocommit` is the attribute that Python 3.12 added.
    """
    if tx.in_transaction:
        return False
    return autocommit is True or (tx.isolation_level is None and autocommit is not False)
