"""Classes of database errors, for every driver: the one table that stores, consumers and integrations decide by. Pure.

No driver is imported: an error is known by its SQLSTATE, by MySQL's number, by SQLite's code, or by the name of its
class. SQLAlchemy's and Django's wrappers are looked through.

| class      | meaning                                                    | what follows                              |
|------------|------------------------------------------------------------|-------------------------------------------|
| `CONFLICT` | another transaction was in the way, and this one is undone | repeat at once                            |
| `OUTAGE`   | the database cannot be reached, or cannot answer now       | wait, and repeat; nothing is spent        |
| `FAILURE`  | the statement was refused, or the error is not its         | the caller decides; an attempt is spent   |
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from enum import Enum
from types import TracebackType
from typing import Final

from pillarbox.mysql_errors import CONFLICTS, LOCK_TIMEOUTS, UNAVAILABLE

__all__ = [
    "ErrorClass",
    "classify_error",
    "classify_mysql_number",
    "classify_sqlstate",
    "is_bare_network_error",
    "is_missing_table",
]


class ErrorClass(Enum):
    """Classes of errors: repeat at once, repeat when the database is back, or spend an attempt."""

    CONFLICT = "conflict"
    OUTAGE = "outage"
    FAILURE = "failure"


# --- PostgreSQL, by SQLSTATE ---

_CONFLICT_STATES: Final = frozenset({"40000", "40001", "40P01", "55P03"})
"""Rolled back, serialization failure, deadlock, lock not available."""
_OUTAGE_STATES: Final = (
    "08", "28", "53", "57", "58", "25006", "25P03", "25P04", "3D000", "40003",
)  # fmt: skip
"""Connection, login, resources, cancelled or shut down, system; a server that became a replica, a session or a
transaction that the server ended, a database that is not there, a commit whose answer is lost.

A login that is refused is an outage too: a rotated password is fixed by a person, and no message is to blame."""


def classify_sqlstate(state: str) -> ErrorClass:
    """Classify a SQLSTATE of PostgreSQL."""
    if state in _CONFLICT_STATES:
        return ErrorClass.CONFLICT
    return ErrorClass.OUTAGE if state.startswith(_OUTAGE_STATES) else ErrorClass.FAILURE


_PG_NO_TABLE: Final = "42P01"

# --- MariaDB and MySQL, by number ---

_MYSQL_NO_TABLE: Final = 1146

_MYSQL_CONFLICTS: Final = CONFLICTS | LOCK_TIMEOUTS | {1412, 1613, 1614, 4020}
"""Also: a table changed under a snapshot, deadlocks of prepared transactions."""
_MYSQL_OUTAGES: Final = UNAVAILABLE | {
    1023, 1026, 1042, 1043, 1044, 1045, 1049, 1077, 1078, 1079, 1130, 1218, 1637, 1698, 1862, 3118, 3159, 4151,
}  # fmt: skip
"""Also: files, login, no such database, shutdown, TLS required."""
_MYSQL_CLIENT_ERRORS: Final = range(2000, 3000)
"""Numbers of the client: no connection, or a lost one."""
_MYSQL_CLIENT_FAILURES: Final = frozenset(
    {2014, 2019, 2020, 2030, 2031, 2032, 2033, 2034, 2035, 2036, 2053, 2056, 2057}
)
"""The client's own complaints, which are about one statement."""
_MYSQL_NO_NUMBER: Final = 0
"""What the drivers raise, as InterfaceError, on a connection that is closed already."""


def classify_mysql_number(number: int) -> ErrorClass:
    """Classify an error number of MariaDB or MySQL, of the server or the client."""
    if number in _MYSQL_CONFLICTS:
        return ErrorClass.CONFLICT
    is_client = number in _MYSQL_CLIENT_ERRORS and number not in _MYSQL_CLIENT_FAILURES
    return ErrorClass.OUTAGE if is_client or number in _MYSQL_OUTAGES else ErrorClass.FAILURE


_MYSQL: Final = frozenset({"pymysql.err.MySQLError", "asyncmy.errors.MySQLError", "MySQLdb._exceptions.MySQLError"})
_MYSQL_INTERFACE: Final = frozenset(
    {"pymysql.err.InterfaceError", "asyncmy.errors.InterfaceError", "MySQLdb._exceptions.InterfaceError"}
)

# --- SQLite, by result code ---

_PRIMARY_CODE: Final = 0xFF
"""The low byte of a result code is its family."""
_SQLITE_CONFLICTS: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SQLITE_OUTAGES: Final = frozenset({
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT,
})  # fmt: skip

# --- by name ---

