"""Guard against handlers that leave a transaction which cannot commit.

When a handler catches a database error, PostgreSQL answers the later COMMIT with a silent rollback. A handler that
rolls back by itself undoes the inbox record, and MySQL does the same at a deadlock. In each case the message would be
lost once it is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self

from pillarbox.errors import NotInTransaction, StoreUnavailable

__all__ = ["TransactionGuard"]

_SAVEPOINT: Final = "savepoint pillarbox_handler"
_RELEASE: Final = "release savepoint pillarbox_handler"

_DIALECTS: Final = ("mysql", "mariadb")
_DRIVERS: Final = {"pymysql.connections", "MySQLdb.connections", "asyncmy.connection", "aiomysql.connection"}

_ROLLED_BACK: Final = (
    "The handler returned, but its transaction cannot commit: it failed inside and the error was caught, or the "
    "handler ended it. Let database errors pass, or use a savepoint, and leave commit and rollback to the consumer."
)
_LOST: Final = (
    "The handler returned, but the connection of its transaction was lost meanwhile: it will be handled again."
)
_IN_TRANSACTION: Final = 2
_UNKNOWN: Final = 4
"""libpq's status of a transaction that can go on, and of a lost connection. psycopg and psycopg2 use its numbers."""


class TransactionGuard:
    """Checks a transaction before and after a handler ran. Asks the server only where the driver does not know."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._has_failed = False
        self._has_savepoint = False
        # On the class: a missing attribute of asyncpg's pooled connection proxy is slow to look up.
        self._is_asyncpg = hasattr(type(tx), "add_query_logger")
        self._transaction = None if self._is_asyncpg else _get_transaction(tx)

    def __enter__(self) -> Self:
        if self._is_asyncpg:
            self._tx.add_query_logger(self._on_query)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_asyncpg:
            self._tx.remove_query_logger(self._on_query)

    def prepare(self) -> None:
        """Prepare the check, before the handler runs. On MariaDB and MySQL only a savepoint can tell later."""
        self._set_savepoint(self._tx)

    async def prepare_async(self) -> None:
        """Do as `prepare`, for a handle that must be awaited."""
        tx = self._tx
        if hasattr(type(tx), "run_sync"):
            await tx.run_sync(lambda _: self._set_savepoint(_get_sync_handle(tx)))
        elif not self._is_asyncpg and (execute := _find_executor(tx)) is not None:
            await execute(_SAVEPOINT)
            self._has_savepoint = True

    def check(self) -> None:
        """Raise `NotInTransaction` if the transaction would not commit what was done in it."""
        self._check(self._tx)

    async def check_async(self) -> None:
        """Do as `check`, for a handle that must be awaited."""
        tx = self._tx
        if hasattr(type(tx), "run_sync"):
            await tx.run_sync(lambda _: self._check(_get_sync_handle(tx)))
        elif self._is_asyncpg:
            await asyncio.sleep(0)  # asyncpg calls its loggers in the next turn of the loop
            if self._has_failed or not tx.is_in_transaction():
                await _check_asyncpg(tx)
        elif self._has_savepoint:
            await _release_async(tx)
        else:
            _check_driver(tx)

    def _on_query(self, query: Any) -> None:
        self._has_failed = self._has_failed or query.exception is not None

    def _set_savepoint(self, tx: Any) -> None:
        execute = _find_executor(tx)
        if execute is not None:
            execute(_SAVEPOINT)
            self._has_savepoint = True

    def _check(self, tx: Any) -> None:
        if _get_transaction(tx) is not self._transaction:
            raise NotInTransaction(_ROLLED_BACK)
        if hasattr(tx, "in_atomic_block"):
            _check_django(tx)
        elif hasattr(tx, "exec_driver_sql") or hasattr(tx, "get_bind"):
            _check_sqlalchemy(tx.connection() if hasattr(tx, "get_bind") else tx)
        else:
            _check_driver(tx)
        if self._has_savepoint:
            _release(tx)


def _find_executor(tx: Any) -> Callable[[str], Any] | None:
    """Return what executes SQL on a handle of MariaDB or MySQL, None for other databases.

    The result must be awaited if the methods of the handle must.
    """
    if hasattr(tx, "get_bind"):
        tx = tx.connection()
    if hasattr(tx, "exec_driver_sql"):
        return tx.exec_driver_sql if tx.dialect.name in _DIALECTS else None
    if hasattr(tx, "in_atomic_block"):
        tx = tx.connection
    modules = {cls.__module__ for cls in type(tx).__mro__}
    return tx.query if modules & _DRIVERS else None


def _get_sync_handle(tx: Any) -> Any:
    """Return the synchronous side of SQLAlchemy's asynchronous handle."""
    return getattr(tx, "sync_session", None) or tx.sync_connection


def _get_transaction(tx: Any) -> object:
    """Return SQLAlchemy's object for the transaction. Another one later means that the first has ended."""
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
    """Check Django's flags: an atomic block that needs a rollback makes it silently at its end."""
    if tx.needs_rollback or not tx.in_atomic_block:
        raise NotInTransaction(_ROLLED_BACK)
    _check_driver(tx.connection)


def _check_driver(driver: Any) -> None:
    status: object
    if hasattr(driver, "in_transaction"):
        status = driver.in_transaction
    elif hasattr(driver, "get_transaction_status"):
        status = driver.get_transaction_status()  # MySQL's drivers return a bool
    elif hasattr(driver, "info"):
        status = driver.info.transaction_status
    else:
        return
    if status is not True and status == _UNKNOWN:
        raise StoreUnavailable(_LOST)
    if status is not True and status != _IN_TRANSACTION:
        raise NotInTransaction(_ROLLED_BACK)


def _release(tx: Any) -> None:
    if getattr(tx, "in_nested_transaction", bool)():
        return  # SQLAlchemy will release a savepoint of its own, which is gone as well if ours is
    execute = _find_executor(tx)
    try:
        execute(_RELEASE)  # type: ignore[misc]  # it was there to set the savepoint
    except Exception as error:
        raise NotInTransaction(_ROLLED_BACK) from error


async def _release_async(tx: Any) -> None:
    try:
        await tx.query(_RELEASE)
    except Exception as error:
        raise NotInTransaction(_ROLLED_BACK) from error


async def _check_asyncpg(tx: Any) -> None:
    try:
        await tx.fetchval("select 1")
    except Exception as error:
        raise NotInTransaction(_ROLLED_BACK) from error
    if not tx.is_in_transaction():
        raise NotInTransaction(_ROLLED_BACK)
