"""A handle that would commit on its own is refused, and nothing is written."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from pillarbox import writers
from pillarbox.contracts.writer import Accept, Insert
from pillarbox.errors import NotInTransaction, UnsupportedHandle
from tests.support.writers.handles import resolve
from tests.support.writers.kinds import STORES
from tests.support.writers.places import Place, PostgresPlace, SqlitePlace, batch, subjects
from tests.support.writers.sqlalchemy_handles import build_url, create_async_engine_for, create_engine_for

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


async def _assert_refused(tx: Any, place: Place) -> None:
    accept = Accept(names=place.names, consumer="c", source="/s", message_id="1")
    for attempt in (lambda: writers.insert(tx, batch(place, "a")), lambda: writers.execute(tx, accept)):
        with pytest.raises(NotInTransaction):
            await resolve(attempt())
    assert subjects(place) == []
    assert place.query("select * from pillarbox_inbox") == []


# --- PostgreSQL ----------------------------------------------------------------------------------


async def test_asyncpg_outside_a_transaction(postgres_place: PostgresPlace) -> None:
    connection = await asyncpg.connect(postgres_place.url)
    await _assert_refused(connection, postgres_place)
    async with connection.transaction():
        await resolve(writers.insert(connection, batch(postgres_place, "a")))
    await connection.close()
    assert subjects(postgres_place) == ["a"]


async def test_asyncpg_after_an_error_says_so(postgres_place: PostgresPlace) -> None:
    connection = await asyncpg.connect(postgres_place.url)
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute("select * from nowhere")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await resolve(writers.insert(connection, batch(postgres_place, "a")))
    await transaction.rollback()
    await connection.close()


async def test_psycopg_in_autocommit(postgres_place: PostgresPlace) -> None:
    with psycopg.connect(postgres_place.url, autocommit=True) as connection:
        await _assert_refused(connection, postgres_place)
        with connection.transaction():
            writers.insert(connection, batch(postgres_place, "a"))
        connection.execute("begin")
        writers.insert(connection, batch(postgres_place, "b"))
        connection.execute("commit")
        with connection.pipeline(), connection.transaction():
            writers.insert(connection, batch(postgres_place, "c"))
            writers.insert(connection, batch(postgres_place, "d"))
        with connection.pipeline():
            connection.execute("select 1")
            with pytest.raises(NotInTransaction):
                writers.insert(connection, batch(postgres_place, "refused"))
    assert subjects(postgres_place) == ["a", "b", "c", "d"]


async def test_async_psycopg_in_autocommit(postgres_place: PostgresPlace) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_place.url, autocommit=True) as connection:
        await _assert_refused(connection, postgres_place)
        async with connection.transaction():
            await resolve(writers.insert(connection, batch(postgres_place, "a")))
    assert subjects(postgres_place) == ["a"]


async def test_psycopg_closed_or_failed_says_so(postgres_place: PostgresPlace) -> None:
    with psycopg.connect(postgres_place.url) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select * from nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            writers.insert(connection, batch(postgres_place, "a"))
        connection.rollback()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        writers.insert(connection, batch(postgres_place, "a"))


# --- SQLite --------------------------------------------------------------------------------------


async def test_sqlite3_without_isolation_level(sqlite_place: SqlitePlace) -> None:
    with closing(sqlite3.connect(sqlite_place.path, isolation_level=None)) as connection:
        await _assert_refused(connection, sqlite_place)
        connection.execute("begin")
        writers.insert(connection, batch(sqlite_place, "a"))
        connection.execute("commit")
    assert subjects(sqlite_place) == ["a"]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        writers.insert(connection, batch(sqlite_place, "b"))


async def test_aiosqlite_without_isolation_level(sqlite_place: SqlitePlace) -> None:
    async with aiosqlite.connect(sqlite_place.path, isolation_level=None) as connection:
        await _assert_refused(connection, sqlite_place)
        await connection.execute("begin")
        await resolve(writers.insert(connection, batch(sqlite_place, "a")))
        await connection.execute("commit")
    assert subjects(sqlite_place) == ["a"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has the attribute since Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_sqlite3_autocommit_attribute(sqlite_place: SqlitePlace, autocommit: bool) -> None:
    options: dict[str, Any] = {"autocommit": autocommit}
    engine = create_engine_for(sqlite_place, "pysqlite", connect_args=options)
    async_engine = create_async_engine_for(sqlite_place, "aiosqlite", connect_args=options)
    async with AsyncExitStack() as stack:
        handles: list[Any] = [
            stack.enter_context(closing(sqlite3.connect(sqlite_place.path, **options))),
            await stack.enter_async_context(aiosqlite.connect(sqlite_place.path, **options)),
            stack.enter_context(engine.connect()),
            await stack.enter_async_context(async_engine.connect()),
        ]
        for handle in handles:
            if autocommit:
                await _assert_refused(handle, sqlite_place)
            else:
                await resolve(writers.insert(handle, batch(sqlite_place, "a")))
                await resolve(handle.commit())
    engine.dispose()
    await async_engine.dispose()
    assert subjects(sqlite_place) == ([] if autocommit else ["a"] * 4)


@pytest.mark.parametrize("isolation_level", ["", "IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_more_rows_than_one_statement_holds_stay_in_the_transaction(
    sqlite_place: SqlitePlace, isolation_level: Any, ends: str
) -> None:
    names = [str(number) for number in range(4_000)]
    with closing(sqlite3.connect(sqlite_place.path, isolation_level=isolation_level)) as connection:
        writers.insert(connection, batch(sqlite_place, *names))
        assert connection.in_transaction
        getattr(connection, ends)()
    assert subjects(sqlite_place) == (names if ends == "commit" else [])


async def test_more_rows_than_one_statement_holds_are_all_or_nothing(sqlite_place: SqlitePlace) -> None:
    bad = batch(sqlite_place, *map(str, range(4_000)))
    bad = Insert(names=bad.names, messages=[*bad.messages, bad.messages[0]])
    engine = create_engine_for(sqlite_place, "pysqlite")
    with closing(sqlite3.connect(sqlite_place.path)) as connection:
        connection.executescript("create unique index once on pillarbox_outbox (message_id)")
        connection.execute("insert into orders (id) values (1)")
        with pytest.raises(sqlite3.IntegrityError):
            writers.insert(connection, bad)
        connection.commit()
    with engine.connect() as through:
        through.exec_driver_sql("insert into orders (id) values (2)")
        with pytest.raises(Exception, match="UNIQUE"):
            writers.insert(through, bad)
        through.commit()
    engine.dispose()
    assert subjects(sqlite_place) == []
    assert sqlite_place.query("select id from orders") == [{"id": 1}, {"id": 2}]


# --- SQLAlchemy ----------------------------------------------------------------------------------

Opener = Callable[[Place, str], Any]


@asynccontextmanager
async def _engine_wide(place: Place, driver: str) -> AsyncIterator[Any]:
    engine = create_engine_for(place, driver, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, Session(engine) as session:
        yield [connection, session]
    engine.dispose()


@asynccontextmanager
async def _engine_option(place: Place, driver: str) -> AsyncIterator[Any]:
    engine = create_engine(build_url(place, driver))
    options = {"schema_translate_map": {None: place.names.schema}, **AUTOCOMMIT}  # at once: 2.0.36 takes no second
    with Session(engine.execution_options(**options)) as session:
        yield [session]
    engine.dispose()


@asynccontextmanager
async def _connection_option(place: Place, driver: str) -> AsyncIterator[Any]:
    engine = create_engine_for(place, driver)
    with engine.connect() as connection, Session(engine) as session:
        session.connection(execution_options=AUTOCOMMIT)
        yield [connection.execution_options(**AUTOCOMMIT), session]
    engine.dispose()


@pytest.mark.parametrize("opened", [_engine_wide, _engine_option, _connection_option])
@pytest.mark.parametrize("driver", ["psycopg", "pysqlite", "pymysql"])
async def test_sqlalchemy_autocommit(driver: str, opened: Any, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{STORES[f'ConnectionHandle-{driver}']}_place")
    async with opened(place, driver) as handles:
        for handle in handles:
            await _assert_refused(handle, place)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "aiosqlite", "asyncmy", "aiomysql"])
async def test_async_sqlalchemy_autocommit(driver: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{STORES[f'AsyncConnectionHandle-{driver}']}_place")
    wide = create_async_engine_for(place, driver, isolation_level="AUTOCOMMIT")
    plain = create_async_engine_for(place, driver)
    async with wide.connect() as connection, AsyncSession(wide) as session, plain.connect() as optioned:
        handles: list[AsyncConnection | AsyncSession] = [connection, session]
        handles.append(await optioned.execution_options(**AUTOCOMMIT))
        for handle in handles:
            await _assert_refused(handle, place)
    await wide.dispose()
    await plain.dispose()


async def test_sqlite_engine_that_begins_by_event_is_fine(sqlite_place: SqlitePlace) -> None:
    """The recipe that SQLAlchemy's documentation gives for savepoints on SQLite."""
    engine = create_engine_for(sqlite_place, "pysqlite")

    @event.listens_for(engine, "connect")
    def connected(driver: sqlite3.Connection, _: object) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("begin")

    with engine.connect() as connection:
        writers.insert(connection, batch(sqlite_place, "a"))
        connection.rollback()
        writers.insert(connection, batch(sqlite_place, "b"))
        connection.commit()
    with Session(engine) as session:
        writers.insert(session, batch(sqlite_place, "c"))
        session.commit()
    engine.dispose()
    assert subjects(sqlite_place) == ["b", "c"]


async def test_other_dialects_are_named(sqlite_place: SqlitePlace) -> None:
    engine = create_engine_for(sqlite_place, "pysqlite")
    with engine.connect() as connection:
        engine.dialect.driver = "other"
        with pytest.raises(UnsupportedHandle, match=r"sqlite\+other"):
            writers.insert(connection, batch(sqlite_place, "a"))
    engine.dispose()
