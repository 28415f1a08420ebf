"""Unit of work: one transaction accepts a message and holds all that its handlers write and publish."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from contextvars import copy_context
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.transaction_guard import TransactionGuard
from pillarbox.context import handling
from pillarbox.database_errors import ErrorClass, classify_error, is_bare_network_error
from pillarbox.errors import ConfigError, StoreError, StoreUnavailable
from pillarbox.handlers import Handler
from pillarbox.inbox import Inbox
from pillarbox.redaction import redact_error, redact_line

__all__ = ["CannotBegin", "Transactions", "UnitOfWork", "build_transactions"]

AsyncBegin = Callable[[], AbstractAsyncContextManager[Any]]
SyncBegin = Callable[[], AbstractContextManager[Any]]


T = TypeVar("T")


class CannotBegin(StoreError):
    """The consumer's transactions cannot be opened, and waiting would not help. No message is to blame."""


class _Stage:
    """How far a transaction has come, by which its errors are mapped.

    A bare network error outside the handlers comes from the database: it is raised as `StoreUnavailable`. An error
    that opening the transaction raised is never a handler's.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.handler_error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or error is self.handler_error:
            return
        if is_bare_network_error(error):
            reason = redact_line(str(error)) or type(error).__name__
            raise StoreUnavailable(f"The database cannot be reached ({reason}): it will be tried again.") from error
        if not self.is_open and classify_error(error) is ErrorClass.FAILURE:
            reason = redact_error(error)
            raise CannotBegin(
                f"The consumer cannot open a transaction ({reason}): check the database that it was given."
            ) from error

    @contextmanager
    def note_handler_error(self) -> Iterator[None]:
        """Remember what the handlers raise."""
        try:
            yield
        except BaseException as error:
            self.handler_error = error
            raise


class UnitOfWork:
    """Runs work in transactions of the consumer's database: on the loop, or in a thread if they are synchronous."""

    def __init__(self, inbox: Inbox, transactions: Transactions, *, threads: int) -> None:
        self.inbox = inbox
        self._transactions = transactions
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="pillarbox-consumer")

    def close(self) -> None:
        """Shut the threads down without waiting: what runs there cannot be stopped, and will not be acknowledged."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def check_handlers(self, handlers: Sequence[Handler]) -> None:
        """Raise `ConfigError` for a handler that the transactions do not fit."""
        for handler in handlers:
            if handler.is_async and self._transactions.synchronous is not None:
                raise ConfigError(
                    f"The handler {handler.name} is async, and this consumer's transactions are not: make it a plain "
                    "function, or give the consumer an async_sessionmaker, an AsyncEngine or an async pool."
                )

    async def run(self, call: Callable[[Any], Any]) -> Any:
        """Return the result of a call that is made with its own transaction."""
        begin = self._transactions.asynchronous
        if begin is not None:
            with _Stage() as stage:
                async with begin() as tx:
                    stage.is_open = True
                    return await call(tx)

        def run_sync() -> Any:
            with _Stage() as stage, self._begin() as tx:
                stage.is_open = True
                return call(tx)

        return await self._run_in_thread(run_sync)

    async def probe(self) -> None:
        """Ask the inbox for nothing, in its own transaction; raise what the database raises."""
        await self.run(lambda tx: self.inbox.redriven(tx, limit=0))

    async def handle(self, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        """Accept the message, call the handlers, commit; return False for a duplicate, which the inbox counts."""
        begin = self._transactions.asynchronous
        if begin is None:
            return await self._run_in_thread(lambda: self._handle_sync(event, payload, handlers))
        with _Stage() as stage:
            async with begin() as tx:
                stage.is_open = True
                if not await cast("Awaitable[bool]", self.inbox.accept(tx, event)):
                    return False
                with handling(event), TransactionGuard(tx) as guard:
                    await guard.prepare_async()
                    with stage.note_handler_error():
                        for handler in handlers:
                            await self._call(handler, (payload, tx, event), tx)
                    await guard.check_async()
        return True

    def _handle_sync(self, event: CloudEvent, payload: object, handlers: Sequence[Handler]) -> bool:
        with _Stage() as stage, self._begin() as tx:
            stage.is_open = True
            if not self.inbox.accept(tx, event):
                return False
            with handling(event), TransactionGuard(tx) as guard:
                guard.prepare()
                with stage.note_handler_error():
                    for handler in handlers:
                        handler.function(*(payload, tx, event)[: handler.argument_count])
                guard.check()
        return True

    async def _call(self, handler: Handler, arguments: tuple[object, Any, CloudEvent], tx: Any) -> None:
        """Call a handler in an async transaction. Plain functions get the synchronous side of SQLAlchemy's session."""
        if handler.is_async:
            await cast("Awaitable[object]", handler.function(*arguments[: handler.argument_count]))
        elif handler.argument_count == 1:
            await self._run_in_thread(lambda: handler.function(arguments[0]))
        elif hasattr(tx, "run_sync"):
            payload, _, event = arguments
            await tx.run_sync(lambda inner: handler.function(*(payload, inner, event)[: handler.argument_count]))
        else:
            raise ConfigError(
                f"The handler {handler.name} is a plain function, and its transaction must be awaited: make it async."
            )

    def _begin(self) -> Any:
        assert self._transactions.synchronous is not None  # noqa: S101 - one of the two is set
        return self._transactions.synchronous()

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        """Call in a thread. Errors are passed by hand: a StopIteration raised into a future would leave it waiting."""

        def catch() -> tuple[T | None, BaseException | None]:
            try:
                return call(), None
            except BaseException as error:
                return None, error

        assert self._pool is not None, "the unit is not open"  # noqa: S101
        result, error = await asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, catch)
        if error is not None:
            raise error
        return cast("T", result)


