"""Writers for `psycopg` connections, sync and async."""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pillarbox.contracts.writer import InboxCommand, Insert
from pillarbox.errors import NotInTransaction
from pillarbox.writers.inbox_sql import StatementResult, build_steps, run_steps, run_steps_async
from pillarbox.writers.insert_sql import Dialect, Statement, build_insert, build_lock

__all__ = ["AsyncPsycopgWriter", "PsycopgWriter"]

R = TypeVar("R")

_OUTSIDE: Final = (TransactionStatus.IDLE, TransactionStatus.ACTIVE)


class PsycopgWriter:
    """Joins the transaction of a `psycopg.Connection`, or the one its next statement opens.

    Its own plain cursor is used, so the connection's cursor and row factories do not matter.
    """

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: psycopg.Connection[Any]) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        _check(self._tx)
        lock = build_lock(batch, Dialect.POSTGRES_FORMAT)
        if lock is not None:
            self._execute(lock)
        for statement in build_insert(batch, Dialect.POSTGRES_FORMAT):
            self._execute(statement)

    def execute(self, command: InboxCommand[R]) -> R:
        _check(self._tx)
        return run_steps(build_steps(command, Dialect.POSTGRES_FORMAT), self._run)

    def _run(self, statement: Statement) -> StatementResult:
        cursor = self._execute(statement)
        if cursor.rowcount < 0:
            with self._tx.pipeline():  # leaving it fetches the answers that are still out
                pass
        return StatementResult(cursor.rowcount, cursor.fetchall() if statement.has_rows else ())

    def _execute(self, statement: Statement) -> psycopg.Cursor[Any]:
        return psycopg.Cursor(self._tx, row_factory=tuple_row).execute(statement.sql, statement.parameters)


class AsyncPsycopgWriter:
    """`PsycopgWriter` for a `psycopg.AsyncConnection`."""

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: psycopg.AsyncConnection[Any]) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        _check(self._tx)
        lock = build_lock(batch, Dialect.POSTGRES_FORMAT)
        if lock is not None:
            await self._execute(lock)
        for statement in build_insert(batch, Dialect.POSTGRES_FORMAT):
            await self._execute(statement)

    async def execute(self, command: InboxCommand[R]) -> R:
        _check(self._tx)
        return await run_steps_async(build_steps(command, Dialect.POSTGRES_FORMAT), self._run)

    async def _run(self, statement: Statement) -> StatementResult:
        cursor = await self._execute(statement)
        if cursor.rowcount < 0:
            async with self._tx.pipeline():  # leaving it fetches the answers that are still out
                pass
        return StatementResult(cursor.rowcount, await cursor.fetchall() if statement.has_rows else ())

    async def _execute(self, statement: Statement) -> psycopg.AsyncCursor[Any]:
        cursor = psycopg.AsyncCursor(self._tx, row_factory=tuple_row)
        return await cursor.execute(statement.sql, statement.parameters)


def _check(tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    # In a pipeline the server's status comes late, but the connection counts its own transaction blocks.
    if tx.autocommit and not tx._num_transactions and tx.pgconn.transaction_status in _OUTSIDE:
        raise NotInTransaction(
            "This psycopg connection is in autocommit mode and outside a transaction, so the message would be "
            "committed on its own: publish inside `with connection.transaction():`."
        )
