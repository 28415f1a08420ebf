"""Writes through SQLAlchemy's `Session` and `AsyncSession`, and their scoped forms."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import sqlalchemy
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pillarbox.errors import UnsupportedHandle
from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers import staging
from pillarbox.writers.sqlalchemy import ask, check

__all__ = ["AsyncScopedSessionWriter", "AsyncSessionWriter", "ScopedSessionWriter", "SessionWriter"]

_AN_INSERT: Final = sqlalchemy.insert(sqlalchemy.table("pillarbox_outbox"))
"""Shown to a session that chooses its database by statement."""


class SessionWriter:
    """Joins the transaction of a `Session`, which its first use begins. Messages wait for the flush or commit."""

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: Session) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        bind = self._bind()
        tx = self._connection(bind)
        staging.put(self._tx, tx, batch, joined=isinstance(bind, Connection))

    def ask(self, ask_: InboxAsk) -> Any:
        return ask(self._connection(self._bind()), ask_)

    def _connection(self, bind: Engine | Connection) -> Connection:
        tx = self._tx.connection(bind_arguments={"bind": bind})
        check(tx)
        return tx

    def _bind(self) -> Engine | Connection:
        try:
            return self._tx.get_bind(clause=_AN_INSERT)
        except UnboundExecutionError as error:
            raise UnsupportedHandle(
                "This session has no database of its own for the message: give it a default bind, or publish on "
                "session.connection(bind_arguments={'mapper': ...}) of the class that the message belongs to."
            ) from error


class ScopedSessionWriter(SessionWriter):
    """`SessionWriter` for the current session of a `scoped_session`."""

    __slots__ = ()

    def __init__(self, tx: scoped_session[Any]) -> None:
        super().__init__(tx())


class AsyncSessionWriter:
    """`SessionWriter` for an `AsyncSession`."""

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: AsyncSession) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self._tx.run_sync(lambda tx: SessionWriter(tx).insert(batch))

    async def ask(self, ask: InboxAsk) -> Any:
        return await self._tx.run_sync(lambda tx: SessionWriter(tx).ask(ask))


class AsyncScopedSessionWriter(AsyncSessionWriter):
    """`AsyncSessionWriter` for the current session of an `async_scoped_session`."""

    __slots__ = ()

    def __init__(self, tx: async_scoped_session[Any]) -> None:
        super().__init__(tx())
