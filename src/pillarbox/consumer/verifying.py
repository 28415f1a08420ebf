"""Whether a transaction that a handler is done with can still commit.

A handler that caught a database error leaves PostgreSQL with a transaction that answers COMMIT with a silent rollback;
one that rolled back by itself undid the inbox record, and so does MySQL on its own at a deadlock. Each of them would
lose the message once it is acknowledged.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from pillarbox.consumer import marking
from pillarbox.errors import NotInTransaction

__all__ = ["Verifying"]

_ROLLED_BACK: Final = (
    "The handler returned, but its transaction cannot commit: it failed inside and the error was caught, or the "
    "handler ended it. Let database errors pass, or use a savepoint, and leave commit and rollback to the consumer."
)
_IN_TRANSACTION: Final = 2
"""libpq's word for a transaction that can go on: psycopg and psycopg2 both use its numbers."""


class Verifying:
    """Looks at a handle before and after a handler ran. Asks the server only where a driver does not tell."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._failed = False
        self._marked = False
        self._listens = hasattr(type(tx), "add_query_logger")
        """It is asyncpg's: asked of the class, because a pooled connection is slow to say what it has not."""
        self._begun = None if self._listens else _begun(tx)

    def __enter__(self) -> Self:
        if self._listens:
            self._tx.add_query_logger(self._query)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listens:
            self._tx.remove_query_logger(self._query)

    def mark(self) -> None:
        """To be called before the handler. MariaDB and MySQL tell nothing later on, so they are asked to remember."""
        self._mark(self._tx)

    async def mark_async(self) -> None:
        """`mark` for a handle that must be awaited."""
        tx = self._tx
        if hasattr(type(tx), "run_sync"):
            await tx.run_sync(lambda _: self._mark(_inner(tx)))
        elif not self._listens and (execute := marking.executor(tx)) is not None:
            await execute(marking.SET)
            self._marked = True

    def check(self) -> None:
        """`NotInTransaction` when the transaction would not commit what was done in it."""
        self._check(self._tx)

    async def check_async(self) -> None:
        """`check` for a handle that must be awaited."""
        tx = self._tx
        if hasattr(type(tx), "run_sync"):
            await tx.run_sync(lambda _: self._check(_inner(tx)))
        elif self._listens:
            await asyncio.sleep(0)  # asyncpg tells its loggers in the next turn of the loop
            if self._failed or not tx.is_in_transaction():
                await _asked(tx)
        elif self._marked:
            await _released(tx)
        else:
            _check_driver(tx)

    def _query(self, query: Any) -> None:
        self._failed = self._failed or query.exception is not None

    def _mark(self, tx: Any) -> None:
        execute = marking.executor(tx)
        if execute is not None:
            execute(marking.SET)
            self._marked = True

    def _check(self, tx: Any) -> None:
        if _begun(tx) is not self._begun:
            raise NotInTransaction(_ROLLED_BACK)
        if hasattr(tx, "in_atomic_block"):
            _check_django(tx)
        elif hasattr(tx, "exec_driver_sql") or hasattr(tx, "get_bind"):
            _check_sqlalchemy(tx.connection() if hasattr(tx, "get_bind") else tx)
        else:
            _check_driver(tx)
        if self._marked:
            _check_mark(tx)


def _inner(tx: Any) -> Any:
    """The synchronous face of SQLAlchemy's asynchronous handles."""
    return getattr(tx, "sync_session", None) or tx.sync_connection


def _begun(tx: Any) -> object:
    """SQLAlchemy's own object for the transaction: another one means that the first has ended."""
    inner = getattr(tx, "sync_session", None) or getattr(tx, "sync_connection", None) or tx
    return inner.get_transaction() if hasattr(inner, "get_transaction") else None


def _check_sqlalchemy(tx: Any) -> None:
    driver = tx.connection.driver_connection
    if hasattr(driver, "add_query_logger"):
        if not driver.is_in_transaction():
            raise NotInTransaction(_ROLLED_BACK)
        tx.exec_driver_sql("select 1")  # a transaction that failed refuses
    else:
        _check_driver(driver)


def _check_django(tx: Any) -> None:
    """A block that was told not to commit rolls back at its end, and says nothing."""
    if tx.needs_rollback or not tx.in_atomic_block:
        raise NotInTransaction(_ROLLED_BACK)
    _check_driver(tx.connection)


def _check_driver(driver: Any) -> None:
    if hasattr(driver, "in_transaction"):
        can_commit = driver.in_transaction
    elif hasattr(driver, "get_transaction_status"):
        status = driver.get_transaction_status()
        can_commit = status is True or status == _IN_TRANSACTION  # MySQL's drivers have another answer
    elif hasattr(driver, "info"):
        can_commit = driver.info.transaction_status == _IN_TRANSACTION
    else:
        return
    if not can_commit:
        raise NotInTransaction(_ROLLED_BACK)


def _check_mark(tx: Any) -> None:
    if getattr(tx, "in_nested_transaction", bool)():
        return  # SQLAlchemy will release a savepoint of its own, which is gone as well if ours is
    execute = marking.executor(tx)
    try:
        execute(marking.RELEASE)  # type: ignore[misc]  # it was there to set the mark
    except Exception as error:
        raise NotInTransaction(_ROLLED_BACK) from error


async def _released(tx: Any) -> None:
    try:
        await tx.query(marking.RELEASE)
    except Exception as error:
        raise NotInTransaction(_ROLLED_BACK) from error


async def _asked(tx: Any) -> None:
    try:
        await tx.fetchval("select 1")
    except Exception as error:
        raise NotInTransaction(_ROLLED_BACK) from error
    if not tx.is_in_transaction():
        raise NotInTransaction(_ROLLED_BACK)
