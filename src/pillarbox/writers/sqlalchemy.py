"""Writers for SQLAlchemy: `Connection` and `Session`, scoped and async ones too.

On a connection messages are written at once. A session stages them, and writes them after the statements of its next
flush, or before its commit: so the row locks of the business data come before the ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from weakref import WeakSet, ref

import msgspec
import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pillarbox.contracts.writer import InboxCommand, Insert
from pillarbox.errors import NotInTransaction, UnsupportedHandle
from pillarbox.writers.hints import hint_at_tables
from pillarbox.writers.inbox_sql import StatementResult, build_steps, run_steps
from pillarbox.writers.insert_sql import SAVEPOINT, Dialect, Statement, build_insert, build_lock
from pillarbox.writers.sqlite import would_autocommit

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.orm import SessionTransaction

__all__ = [
    "AsyncConnectionWriter",
    "AsyncScopedSessionWriter",
    "AsyncSessionWriter",
    "ConnectionWriter",
    "ScopedSessionWriter",
    "SessionWriter",
    "listen",
]

R = TypeVar("R")


# --- connections ---------------------------------------------------------------------------------


class ConnectionWriter:
    """Joins the transaction of a `Connection`, or the one its next statement opens."""

    is_async: ClassVar = False
    __slots__ = ("_tx",)

    def __init__(self, tx: Connection) -> None:
        self._tx = tx

    def insert(self, batch: Insert) -> None:
        _check(self._tx)
        _insert(self._tx, batch)

    def execute(self, command: InboxCommand[R]) -> R:
        _check(self._tx)
        return _execute(self._tx, command)


class AsyncConnectionWriter:
    """`ConnectionWriter` for an `AsyncConnection`."""

    is_async: ClassVar = True
    __slots__ = ("_tx",)

    def __init__(self, tx: AsyncConnection) -> None:
        self._tx = tx

    async def insert(self, batch: Insert) -> None:
        await self._tx.run_sync(lambda tx: ConnectionWriter(tx).insert(batch))

    async def execute(self, command: InboxCommand[R]) -> R:
        return await self._tx.run_sync(lambda tx: ConnectionWriter(tx).execute(command))


_DIALECTS: Final = {
    ("postgresql", "asyncpg"): Dialect.POSTGRES_DOLLAR,
    ("postgresql", "psycopg"): Dialect.POSTGRES_FORMAT,
    ("postgresql", "psycopg_async"): Dialect.POSTGRES_FORMAT,
    ("postgresql", "psycopg2"): Dialect.POSTGRES_FORMAT,
    ("sqlite", "pysqlite"): Dialect.SQLITE,
    ("sqlite", "aiosqlite"): Dialect.SQLITE,
    **{
        (dialect, driver): Dialect.MYSQL
        for dialect in ("mysql", "mariadb")
        for driver in ("pymysql", "mysqldb", "asyncmy", "aiomysql")
    },
}
_KEEP_COUNT: Final = {"preserve_rowcount": True}


def _find_dialect(tx: Connection) -> Dialect:
    dialect = tx.dialect
    found = _DIALECTS.get((dialect.name, dialect.driver))
    if found is None:
        raise UnsupportedHandle(
            f"Cannot write through SQLAlchemy's {dialect.name}+{dialect.driver}: use PostgreSQL by asyncpg, psycopg or "
            "psycopg2, SQLite by pysqlite or aiosqlite, or MariaDB and MySQL by pymysql, mysqldb, asyncmy or aiomysql."
        )
    return found


def _check(tx: Connection) -> None:
    """Raise when the connection would autocommit, or its dialect is not supported."""
    if _would_autocommit(tx, _find_dialect(tx)):
        raise NotInTransaction(
            "This SQLAlchemy connection has the isolation level AUTOCOMMIT, so the message would be committed on its "
            "own: use an engine, connection or session without that isolation level."
        )


def _would_autocommit(tx: Connection, dialect: Dialect) -> bool:
    proxy: Any = tx.connection
    if dialect is Dialect.MYSQL:
        return bool(proxy.driver_connection.get_autocommit())
    if dialect is not Dialect.SQLITE:
        return bool(proxy.dbapi_connection.autocommit)
    driver = proxy.driver_connection
    if driver.isolation_level is None and not tx.in_transaction():
        # An application that emits BEGIN itself, in an event, does so now.
        tx.begin()
    try:
        autocommit = getattr(getattr(driver, "_conn", driver), "autocommit", None)
    except sqlite3.ProgrammingError:  # aiosqlite's connection can be read in its own thread only
        autocommit = None
    return would_autocommit(driver, autocommit=autocommit)


def _run(tx: Connection, statement: Statement) -> sqlalchemy.CursorResult[Any]:
    return tx.exec_driver_sql(statement.sql, tuple(statement.parameters))


def _insert(tx: Connection, batch: Insert) -> None:
    """Write the batch now. The connection has been checked."""
    dialect = _find_dialect(tx)
    lock = build_lock(batch, dialect)
    if lock is not None:
        _run(tx, lock).close()
    inserts = build_insert(batch, dialect)
    if len(inserts) > 1:
        _insert_all(tx, inserts, dialect)
        return
    for statement in inserts:
        _run(tx, statement)


def _insert_all(tx: Connection, inserts: Sequence[Statement], dialect: Dialect) -> None:
    driver: Any = tx.connection.driver_connection
    if dialect is Dialect.SQLITE and not driver.in_transaction:
        # Releasing a savepoint that stands outside a transaction would commit it.
        tx.exec_driver_sql(f"begin {driver.isolation_level}")
    tx.exec_driver_sql(SAVEPOINT.set)
    try:
        for statement in inserts:
            _run(tx, statement)
    except BaseException:
        with suppress(SQLAlchemyError):  # an error that ended the whole transaction took the savepoint with it
            tx.exec_driver_sql(SAVEPOINT.undo)
            tx.exec_driver_sql(SAVEPOINT.release)
        raise
    tx.exec_driver_sql(SAVEPOINT.release)


def _execute(tx: Connection, command: InboxCommand[R]) -> R:
    """Execute an inbox command now. The connection has been checked."""

    def run(statement: Statement) -> StatementResult:
        result = tx.exec_driver_sql(statement.sql, tuple(statement.parameters), execution_options=_KEEP_COUNT)
        if statement.has_rows:
            rows = [tuple(row) for row in result]
            return StatementResult(len(rows), rows)
        return StatementResult(result.rowcount)

    return run_steps(build_steps(command, _find_dialect(tx)), run)


# --- sessions ------------------------------------------------------------------------------------

_AN_INSERT: Final = sqlalchemy.insert(sqlalchemy.table("pillarbox_outbox"))
"""For a session that chooses its database by statement."""


class SessionWriter:
    """Joins the transaction of a `Session`, which its first use begins. Messages wait for the flush or commit."""

    is_async: ClassVar = False
    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def insert(self, batch: Insert) -> None:
        bind = self._find_bind()
        _stage(self._session, self._connect(bind), batch, joined=isinstance(bind, Connection))

    def execute(self, command: InboxCommand[R]) -> R:
        return _execute(self._connect(self._find_bind()), command)

    def _connect(self, bind: Engine | Connection) -> Connection:
        tx = self._session.connection(bind_arguments={"bind": bind})
        _check(tx)
        return tx

    def _find_bind(self) -> Engine | Connection:
        try:
            return self._session.get_bind(clause=_AN_INSERT)
        except UnboundExecutionError as error:
            raise UnsupportedHandle(
                "This session has no database of its own for the message: give it a default bind, or publish on "
                "session.connection(bind_arguments={'mapper': ...}) of the class that the message belongs to."
            ) from error


class ScopedSessionWriter(SessionWriter):
    """`SessionWriter` for the current session of a `scoped_session`."""

    __slots__ = ()

    def __init__(self, sessions: scoped_session[Any]) -> None:
        super().__init__(sessions())


class AsyncSessionWriter:
    """`SessionWriter` for an `AsyncSession`."""

    is_async: ClassVar = True
    __slots__ = ("_session",)

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def insert(self, batch: Insert) -> None:
        await self._session.run_sync(lambda session: SessionWriter(session).insert(batch))

    async def execute(self, command: InboxCommand[R]) -> R:
        return await self._session.run_sync(lambda session: SessionWriter(session).execute(command))


class AsyncScopedSessionWriter(AsyncSessionWriter):
    """`AsyncSessionWriter` for the current session of an `async_scoped_session`."""

    __slots__ = ()

    def __init__(self, sessions: async_scoped_session[Any]) -> None:
        super().__init__(sessions())


# --- staging -------------------------------------------------------------------------------------

_INFO_KEY: Final = "pillarbox.stage"


class _SessionBuffer:
    """The batches that one session has staged. Stored in `Session.info`, so it lives and dies with the session."""

    __slots__ = ("flushed", "owner", "session", "staged")

    def __init__(self, session: Session) -> None:
        self.session = ref(session)
        self.staged: list[tuple[Connection, Insert]] = []
        self.owner: SessionTransaction | None = None
        self.flushed = False
        """The flush in progress has been through `_after_flush`."""

    def write(self) -> None:
        """Write what is staged, in order. A batch that fails stays, so that a second commit cannot leave it behind."""
        while self.staged:
            run = _take_run(self.staged)
            batch = _merge([batch for _, batch in run])
            try:
                _insert(run[0][0], batch)
            except Exception as error:
                hint_at_tables(error, batch.names)
                raise
            del self.staged[: len(run)]


def _take_run(staged: list[tuple[Connection, Insert]]) -> list[tuple[Connection, Insert]]:
    """Return the first batches that can be written as one: same connection, same options."""
    tx, first = staged[0]
    return list(takewhile(lambda other: other[0] is tx and _can_merge(first, other[1]), staged))


def _can_merge(one: Insert, other: Insert) -> bool:
    return (one.names, one.delay, one.serialize_keys) == (other.names, other.delay, other.serialize_keys)


def _merge(batches: list[Insert]) -> Insert:
    if len(batches) == 1:
        return batches[0]
    return msgspec.structs.replace(batches[0], messages=[m for batch in batches for m in batch.messages])


def _find_buffer(session: Session) -> _SessionBuffer | None:
    buffer: _SessionBuffer | None = session.info.get(_INFO_KEY)
    # One session's info may have been handed to another.
    return buffer if buffer is not None and buffer.session() is session else None


def _get_buffer(session: Session) -> _SessionBuffer:
    buffer = _find_buffer(session)
    if buffer is None:
        buffer = session.info[_INFO_KEY] = _SessionBuffer(session)
    return buffer


def _stage(session: Session, tx: Connection, batch: Insert, *, joined: bool) -> None:
    """Stage the batch in the session, or write it now where no later hook is certain to run.

    `joined`: the connection is the caller's, who may commit it without the session. Then a batch is staged only while
    objects wait for a flush as well.
    """
    if (joined and _is_clean(session)) or not _ensure_hooks(session) or _is_past_hooks(session):
        if not session._flushing:
            session.flush()
        _write_staged(session)
        _insert(tx, batch)
        return
    buffer = _get_buffer(session)
    buffer.staged.append((tx, batch))
    buffer.owner = session.get_nested_transaction() or session.get_transaction()


def _is_clean(session: Session) -> bool:
    return not (session.new or session.dirty or session.deleted)


def _write_staged(session: Session) -> None:
    buffer = _find_buffer(session)
    if buffer is not None:
        buffer.write()


def listen(target: type[Session] | Session) -> None:
    """Add the hooks to the sessions of a class, or to one session. Adding them twice is harmless."""
    for name, hook in _HOOKS.items():
        event.listen(target, name, hook)
    if isinstance(target, type):
        _LISTENED_CLASSES.add(target)


def _ensure_hooks(session: Session) -> bool:
    """Return True when the hooks are in place for this session, or could be added safely now."""
    kind = type(session)
    if _find_buffer(session) is not None or not _LISTENED_CLASSES.isdisjoint(kind.__mro__):
        return True
    # A list of hooks must not grow while it is called, by whatever thread: so the class gets ours only if it has no
    # others, and otherwise each session its own, but not in the middle of something.
    if not kind.__subclasses__() and not any(getattr(session.dispatch, name) for name in _HOOKS):
        listen(kind)
    elif session._flushing or _is_changing_transaction(session):
        return False
    else:
        listen(session)
    _get_buffer(session).flushed = session._flushing
    return True


def _is_past_hooks(session: Session) -> bool:
    """Return True when a commit is in progress and has passed the last hook that would write what is staged."""
    return _is_changing_transaction(session) and (not session._flushing or _get_buffer(session).flushed)


def _is_changing_transaction(session: Session) -> bool:
    """Return True inside a commit, or another method that ends or begins a transaction of the session."""
    frame = session._transaction
    while frame is not None:
        if frame._current_fn is not None:
            return True
        frame = frame.parent
    return False


# Hooks of the session, in the order in which they run.


def _after_transaction_create(session: Session, transaction: SessionTransaction) -> None:
    # The SAVEPOINT itself is sent with the first statement inside: what is staged now is still written before it.
    if transaction.nested:
        _write_staged(session)


def _after_flush(session: Session, _: object) -> None:
    buffer = _get_buffer(session)
    buffer.flushed = True
    buffer.write()


def _before_commit(session: Session) -> None:
    """Write what is staged. Runs before a prepare and before the release of a savepoint too."""
    buffer = _find_buffer(session)
    if buffer is not None and buffer.staged:
        if not session._flushing:
            session.flush()
        buffer.write()


def _after_commit(session: Session) -> None:
    """Raise when something is still staged. That cannot happen; should it ever, the loss must not be silent."""
    buffer = _find_buffer(session)
    if buffer is not None and buffer.staged:
        raise RuntimeError(f"The session was committed without {len(buffer.staged)} message(s) that it was given.")


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    buffer = _find_buffer(session)
    if buffer is None:
        return
    if transaction is buffer.owner:
        buffer.staged.clear()
        buffer.owner = None
    if not transaction.nested:
        buffer.flushed = False


_HOOKS: Final[dict[str, Callable[..., None]]] = {
    "before_commit": _before_commit,
    "after_flush": _after_flush,
    "after_commit": _after_commit,
    "after_transaction_create": _after_transaction_create,
    "after_transaction_end": _after_transaction_end,
}
_LISTENED_CLASSES: Final[WeakSet[type[Session]]] = WeakSet()
