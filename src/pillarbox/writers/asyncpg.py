"""Writes through an `asyncpg` connection, its own or a pool's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pillarbox.errors import NotInTransaction
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers import statements
from pillarbox.writers.inbox import Did, perform_async, program
from pillarbox.writers.statements import Statement, Style

if TYPE_CHECKING:
    from asyncpg import Connection, Record
    from asyncpg.pool import PoolConnectionProxy

    Handle: TypeAlias = Connection[Record] | PoolConnectionProxy[Record]

__all__ = ["AsyncpgWriter"]


class AsyncpgWriter:
    """Joins the transaction that `async with connection.transaction()` began."""

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: Handle) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        self._check()
        locks = statements.lock(batch, Style.DOLLAR)
        if locks is not None:
            await self._tx.execute(locks.sql, *locks.parameters)
        for statement in statements.insert(batch, Style.DOLLAR):
            await self._tx.execute(statement.sql, *statement.parameters)

    async def ask(self, ask: InboxAsk) -> Any:
        self._check()
        return await perform_async(program(ask, Style.DOLLAR), self._execute)

    async def _execute(self, statement: Statement) -> Did:
        if statement.has_rows:
            rows = await self._tx.fetch(statement.sql, *statement.parameters)
            return Did(len(rows), [tuple(row) for row in rows])
        status = await self._tx.execute(statement.sql, *statement.parameters)
        return Did(int(status.rpartition(" ")[2]))

    def _check(self) -> None:
        if not self._tx.is_in_transaction():
            raise NotInTransaction(
                "This asyncpg connection is outside a transaction, so the message would be committed on its own: "
                "publish inside `async with connection.transaction():`."
            )
