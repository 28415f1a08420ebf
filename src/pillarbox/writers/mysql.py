"""What the drivers of MariaDB and MySQL have in common, sync and async. Each has a file of its own beside this one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Final

from pillarbox.errors import NotInTransaction
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers import statements
from pillarbox.writers.inbox import Did, perform, perform_async, program
from pillarbox.writers.statements import SAVEPOINT, Statement, Statements, Style

__all__ = ["AUTOCOMMITS", "AsyncMysqlWriter", "MysqlWriter"]

AUTOCOMMITS: Final = (
    "This connection is in autocommit mode and outside a transaction, so the message would be committed on its own: "
    "call its begin() first, or open it without autocommit."
)
_IN_TRANSACTION: Final = 1
"""The bit of `server_status` that says so."""


class MysqlWriter:
    """Joins the transaction of a connection, or the one its next statement opens.

    The driver's plain cursor is used, so the connection's cursor class does not matter.
    """

    is_async: ClassVar = False
    cursor_class: ClassVar[Any]
    __slots__ = ("_tx",)

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        self.check()
        locks = statements.lock(batch, Style.MYSQL)
        if locks is not None:
            self._execute(locks)
        inserts = statements.insert(batch, Style.MYSQL)
        if len(inserts) > 1:
            self._insert_all(inserts)
            return
        for statement in inserts:
            self._execute(statement)

    def ask(self, ask: InboxAsk) -> Any:
        self.check()
        return perform(program(ask, Style.MYSQL), self._execute)

    def check(self) -> None:
        """`NotInTransaction` when the next statement would commit by itself."""
        tx = self._tx
        if not tx.get_autocommit():
            return
        if tx.server_status & _IN_TRANSACTION:
            tx.ping(reconnect=False)  # errors carry no status: a deadlock may have ended the transaction unseen
        if not tx.server_status & _IN_TRANSACTION:
            raise NotInTransaction(AUTOCOMMITS)

    def _insert_all(self, inserts: Statements) -> None:
        self._execute(Statement(SAVEPOINT.set))
        try:
            for statement in inserts:
                self._execute(statement)
        except Exception:
            with suppress(Exception):  # a deadlock has rolled back everything, and the savepoint with it
                self._execute(Statement(SAVEPOINT.undo))
            raise
        self._execute(Statement(SAVEPOINT.release))

    def _execute(self, statement: Statement) -> Did:
        with self._tx.cursor(self.cursor_class) as cursor:
            cursor.execute(statement.sql, tuple(statement.parameters))
            return Did(cursor.rowcount, cursor.fetchall() if statement.has_rows else ())


class AsyncMysqlWriter:
    """`MysqlWriter` for connections whose methods are awaited."""

    is_async: ClassVar = True
    cursor_class: ClassVar[Any]
    __slots__ = ("_tx",)

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self.check()
        locks = statements.lock(batch, Style.MYSQL)
        if locks is not None:
            await self._execute(locks)
        inserts = statements.insert(batch, Style.MYSQL)
        if len(inserts) > 1:
            await self._insert_all(inserts)
            return
        for statement in inserts:
            await self._execute(statement)

    async def ask(self, ask: InboxAsk) -> Any:
        await self.check()
        return await perform_async(program(ask, Style.MYSQL), self._execute)

    async def check(self) -> None:
        """`NotInTransaction` when the next statement would commit by itself."""
        tx = self._tx
        if not tx.get_autocommit():
            return
        if tx.get_transaction_status():
            await tx.ping(reconnect=False)  # as in `MysqlWriter.check`
        if not tx.get_transaction_status():
            raise NotInTransaction(AUTOCOMMITS)

    async def _insert_all(self, inserts: Statements) -> None:
        await self._execute(Statement(SAVEPOINT.set))
        try:
            for statement in inserts:
                await self._execute(statement)
        except Exception:  # not when cancelled: the driver has closed the connection
            with suppress(Exception):
                await self._execute(Statement(SAVEPOINT.undo))
            raise
        await self._execute(Statement(SAVEPOINT.release))

    async def _execute(self, statement: Statement) -> Did:
        async with self._tx.cursor(self.cursor_class) as cursor:
            await cursor.execute(statement.sql, tuple(statement.parameters))
            return Did(cursor.rowcount, await cursor.fetchall() if statement.has_rows else ())