_LOST: Final = frozenset(
    {
        "asyncpg.exceptions._base.InternalClientError",
        "asyncpg.exceptions.ConnectionDoesNotExistError",
        "django.db.utils.InterfaceError",
        "psycopg_pool.errors.PoolTimeout",
        "psycopg_pool.errors.PoolClosed",
        "psycopg_pool.errors.TooManyRequests",
        "pillarbox.errors.StoreUnavailable",
        "sqlalchemy.exc.DisconnectionError",
        "sqlalchemy.exc.TimeoutError",
    }
)
"""A lost or closed connection, or a pool that had none in time."""
_DISCONNECTED: Final = frozenset({"psycopg.OperationalError", "psycopg2.OperationalError"})
"""Without a SQLSTATE: the connection failed."""
_INTERFACE: Final = frozenset({"asyncpg.exceptions._base.InterfaceError", "psycopg2.InterfaceError"})
_CLOSED: Final = re.compile(r"\b(connection|pool)\b.{0,80}\b(closed|closing|lost)\b", re.DOTALL)
"""Only the text tells a lost connection from a handler's mistake, such as a wrong number of arguments."""
_INVALID_TRANSACTION: Final = "8s2b"
"""SQLAlchemy's code for a transaction whose connection was lost in it."""


def classify_error(error: BaseException) -> ErrorClass:
    """Classify an error, by itself or by what it was raised from.

    A bare `OSError`, `TimeoutError` or `EOFError` is an outage when a database driver raised it. Raised by anything
    else, such as a handler's own HTTP call, it is a failure.
    """
    for link in _unwrap(error):
        if (found := _classify_one(link)) is not None:
            return found
    return ErrorClass.FAILURE


def is_missing_table(error: BaseException) -> bool:
    """Return whether a driver says that a table is not there."""
    for link in _unwrap(error):
        state = getattr(link, "sqlstate", None) or getattr(link, "pgcode", None)
        number = link.args[0] if link.args else None
        if state == _PG_NO_TABLE or number == _MYSQL_NO_TABLE:
            return True
        if isinstance(link, sqlite3.Error) and str(link).startswith("no such table"):
            return True
    return False


def _unwrap(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it wraps: SQLAlchemy's `orig`, or its cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        wrapped = getattr(link, "orig", None)
        link = wrapped if isinstance(wrapped, BaseException) else link.__cause__


def _classify_one(error: BaseException) -> ErrorClass | None:
    """Classify one error without what it wraps; None if that decides."""
    if getattr(error, "connection_invalidated", False):
        return ErrorClass.OUTAGE
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
    if names & _MYSQL:  # before the SQLSTATE, which some of them have too: it is less precise than the number
        return _classify_mysql(error, is_interface=bool(names & _MYSQL_INTERFACE))
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return _decide(classify_sqlstate(state))
    if isinstance(error, sqlite3.Error):
        return _classify_sqlite(error)
    if names & _INTERFACE:
        return ErrorClass.OUTAGE if _CLOSED.search(str(error)) else None
    if names & (_LOST | _DISCONNECTED):
        return ErrorClass.OUTAGE
    if "sqlalchemy.exc.PendingRollbackError" in names and getattr(error, "code", None) == _INVALID_TRANSACTION:
        return ErrorClass.OUTAGE
    return ErrorClass.OUTAGE if is_bare_network_error(error) and _was_raised_by_driver(error) else None


def _decide(found: ErrorClass) -> ErrorClass | None:
    return None if found is ErrorClass.FAILURE else found


def _classify_mysql(error: BaseException, *, is_interface: bool) -> ErrorClass | None:
    number = error.args[0] if error.args else None
    if not isinstance(number, int):
        return ErrorClass.OUTAGE if is_interface else None
    return ErrorClass.OUTAGE if number == _MYSQL_NO_NUMBER else _decide(classify_mysql_number(number))


def _classify_sqlite(error: sqlite3.Error) -> ErrorClass | None:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    if code & _PRIMARY_CODE in _SQLITE_CONFLICTS:
        return ErrorClass.CONFLICT
    return ErrorClass.OUTAGE if code & _PRIMARY_CODE in _SQLITE_OUTAGES else None


# --- errors that no driver has wrapped ---

_DRIVERS: Final = frozenset(
    {"aiomysql", "aiosqlite", "asyncmy", "asyncpg", "django", "MySQLdb", "psycopg", "psycopg2", "psycopg_c",
     "psycopg_pool", "pymysql", "sqlalchemy"}
)  # fmt: skip
_RUNTIME: Final = frozenset({*sys.stdlib_module_names, "greenlet", "uvloop", "winloop"})


def is_bare_network_error(error: BaseException) -> bool:
    """Return True for what sockets and timeouts raise themselves."""
    return isinstance(error, (OSError, TimeoutError, EOFError))


def _was_raised_by_driver(error: BaseException) -> bool:
    """Return True if the last code before the standard library, on the way to the error, is a database driver's.

    A timeout that a handler sets around a statement ends in the handler's own code, and is the handler's.
    """
    modules = [_find_module(frame) for frame in _iterate_frames(error.__traceback__)]
    raised_by = next((module for module in reversed(modules) if module not in _RUNTIME), None)
    return raised_by in _DRIVERS


def _iterate_frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _find_module(trace: TracebackType) -> str:
    name: object = trace.tb_frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0]
