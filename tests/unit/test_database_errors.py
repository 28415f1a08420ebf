"""One classification of errors for every driver: what is repeated, what is waited for, what is an error of the call."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import aiomysql
import asyncmy.errors
import asyncpg
import django.db.utils
import psycopg
import pymysql
import pytest
import sqlalchemy.exc

from pillarbox.database_errors import ErrorClass, classify_error, classify_sqlstate
from pillarbox.errors import NotInTransaction, StoreUnavailable
from pillarbox.stores.mariadb.connection import _map_error as map_mariadb
from pillarbox.stores.postgres.connection import _map_refusal as map_postgres
from pillarbox.stores.postgres.driver import Refusal
from pillarbox.stores.sqlite.connection import map_errors as map_sqlite
from tests.support.private_program import free_port

CONFLICT, OUTAGE, FAILURE = ErrorClass.CONFLICT, ErrorClass.OUTAGE, ErrorClass.FAILURE


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("as told")
    error.sqlite_errorcode = code
    return error


def asyncpg_error(state: str) -> Exception:
    return asyncpg.PostgresError.new({"C": state, "M": "as told", "S": "ERROR"})


def psycopg_error(state: str) -> Exception:
    return psycopg.errors.lookup(state)("as told")


@pytest.mark.parametrize("make", [asyncpg_error, psycopg_error])
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("40001", CONFLICT), ("40P01", CONFLICT), ("55P03", CONFLICT),
        ("08006", OUTAGE), ("53300", OUTAGE), ("57P01", OUTAGE), ("57P03", OUTAGE), ("57014", OUTAGE),
        ("58030", OUTAGE), ("25006", OUTAGE), ("25P03", OUTAGE), ("28P01", OUTAGE), ("3D000", OUTAGE),
        ("23505", FAILURE), ("22021", FAILURE), ("42501", FAILURE), ("42P01", FAILURE), ("54000", FAILURE),
        ("25P02", FAILURE),
    ],
)  # fmt: skip
def test_postgresql_is_told_by_its_state(make: Callable[[str], Exception], state: str, expected: ErrorClass) -> None:
    assert classify_error(make(state)) is expected


@pytest.mark.parametrize("make", [pymysql.OperationalError, asyncmy.errors.OperationalError, aiomysql.OperationalError])
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1205, CONFLICT), (1213, CONFLICT), (1020, CONFLICT), (3572, CONFLICT),
        (1040, OUTAGE), (1053, OUTAGE), (1317, OUTAGE), (1927, OUTAGE), (4031, OUTAGE), (1290, OUTAGE), (1836, OUTAGE),
        (1203, OUTAGE), (1226, OUTAGE), (1114, OUTAGE), (1021, OUTAGE), (1045, OUTAGE), (1969, OUTAGE), (3024, OUTAGE),
        (2002, OUTAGE), (2003, OUTAGE), (2006, OUTAGE), (2013, OUTAGE), (2055, OUTAGE), (0, OUTAGE),
        (1062, FAILURE), (1153, FAILURE), (1264, FAILURE), (1406, FAILURE), (1142, FAILURE), (1146, FAILURE),
        (2014, FAILURE), (2020, FAILURE),
    ],
)  # fmt: skip
def test_mysql_is_told_by_its_number(make: Any, number: int, expected: ErrorClass) -> None:
    assert classify_error(make(number, "as told")) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, CONFLICT), (sqlite3.SQLITE_BUSY_SNAPSHOT, CONFLICT), (sqlite3.SQLITE_LOCKED, CONFLICT),
        (sqlite3.SQLITE_FULL, OUTAGE), (sqlite3.SQLITE_IOERR_WRITE, OUTAGE), (sqlite3.SQLITE_CANTOPEN, OUTAGE),
        (sqlite3.SQLITE_READONLY, OUTAGE),
        (sqlite3.SQLITE_CONSTRAINT, FAILURE), (sqlite3.SQLITE_CORRUPT, FAILURE), (sqlite3.SQLITE_TOOBIG, FAILURE),
    ],
)  # fmt: skip
def test_sqlite_is_told_by_its_code(code: int, expected: ErrorClass) -> None:
    assert classify_error(of_sqlite(code)) is expected


def wrapped(outer: Exception, inner: BaseException) -> Exception:
    outer.__cause__ = inner
    return outer


def sqlalchemy_error(inner: BaseException) -> Exception:
    return sqlalchemy.exc.DBAPIError("select 1", {}, inner)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (sqlalchemy_error(psycopg.OperationalError("the connection is lost")), OUTAGE),
        (sqlalchemy_error(pymysql.OperationalError(2013, "lost")), OUTAGE),
        (sqlalchemy_error(pymysql.IntegrityError(1062, "twice")), FAILURE),
        (wrapped(django.db.utils.OperationalError("lost"), psycopg.OperationalError("lost")), OUTAGE),
        (wrapped(django.db.utils.OperationalError("deadlock"), pymysql.OperationalError(1213, "")), CONFLICT),
        (wrapped(django.db.utils.IntegrityError("twice"), psycopg.errors.UniqueViolation("twice")), FAILURE),
        (django.db.utils.InterfaceError("connection already closed"), OUTAGE),
        (wrapped(NotInTransaction("rolled back"), asyncpg_error("40001")), CONFLICT),
        (sqlalchemy.exc.TimeoutError("QueuePool limit reached"), OUTAGE),
        (sqlalchemy.exc.PendingRollbackError("Can't reconnect", code="8s2b"), OUTAGE),
        (sqlalchemy.exc.PendingRollbackError("rolled back by a flush", code="7s2a"), FAILURE),
        (asyncpg.InterfaceError("cannot perform operation: connection is closed"), OUTAGE),
        (asyncpg.InterfaceError("pool is closing"), OUTAGE),
        (asyncpg.InterfaceError("the server expects 2 arguments for this query, 1 was passed"), FAILURE),
        (asyncpg.exceptions.DataError("invalid input for query argument $1: 'a' (an integer is required)"), FAILURE),
        (asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), OUTAGE),
        (psycopg.OperationalError("the connection is closed"), OUTAGE),
        (pymysql.InterfaceError(0, ""), OUTAGE),
        (aiomysql.InterfaceError("(0, 'Not connected')"), OUTAGE),
        (StoreUnavailable("gone"), OUTAGE),
        (ValueError("no"), FAILURE),
        (KeyError("connection is closed"), FAILURE),
    ],
)  # fmt: skip
def test_wrappers_and_lost_connections(error: Exception, expected: ErrorClass) -> None:
    assert classify_error(error) is expected


# --- bare errors of sockets and timeouts ---

_DRIVERS = [
    "asyncpg.connect_utils", "psycopg.waiting", "pymysql.connections", "aiosqlite.core", "asyncmy.connection",
    "aiomysql.connection", "sqlalchemy.pool.impl", "MySQLdb.connections", "django.db.backends.base.base",
]  # fmt: skip
_BARE = [
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ConnectionResetError("reset"), TimeoutError(), EOFError(),
    OSError(errno.EHOSTUNREACH, "no route"),
]  # fmt: skip


def raise_in(module: str, error: BaseException) -> BaseException:
    """Raise the error in a module of that name, below a call of the standard library."""
    error = error.with_traceback(None)
    inside = ModuleType(module)
    exec("def call(raising):\n    list(map(raising, [0]))", inside.__dict__)  # noqa: S102

    def raising(_: object) -> None:
        raise error

    function = FunctionType(raising.__code__, inside.__dict__ | {"error": error}, closure=raising.__closure__)
    try:
        inside.call(function)
    except type(error) as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize("driver", _DRIVERS)
@pytest.mark.parametrize("error", _BARE, ids=lambda error: type(error).__name__)
def test_a_bare_network_error_of_a_driver_is_an_outage(driver: str, error: BaseException) -> None:
    assert classify_error(raise_in(driver, error)) is OUTAGE


@pytest.mark.parametrize("module", ["shop.billing", "httpx._client", "urllib3.connection", "aiohttp.connector"])
@pytest.mark.parametrize("error", _BARE, ids=lambda error: type(error).__name__)
def test_a_bare_network_error_of_anything_else_is_not(module: str, error: BaseException) -> None:
    assert classify_error(raise_in(module, error)) is FAILURE


async def test_a_real_refusal_to_connect_is_an_outage() -> None:
    with pytest.raises(OSError, match="Connect") as caught:
        await asyncpg.connect(host="127.0.0.1", port=free_port(), user="nobody", timeout=10)
    assert classify_error(caught.value) is OUTAGE


async def test_a_timeout_that_a_handler_sets_is_its_own() -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    assert classify_error(caught.value) is FAILURE


def test_a_file_that_cannot_be_opened_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path / "missing" / "file.db")
    assert classify_error(caught.value) is OUTAGE


# --- stores decide by the same table ---


def test_postgresql_states_that_a_consumer_waits_for_are_waited_for_by_the_store() -> None:
    states = {error.sqlstate for error in vars(psycopg.errors).values() if isinstance(error, type)
              and issubclass(error, psycopg.Error) and error.sqlstate}  # fmt: skip
    assert len(states) > 200
    for state in states:
        waits = isinstance(map_postgres(Refusal(state, "as told")), StoreUnavailable)
        assert waits is (classify_sqlstate(state) is not FAILURE) or state == "40002", state  # it does not raise that


def test_numbers_that_a_consumer_waits_for_are_waited_for_by_the_mariadb_store() -> None:
    for number in range(1000, 5000):
        error = pymysql.OperationalError(number, "as told")
        waits = isinstance(map_mariadb(error), StoreUnavailable)
        # In the store's own tables a key that is there already is a conflict, and any error of the client ends its
        # connection. In a handler both are the handler's.
        is_stores_own = number == 1062 or number in range(2000, 3000)
        assert waits is (classify_error(error) is not FAILURE) or (waits and is_stores_own), number


@pytest.mark.parametrize("code", range(1, 30))
def test_codes_that_a_consumer_waits_for_are_waited_for_by_the_sqlite_store(code: int) -> None:
    with pytest.raises(Exception) as raised, map_sqlite(Path("shop.db")):  # noqa: PT011
        raise of_sqlite(code)
    assert isinstance(raised.value, StoreUnavailable) is (classify_error(of_sqlite(code)) is not FAILURE)
