"""Why a transaction did not end well: another one was in its way, the database is away, or the handler failed. Pure.

Errors are told by the names of their classes, so that no driver is imported that nobody uses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from enum import Enum
from typing import Final

__all__ = ["Cause", "cause_of"]


class Cause(Enum):
    """What follows: the same again at once, the same again when the database is back, or one attempt spent."""

    CONFLICT = "conflict"
    OUTAGE = "outage"
    FAILURE = "failure"


_CONFLICT_STATES: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available."""
_OUTAGE_STATES: Final = ("08", "53", "57P", "58", "25006")
"""Connection, resources, shutdown, system; and a server that became a replica."""
_BUSY: Final = frozenset({"SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_RECOVERY", "SQLITE_LOCKED"})
_MYSQL: Final = frozenset({"pymysql.err.MySQLError", "asyncmy.errors.MySQLError", "MySQLdb._exceptions.MySQLError"})
_MYSQL_CONFLICTS: Final = frozenset({1020, 1205, 1213, 3572})
"""Record changed, lock wait timeout, deadlock, lock not available."""
_MYSQL_OUTAGES: Final = frozenset({0, 1040, 1047, 1053, 1203, 1290, 1836, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
"""A driver's own "not connected"; then too many connections, not ready, shutdown, read-only, killed, lost, idle."""
_LOST: Final = frozenset(
    {
        "asyncpg.exceptions._base.InterfaceError",
        "asyncpg.exceptions.ConnectionDoesNotExistError",
        "psycopg_pool.errors.PoolTimeout",
        "psycopg_pool.errors.PoolClosed",
        "pillarbox.errors.StoreUnavailable",
    }
)


def cause_of(error: BaseException) -> Cause:
    """The cause, by the error or what it was raised from."""
    for one in _chain(error):
        found = _own_cause(one)
        if found is not None:
            return found
    return Cause.FAILURE


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps: SQLAlchemy's `orig`, and what was named as its cause."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        wrapped = getattr(one, "orig", None)
        one = wrapped if isinstance(wrapped, BaseException) else one.__cause__


def _own_cause(error: BaseException) -> Cause | None:
    if getattr(error, "connection_invalidated", False):
        return Cause.OUTAGE
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__}
    if names & _MYSQL:  # before the state, which some of them have too: it says less than the number
        return _of_mysql(error)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _of_state(state)
    if isinstance(error, sqlite3.Error):
        return Cause.CONFLICT if _is_busy(error) else None
    if names & _LOST:
        return Cause.OUTAGE
    if "psycopg.OperationalError" in names:  # without a state: the connection failed
        return Cause.OUTAGE
    return None


def _of_state(state: str) -> Cause | None:
    if state in _CONFLICT_STATES:
        return Cause.CONFLICT
    return Cause.OUTAGE if state.startswith(_OUTAGE_STATES) else None


def _of_mysql(error: BaseException) -> Cause | None:
    number = error.args[0] if error.args else None
    if number in _MYSQL_CONFLICTS:
        return Cause.CONFLICT
    return Cause.OUTAGE if number in _MYSQL_OUTAGES else None


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "") in _BUSY
