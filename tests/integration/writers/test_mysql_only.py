"""What only MariaDB and MySQL have: settings of a connection that must not matter, limits, rows that lock keys."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncmy
import pymysql
import pytest
from pymysql.constants import CLIENT
from pymysql.constants.COMMAND import COM_QUERY
from pymysql.cursors import SSDictCursor
from sqlalchemy import create_engine

from pillarbox import writers
from pillarbox.contracts.writer import Insert
from pillarbox.errors import NotInTransaction
from pillarbox.inbox import Inbox
from pillarbox.message import Message
from pillarbox.writers.insert_sql import COLUMNS
from tests.support.mariadb_server import connected, is_mariadb, options
from tests.support.writers.handles import Handle, insert, resolve, write_staged
from tests.support.writers.kinds import KINDS, STORES
from tests.support.writers.places import MariadbPlace, Place, batch, message, orders, outbox, subjects

RAW: Final = ["pymysql", "asyncmy", "aiomysql"]


@pytest.fixture(params=[kind for kind, store in STORES.items() if store == "mariadb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def _execute_beneath(handle: Handle, sql: str) -> None:
    """Said to the connection beneath the handle."""
    tx = handle.tx
    if hasattr(tx, "flush"):
        tx = await resolve(tx.connection())
    await resolve(tx.exec_driver_sql(sql) if hasattr(tx, "exec_driver_sql") else tx.query(sql))


# --- what applications set on their connections --------------------------------------------------

ODD: Final = "✉ 😀 '\"`\\ \\' %s %% ? :x é"

SETTINGS: Final = [
    "set sql_mode = 'ANSI_QUOTES'",
    "set sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "set sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL,NO_ZERO_DATE,PIPES_AS_CONCAT'",
    "set sql_mode = ''",
    "set names latin1",
    "set names utf8mb4 collate utf8mb4_general_ci",
    "set time_zone = '+05:30'",
    "set session transaction isolation level read committed",
    "set session transaction isolation level serializable",
]


@pytest.mark.parametrize("kind", [*RAW, "SessionHandle-pymysql", "AsyncConnectionHandle-asyncmy"])
@pytest.mark.parametrize("setting", SETTINGS)
async def test_settings_of_the_connection_do_not_matter(handle: Handle, place: Place, setting: str) -> None:
    await _execute_beneath(handle, setting)
    await handle.commit()
    given = [_odd(f"{number}{ODD}") for number in range(2)]
    inbox = Inbox(f"billing {ODD}", schema=place.names.schema)
    await handle.begin()
    await insert(handle, Insert(names=place.names, messages=given[:1], serialize_keys=True))
    await insert(handle, Insert(names=place.names, messages=given, delay=timedelta(days=1)))
    assert await resolve(inbox.accept(handle.tx, given[0]))
    assert not await resolve(inbox.accept(handle.tx, given[0]))
    await resolve(inbox.fail(handle.tx, given[1], error=ODD, attempts=2, content=bytes(range(256))))
    await handle.commit()
    got = outbox(place)
    assert [_chosen(one) for one in got] == [_chosen(one) for one in (given[0], *given)]
    assert all(
        one.created_at is not None and abs(one.created_at - datetime.now(UTC)) < timedelta(hours=1) for one in got
    )
    assert [one.available_at and one.created_at and one.available_at - one.created_at for one in got] == [
        None, timedelta(days=1), timedelta(days=1),
    ]  # fmt: skip
    rows = place.query("select * from pillarbox_inbox order by status")
    assert [row["consumer"].decode() for row in rows] == [inbox.consumer] * 2
    assert [(row["status"], row["duplicates"]) for row in rows] == [("done", 1), ("failed", 0)]
    assert (rows[1]["last_error"], rows[1]["message"]) == (ODD, bytes(range(256)))


def _odd(text: str) -> Message:
    return message(text, key=text, payload=bytes(range(256)), topic=text, source=text, headers={"a": "b'\\\""})


def _chosen(given: Message) -> tuple[object, ...]:
    return (given.subject, given.key, given.payload, given.topic, given.source, given.headers, given.event_time)


async def test_cursor_class_does_not_matter(mariadb_place: MariadbPlace) -> None:
    """Not even one that leaves its rows on the server."""
    with closing(connected(mariadb_place.url, cursorclass=SSDictCursor)) as connection:
        given = [message("a", key="k")]
        writers.insert(connection, Insert(names=mariadb_place.names, messages=given, serialize_keys=True))
        assert Inbox("billing", schema=mariadb_place.names.schema).start(connection, given[0]) == 1
        connection.commit()
    assert subjects(mariadb_place) == ["a"]


async def test_statements_that_the_driver_prepares(mariadb_place: MariadbPlace) -> None:
    try:
        connection = await asyncmy.connect(stmt_cache_size=10, **options(mariadb_place.url))
    except TypeError:
        pytest.skip("This asyncmy prepares no statements: install a newer one.")
    given = [_odd(f"{number}{ODD}") for number in range(3)]
    for part in (given[:1], given):
        await resolve(writers.insert(connection, Insert(names=mariadb_place.names, messages=part, serialize_keys=True)))
    inbox = Inbox("billing", schema=mariadb_place.names.schema)
    assert await inbox.accept(connection, given[0])
    assert await inbox.start(connection, given[1]) == 1
    await connection.commit()
    await connection.ensure_closed()
    assert [_chosen(one) for one in outbox(mariadb_place)] == [_chosen(one) for one in (given[0], *given)]


# --- a handle that would commit on its own -------------------------------------------------------


async def _make_autocommitting(kind: str, place: MariadbPlace) -> Handle:
    handle = KINDS[kind][1]()
    await handle.open(place)
    await resolve(handle.tx.autocommit(True))
    return handle


@pytest.mark.parametrize("kind", RAW)
async def test_autocommit_needs_a_transaction(kind: str, mariadb_place: MariadbPlace) -> None:
    handle = await _make_autocommitting(kind, mariadb_place)
    inbox = Inbox("billing", schema=mariadb_place.names.schema)
    with pytest.raises(NotInTransaction, match="begin"):
        await insert(handle, batch(mariadb_place, "refused"))
    with pytest.raises(NotInTransaction, match="begin"):
        await resolve(inbox.accept(handle.tx, message()))
    for name, begin in (("a", handle.tx.begin), ("b", lambda: handle.tx.query("start transaction"))):
        await resolve(begin())
        await insert(handle, batch(mariadb_place, name))
        await handle.commit()
    with pytest.raises(NotInTransaction, match="begin"):
        await insert(handle, batch(mariadb_place, "refused"))
    await handle.close()
    assert subjects(mariadb_place) == ["a", "b"]


@pytest.mark.parametrize("kind", RAW)
async def test_autocommit_after_a_deadlock_is_outside_a_transaction(kind: str, mariadb_place: MariadbPlace) -> None:
    """The server has rolled back, and the driver was told of an error only."""
    handle = await _make_autocommitting(kind, mariadb_place)
    await resolve(handle.tx.begin())
    await handle.order(1)
    with closing(connected(mariadb_place.url)) as rival:
        rival.query(f"insert into orders (id) values {', '.join(f'({number})' for number in range(2, 500))}")
        rival._execute_command(COM_QUERY, "insert into orders (id) values (1)")  # and not waited for
        with pytest.raises(Exception, match="1213"):
            await handle.order(2)
    with pytest.raises(NotInTransaction, match="begin"):
        await insert(handle, batch(mariadb_place, "refused"))
    await handle.close()
    assert (orders(mariadb_place), subjects(mariadb_place)) == ([], [])


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*RAW, "ConnectionHandle-pymysql", "AsyncSessionHandle-asyncmy"])
async def test_a_batch_larger_than_a_packet(handle: Handle, place: Place) -> None:
    """Nine payloads of the greatest size are more than the server takes in one statement."""
    given = [message(str(number), payload=bytes([number]) * 1024 * 1024) for number in range(9)]
    await handle.begin()
    await insert(handle, Insert(names=place.names, messages=given))
    await handle.commit()
    got = outbox(place)
    assert [one.subject for one in got] == [one.subject for one in given]
    assert [one.payload for one in got] == [one.payload for one in given]


@pytest.mark.parametrize("kind", [*RAW, "ConnectionHandle-pymysql", "AsyncConnectionHandle-aiomysql"])
async def test_a_batch_of_several_statements_is_all_or_nothing(handle: Handle, place: Place) -> None:
    spoiled = [message(str(number)) for number in range(1_200)] + [message("bad", destination="x" * 200)]
    await handle.begin()
    await handle.order(1)
    await insert(handle, batch(place, "before"))
    with pytest.raises(Exception, match="destination"):
        await insert(handle, Insert(names=place.names, messages=spoiled))
    await insert(handle, batch(place, "after"))
    await handle.commit()
    assert (orders(place), subjects(place)) == ([1], ["before", "after"])


# --- rights --------------------------------------------------------------------------------------


@pytest.fixture
def writer(mariadb_place: MariadbPlace) -> Iterator[dict[str, Any]]:
    """How to connect as one who may insert what a writer fills in, and lock keys, and nothing else."""
    schema, name = mariadb_place.names.schema, f"w_{mariadb_place.names.schema}"
    columns = ", ".join(f"`{column}`" for column in (*COLUMNS, "available_at", "waits"))
    with closing(connected(mariadb_place.url, autocommit=True)) as root:
        root.query(f"create user '{name}'@'%' identified by 'Hush-Hush-1'")
        root.query(f"grant insert ({columns}) on `{schema}`.pillarbox_outbox to '{name}'@'%'")
        root.query(f"grant select, update on `{schema}`.pillarbox_slot to '{name}'@'%'")
        yield options(mariadb_place.url) | {"user": name, "password": "Hush-Hush-1"}
        root.query(f"drop user '{name}'@'%'")


def test_inserting_columns_is_all_the_right_it_takes(mariadb_place: MariadbPlace, writer: dict[str, Any]) -> None:
    names = [str(number) for number in range(700)]
    with closing(pymysql.connect(**writer)) as connection:
        writers.insert(connection, batch(mariadb_place, *names))
        given = [message("keyed", key="k")]
        writers.insert(connection, Insert(names=mariadb_place.names, messages=given, serialize_keys=True))
        connection.commit()
        with pytest.raises(pymysql.Error, match="denied"):
            connection.query("select * from pillarbox_outbox")
    assert subjects(mariadb_place) == [*names, "keyed"]


# --- keys ----------------------------------------------------------------------------------------


async def test_second_writer_of_a_key_waits_for_the_first(
    handle: Handle, place: Place, keyed: Callable[..., Insert]
) -> None:
    assert isinstance(place, MariadbPlace)
    await handle.begin()
    await insert(handle, keyed("k", None, "other"))
    await handle.flush_written()
    await write_staged(handle)
    with closing(connected(place.url)) as second:
        second.query("set innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.Error, match="1205"):
            writers.insert(second, keyed("k"))
        writers.insert(second, keyed("free", None))
        second.commit()
        await handle.commit()
        writers.insert(second, keyed("k"))
        second.commit()
    assert sorted(subjects(place), key=str) == sorted(["k", "None", "other", "free", "None", "k"])


# --- inbox ---------------------------------------------------------------------------------------

LEVELS: Final = ["read committed", "repeatable read", "serializable"]


@pytest.fixture(params=[0, CLIENT.FOUND_ROWS], ids=["changed-rows", "found-rows"])
def counting(request: pytest.FixtureRequest) -> dict[str, int]:
    """What the connection counts: rows that a statement changed, or that it found."""
    return {"client_flag": request.param}


def _at(place: MariadbPlace, level: str, counting: dict[str, int]) -> Any:
    connection = connected(place.url, **counting)
    connection.query(f"set session transaction isolation level {level}")
    return connection


@pytest.mark.parametrize("level", LEVELS[:2])
def test_what_another_committed_is_seen_by_an_older_transaction(
    mariadb_place: MariadbPlace, level: str, counting: dict[str, int]
) -> None:
    inbox = Inbox("billing", schema=mariadb_place.names.schema)
    done, started, failed, new = (message(str(number)) for number in range(4))
    with (
        closing(_at(mariadb_place, level, counting)) as late,
        closing(_at(mariadb_place, level, counting)) as first,
    ):
        late.query("select * from pillarbox_inbox")  # its snapshot is of now
        assert inbox.accept(first, done)
        assert inbox.start(first, started) == 1
        inbox.fail(first, failed, error="no", attempts=3, content=b"kept")
        first.commit()
        assert not inbox.accept(late, done)
        assert inbox.start(late, done) == 0
        inbox.fail(late, done, error="too late", attempts=1, content=b"x")
        assert inbox.start(late, started) == 2
        assert inbox.start(late, failed) == 1
        assert inbox.accept(late, failed)
        assert inbox.accept(late, started)
        assert inbox.accept(late, new)
        late.commit()
    rows = mariadb_place.query("select status, duplicates, attempts, message, last_error from pillarbox_inbox")
    told = sorted((row["status"], row["duplicates"], row["attempts"], row["last_error"] or "") for row in rows)
    assert told == [("done", 0, 0, ""), ("done", 0, 1, "no"), ("done", 0, 2, ""), ("done", 1, 0, "")]
    assert [row["message"] for row in rows] == [None] * 4


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_concurrent_duplicates_are_handled_once(
    mariadb_place: MariadbPlace, level: str, counting: dict[str, int], ends: str
) -> None:
    """Five at once. InnoDB may end some of them with a deadlock, which is an error to be repeated."""
    inbox = Inbox("billing", schema=mariadb_place.names.schema)
    event = message()
    answers: list[bool] = []

    def another() -> None:
        with closing(_at(mariadb_place, level, counting)) as connection:
            for _ in range(10):
                with suppress(pymysql.OperationalError):
                    answer = inbox.accept(connection, event)
                    connection.commit()
                    answers.append(answer)
                    return
                connection.rollback()

    with closing(_at(mariadb_place, level, counting)) as first:
        assert inbox.accept(first, event)
        others = [threading.Thread(target=another) for _ in range(5)]
        for other in others:
            other.start()
        getattr(first, ends)()
        for other in others:
            other.join(60)
    assert sorted(answers) == [False] * 4 + [ends == "rollback"]
    (row,) = mariadb_place.query("select status, duplicates from pillarbox_inbox")
    assert row == {"status": "done", "duplicates": 5 if ends == "commit" else 4}


@pytest.mark.parametrize("kind", RAW)
async def test_everything_that_an_inbox_is_asked(handle: Handle, place: Place) -> None:
    inbox, other = (Inbox(name, schema=place.names.schema) for name in ("billing", "mail"))
    kept, again = message("kept"), message("again")
    await handle.begin()
    await resolve(inbox.fail(handle.tx, kept, error="no", attempts=3, content=b"\x00\xffkept"))
    await resolve(other.fail(handle.tx, kept, error="no", attempts=3, content=b"other"))
    assert await resolve(inbox.redriven(handle.tx)) == []
    assert await resolve(inbox.start(handle.tx, kept)) == 1
    assert await resolve(other.start(handle.tx, kept)) == 1
    assert await resolve(inbox.start(handle.tx, again)) == 1
    assert await resolve(inbox.start(handle.tx, again)) == 2
    assert await resolve(inbox.redriven(handle.tx)) == [b"\x00\xffkept"]
    assert await resolve(inbox.redriven(handle.tx, limit=0)) == []
    assert await resolve(inbox.accept(handle.tx, kept))
    assert await resolve(inbox.redriven(handle.tx)) == []
    await handle.commit()
    await handle.begin()
    assert await resolve(inbox.forget(handle.tx, older_than=timedelta(hours=1))) == 0
    assert await resolve(other.forget(handle.tx, older_than=timedelta(0))) == 0
    assert await resolve(inbox.forget(handle.tx, older_than=timedelta(0), limit=0)) == 0
    assert await resolve(inbox.forget(handle.tx, older_than=timedelta(0))) == 2
    await handle.commit()
    assert len(place.query("select * from pillarbox_inbox")) == 1


def test_trailing_spaces_and_letter_case_tell_messages_apart(mariadb_place: MariadbPlace) -> None:
    inbox = Inbox("billing", schema=mariadb_place.names.schema)
    with closing(connected(mariadb_place.url)) as connection:
        for source in ("/shop", "/shop ", "/SHOP", "/shöp", "/shop"):
            answer = inbox.accept(connection, message(source=source))
            assert answer
        twice = message("twice")
        assert [inbox.accept(connection, twice) for _ in range(2)] == [True, False]
        connection.rollback()


# --- other names of the same -----------------------------------------------------------------------


def test_the_other_name_of_the_dialect(mariadb_place: MariadbPlace) -> None:
    if not is_mariadb(mariadb_place.url):
        pytest.skip("SQLAlchemy's mariadb:// dialect refuses MySQL.")
    engine = create_engine(mariadb_place.url.replace("mysql://", "mariadb+pymysql://"))
    with engine.connect() as connection:
        writers.insert(connection, batch(mariadb_place, "a"))
        connection.commit()
    engine.dispose()
    assert subjects(mariadb_place) == ["a"]


def test_connections_of_mysqlclient(mariadb_place: MariadbPlace) -> None:
    """PyMySQL plays it: under that name, and without telling whether a transaction is open."""
    program = """
import sys, pymysql
pymysql.install_as_MySQLdb()
from MySQLdb.connections import Connection
from pillarbox import Outbox, writers
from pillarbox.errors import NotInTransaction
from tests.support.mariadb_server import options
tx = Connection(**options(sys.argv[1]))
outbox = Outbox(routes="broker", source="/shop")
outbox.publish(tx, b"a", type="t", content_type="text/plain", subject="a")
tx.commit()
outbox.publish(tx, b"b", type="t", content_type="text/plain", subject="b")
tx.rollback()
tx.autocommit(True)
try:
    outbox.publish(tx, b"c", type="t", content_type="text/plain", subject="c")
except NotInTransaction as error:
    print(type(writers._find_class(tx)(tx)).__name__, "autocommit(False)" in str(error))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, mariadb_place.url], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("MysqldbWriter True\n", "")
    assert subjects(mariadb_place) == ["a"]
