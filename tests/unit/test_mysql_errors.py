"""What MariaDB and MySQL report when a connection, a server or a statement ends: waited for, in every driver."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files

import asyncmy.errors
import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from pillarbox.database_errors import ErrorClass, classify_error
from pillarbox.errors import StoreUnavailable
from pillarbox.stores.mariadb.connection import _is_connection_lost, map_errors


def _imitate_mysqlclient() -> type[Exception]:
    """Return a class that is named as the driver's: it has no wheel, so the tests do without it."""
    base = type("MySQLError", (Exception,), {"__module__": "MySQLdb._exceptions"})
    return type("OperationalError", (base,), {"__module__": "MySQLdb._exceptions"})


DRIVERS: dict[str, type[Exception]] = {
    "pymysql": pymysql.OperationalError,
    "aiomysql": import_module("aiomysql").OperationalError,
    "asyncmy": asyncmy.errors.OperationalError,
    "mysqlclient": _imitate_mysqlclient(),
}
# As the servers document them. Not read from the code: a number that is missing there must be noticed.
ENDED = (1053, 1080, 1152, 1184, 1317, 1927, 3169, 4031)
EXHAUSTED = (1021, 1030, 1037, 1038, 1040, 1041, 1114, 1129, 1135, 1203, 1226, 1969, 3024)
NOT_LEADER = (1047, 1290, 1792, 1836, 3032, 3100, 3168)
NETWORK = (1158, 1159, 1160, 1161)
OUTAGES = (*ENDED, *EXHAUSTED, *NOT_LEADER, *NETWORK)
CONFLICTS = (1020, 1205, 1213, 3101, 3572)


def raised(driver: str, number: int) -> Exception:
    return DRIVERS[driver](number, "it was ended")


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("number", OUTAGES)
def test_a_consumer_waits_for_a_server_that_ended_its_connection(driver: str, number: int) -> None:
    error = raised(driver, number)

    assert classify_error(error) is ErrorClass.OUTAGE
    assert classify_error(DBAPIError("select 1", None, error)) is ErrorClass.OUTAGE, "SQLAlchemy wraps it"


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("number", CONFLICTS)
def test_a_consumer_repeats_a_conflict_at_once(driver: str, number: int) -> None:
    assert classify_error(raised(driver, number)) is ErrorClass.CONFLICT


@pytest.mark.parametrize("number", [1062, 1064, 1146, 1264, 1406])
@pytest.mark.parametrize("driver", DRIVERS)
def test_what_the_handler_did_wrong_is_its_failure(driver: str, number: int) -> None:
    assert classify_error(raised(driver, number)) is ErrorClass.FAILURE


@pytest.mark.parametrize("number", [*OUTAGES, *CONFLICTS])
def test_a_store_tries_again(number: int) -> None:
    with pytest.raises(StoreUnavailable), map_errors():
        raise pymysql.OperationalError(number, "it was ended")


@pytest.mark.parametrize("number", ENDED)
def test_a_store_does_not_use_a_connection_again_that_was_ended(number: int) -> None:
    assert _is_connection_lost(pymysql.OperationalError(number, "it was ended"))


@pytest.mark.parametrize("function", ["sha1(", "sha(", "md5(", "password(", "encode(", "decode("])
def test_no_statement_calls_what_mysql_no_longer_has(function: str) -> None:
    """MySQL 8.0 removed some functions, and 9.6 moved SHA1 and MD5 into a component that is not loaded."""
    package = files("pillarbox.stores")
    texts = [
        file.read_text().lower()
        for folder in ("mariadb", "mariadb/sql", "mariadb/migrations", "sync_sql/sql")
        for file in package.joinpath(folder).iterdir()
        if file.name.endswith((".py", ".sql"))
    ]

    statements = [line for text in texts for line in text.splitlines() if not line.lstrip().startswith(("--", "#"))]
    called = [line for line in statements if f" {function}" in line or f"({function}" in line]
    assert len(texts) > 10
    assert called == []


@pytest.mark.parametrize("number", NOT_LEADER)
def test_a_server_that_is_no_leader_any_more_is_an_outage(number: int) -> None:
    """Never a refusal of the message: another server takes it."""
    with pytest.raises(StoreUnavailable), map_errors():
        raise pymysql.OperationalError(number, "it takes no writes")
    assert classify_error(pymysql.InternalError(number, "it takes no writes")) is ErrorClass.OUTAGE


@pytest.mark.parametrize("number", [1213, 3101])
def test_a_conflict_at_the_commit_of_a_cluster_is_repeated(number: int) -> None:
    assert classify_error(pymysql.OperationalError(number, "certification failed")) is ErrorClass.CONFLICT


@pytest.mark.parametrize("answer", ["YES", "NO"])
def test_a_refused_login_keeps_its_sentence(answer: str) -> None:
    """The server names no password, only whether there was one: nothing of it is a secret."""
    refused = pymysql.err.OperationalError(1045, f"Access denied for user 'a'@'h' (using password: {answer})")
    with pytest.raises(StoreUnavailable) as caught, map_errors():
        raise refused
    assert str(caught.value) == (
        "MariaDB refused the login (Access denied for user 'a'@'h'): check the URL's user and password."
    )
