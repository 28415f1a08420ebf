"""Writes through a `psycopg` connection, sync or async."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pillarbox.errors import NotInTransaction
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers import statements
from pillarbox.writers.inbox import Did, perform, perform_async, program
from pillarbox.writers.statements import Statement, Style

__all__ = ["AsyncPsycopgWriter", "PsycopgWriter"]

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
        locks = statements.lock(batch, Style.FORMAT)
        if locks is not None:
            self._execute(locks)
        for statement in statements.insert(batch, Style.FORMAT):
            self._execute(statement)

    def ask(self, ask: InboxAsk) -> Any:
        _check(self._tx)
        return perform(program(ask, Style.FORMAT), self._did)

    def _did(self, statement: Statement) -> Did:
        cursor = self._execute(statement)
        if cursor.rowcount < 0:
            with self._tx.pipeline():  # leaving it fetches the answers that are still out
                pass
        return Did(cursor.rowcount, cursor.fetchall() if statement.has_rows else ())

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
        locks = statements.lock(batch, Style.FORMAT)
        if locks is not None:
            await self._execute(locks)
        for statement in statements.insert(batch, Style.FORMAT):
            await self._execute(statement)

    async def ask(self, ask: InboxAsk) -> Any:
        _check(self._tx)
        return await perform_async(program(ask, Style.FORMAT), self._did)

    async def _did(self, statement: Statement) -> Did:
        cursor = await self._execute(statement)
        if cursor.rowcount < 0:
            async with self._tx.pipeline():  # leaving it fetches the answers that are still out
                pass
        return Did(cursor.rowcount, await cursor.fetchall() if statement.has_rows else ())

    async def _execute(self, statement: Statement) -> psycopg.AsyncCursor[Any]:
        cursor = psycopg.AsyncCursor(self._tx, row_factory=tuple_row)
        return await cursor.execute(statement.sql, statement.parameters)


def _check(tx: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    # In a pipeline the server's word comes late, but the connection counts its own transaction blocks.
    if tx.autocommit and not tx._num_transactions and tx.pgconn.transaction_status in _OUTSIDE:
        raise NotInTransaction(
            "This psycopg connection is in autocommit mode and outside a transaction, so the message would be "
            "committed on its own: publish inside `with connection.transaction():`."
        )
