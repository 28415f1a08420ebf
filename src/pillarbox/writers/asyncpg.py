"""Writer for `asyncpg` connections, its own or a pool's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar

from pillarbox.contracts.writer import InboxCommand, Insert
from pillarbox.errors import NotInTransaction
from pillarbox.writers.inbox_sql import StatementResult, build_steps, run_steps_async
from pillarbox.writers.insert_sql import Dialect, Statement, build_insert, build_lock

if TYPE_CHECKING:
    from asyncpg import Connection, Record
    from asyncpg.pool import PoolConnectionProxy

    Handle: TypeAlias = Connection[Record] | PoolConnectionProxy[Record]

__all__ = ["AsyncpgWriter"]

R = TypeVar("R")


class AsyncpgWriter:
    """Joins the transaction that `async with connection.transaction()` began."""

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: Handle) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        self._check()
        lock = build_lock(batch, Dialect.POSTGRES_DOLLAR)
        if lock is not None:
            await self._tx.execute(lock.sql, *lock.parameters)
        for statement in build_insert(batch, Dialect.POSTGRES_DOLLAR):
            await self._tx.execute(statement.sql, *statement.parameters)

    async def execute(self, command: InboxCommand[R]) -> R:
        self._check()
        return await run_steps_async(build_steps(command, Dialect.POSTGRES_DOLLAR), self._run)

    async def _run(self, statement: Statement) -> StatementResult:
        if statement.has_rows:
            rows = await self._tx.fetch(statement.sql, *statement.parameters)
            return StatementResult(len(rows), [tuple(row) for row in rows])
        status = await self._tx.execute(statement.sql, *statement.parameters)
        return StatementResult(int(status.rpartition(" ")[2]))

    def _check(self) -> None:
        if not self._tx.is_in_transaction():
            raise NotInTransaction(
                "This asyncpg connection is outside a transaction, so the message would be committed on its own: "
                "publish inside `async with connection.transaction():`."
            )