class Transactions(msgspec.Struct, frozen=True):
    """Factory of transactions, each a block that commits at its end and rolls back on an exception.

    Exactly one of the two is set.
    """

    asynchronous: AsyncBegin | None = None
    synchronous: SyncBegin | None = None


def build_transactions(database: object) -> Transactions:
    """Build transactions from SQLAlchemy's session makers and engines, drivers' pools, or the path of a SQLite file.

    Anything else must be a function that returns a context manager, sync or async, which gives the handle, commits at
    its end and rolls back on an exception. Raises `ConfigError` for what is none of these.
    """
    for name in (f"{cls.__module__}.{cls.__qualname__}" for cls in type(database).__mro__):
        if name in _KNOWN:
            return _KNOWN[name](database)
    if isinstance(database, Path):
        return Transactions(synchronous=lambda: _begin_sqlite(database))
    if callable(database):
        return _from_function(database)
    raise ConfigError(
        f"A {type(database).__qualname__} cannot open transactions: give a sessionmaker, an engine, a pool of "
        "asyncpg, psycopg, asyncmy or aiomysql, the Path of a SQLite file, or a function that returns a context "
        "manager."
    )


def _from_function(begin: Callable[[], Any]) -> Transactions:
    """Find out from one result whether it is sync or async: creating a context manager opens nothing yet."""
    sample = begin()
    if inspect.iscoroutine(sample):
        sample.close()
        raise ConfigError("The function that opens transactions is a coroutine; decorate it with asynccontextmanager.")
    if hasattr(sample, "__aenter__"):
        return Transactions(asynchronous=begin)
    if hasattr(sample, "__enter__"):
        return Transactions(synchronous=begin)
    raise ConfigError("The function that opens transactions must return a context manager, sync or async.")


def _from_session_maker(maker: Any) -> Transactions:
    return Transactions(synchronous=maker.begin)


def _from_async_session_maker(maker: Any) -> Transactions:
    return Transactions(asynchronous=maker.begin)


def _from_psycopg_pool(pool: Any) -> Transactions:
    return Transactions(synchronous=pool.connection)


def _from_async_psycopg_pool(pool: Any) -> Transactions:
    return Transactions(asynchronous=pool.connection)


def _from_asyncpg_pool(pool: Any) -> Transactions:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    return Transactions(asynchronous=begin)


def _from_mysql_pool(pool: Any) -> Transactions:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection:
            await connection.begin()
            try:
                yield connection
            except BaseException:
                with suppress(Exception):  # the connection is lost, or the driver closed it on cancellation
                    await connection.rollback()
                raise
            await connection.commit()

    return Transactions(asynchronous=begin)


def _from_memory_store(store: Any) -> Transactions:
    return Transactions(synchronous=store.transaction)


@contextmanager
def _begin_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """Begin with IMMEDIATE: a transaction that reads first could otherwise not write after another's commit."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
        connection.execute("pragma foreign_keys = on")
        connection.execute("begin immediate")
        try:
            yield connection
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        connection.execute("commit")


_KNOWN: Final[dict[str, Callable[[Any], Transactions]]] = {
    "sqlalchemy.orm.session.sessionmaker": _from_session_maker,
    "sqlalchemy.engine.base.Engine": _from_session_maker,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": _from_async_session_maker,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _from_async_session_maker,
    "psycopg_pool.pool.ConnectionPool": _from_psycopg_pool,
    "psycopg_pool.pool_async.AsyncConnectionPool": _from_async_psycopg_pool,
    "asyncpg.pool.Pool": _from_asyncpg_pool,
    "asyncmy.pool.Pool": _from_mysql_pool,
    "aiomysql.pool.Pool": _from_mysql_pool,
    "pillarbox.stores.memory.MemoryStore": _from_memory_store,
}
