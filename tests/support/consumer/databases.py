"""Every kind of database that a consumer can be given, and handlers that are written once for all of them.

A handler here is a generator: it yields SQL, and gets errors thrown back in, as if it had called the driver itself.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from typing import Any, ClassVar, Final

import aiomysql
import asyncmy
import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from pillarbox.message import Names
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until
from tests.support.mariadb_server import connected, options

__all__ = ["ON_MARIADB", "ON_POSTGRES", "Body", "Kind", "MariadbScene", "PostgresScene", "Scene", "handler", "noted"]

Kind = Callable[[str, str], AbstractAsyncContextManager[object]]
"""From URL and schema to what `Consumer` takes as its database."""
Body = Callable[[Ticked], Generator[str, None, None]]


class Scene:
    """A consumer for one handler, and a look at its tables from outside."""

    cut: ClassVar[str]
    """The SQL by which a connection ends itself."""
    conflicts: ClassVar[Sequence[str]]
    """Statements that fail as if another transaction had been in the way."""

    def __init__(self, database: object, *, rows: Callable[[str], Sequence[Any]], names: Names, is_async: bool) -> None:
        self.queue = MemoryQueue()
        self.calls = 0
        self.rows = rows
        self._database = database
        self._names = names
        self._is_async = is_async

    async def run(self, body: Body, *, times: int = 1, attempts: int = 3) -> None:
        """Handle a message with it, until the broker has been told so often."""
        consumer = Consumer(
            "clock", receiver=MemoryReceiver(self.queue), database=self._database, types=TYPES,
            schema=self._names.schema, settings=replace(QUICK, retry=replace(QUICK.retry, attempts=attempts)),
        )  # fmt: skip

        def counted(event: Ticked) -> Generator[str, None, None]:
            self.calls += 1
            return body(event)

        consumer.on(Ticked)(handler(counted, is_async=self._is_async))
        self.queue.put(tick(1, "a"))
        async with consumer:
            await until(lambda: len(self.queue.acknowledged) == times)

    def left(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """The handler's rows, and the inbox's."""
        return self.rows("select number from ticks order by number"), self.rows(
            "select status, attempts, duplicates from pillarbox_inbox"
        )


class PostgresScene(Scene):
    cut = "select pg_terminate_backend(pg_backend_pid())"
    conflicts = [f"do $$ begin raise sqlstate '{state}'; end $$" for state in ("40001", "40P01", "55P03")]  # noqa: RUF012


class MariadbScene(Scene):
    cut = "kill connection_id()"
    conflicts = [f"signal sqlstate 'HY000' set mysql_errno = {number}" for number in (1205, 1213, 1020)]  # noqa: RUF012


def noted(event: Ticked) -> Generator[str, None, None]:
    yield f"insert into ticks values ({event.number})"


def handler(body: Body, *, is_async: bool) -> Callable[..., Any]:
    """The handler that does this."""

    def handle(event: Ticked, tx: Any) -> None:
        steps = body(event)
        sql = next(steps, None)
        while sql is not None:
            try:
                _executed(tx, sql)
            except Exception as error:
                sql = _thrown(steps, error)
            else:
                sql = next(steps, None)

    async def handle_async(event: Ticked, tx: Any) -> None:
        steps = body(event)
        sql = next(steps, None)
        while sql is not None:
            try:
                await _executed(tx, sql)
            except Exception as error:
                sql = _thrown(steps, error)
            else:
                sql = next(steps, None)

    return handle_async if is_async else handle


def _executed(tx: Any, sql: str) -> Any:
    if type(tx).__module__.startswith("sqlalchemy"):
        return tx.execute(sqlalchemy.text(sql))
    return tx.execute(sql) if hasattr(tx, "execute") else tx.query(sql)


def _thrown(steps: Generator[str, None, None], error: Exception) -> str | None:
    try:
        return steps.throw(error)
    except StopIteration:
        return None


# --- PostgreSQL ------------------------------------------------------------------------------------------


def _at(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def _asyncpg(url: str, schema: str) -> AsyncIterator[object]:
    async with asyncpg.create_pool(url, min_size=1, max_size=4, server_settings={"search_path": schema}) as pool:
        yield pool


@asynccontextmanager
async def _psycopg(url: str, schema: str) -> AsyncIterator[object]:
    """A function that returns a context manager."""

    @contextmanager
    def begin() -> Any:
        with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
            yield connection

    yield begin


@asynccontextmanager
async def _psycopg_pool(url: str, schema: str) -> AsyncIterator[object]:
    with psycopg_pool.ConnectionPool(
        url,
        kwargs={"options": f"-c search_path={schema}"},
        open=False,
        timeout=2,  # by default, half a minute until an outage is noticed
        check=psycopg_pool.ConnectionPool.check_connection,
    ) as pool:
        yield pool


@asynccontextmanager
async def _async_psycopg_pool(url: str, schema: str) -> AsyncIterator[object]:
    async with psycopg_pool.AsyncConnectionPool(
        url,
        kwargs={"options": f"-c search_path={schema}"},
        open=False,
        timeout=2,  # by default, half a minute until an outage is noticed
        check=psycopg_pool.AsyncConnectionPool.check_connection,
    ) as pool:
        yield pool


@asynccontextmanager
async def _engine(url: str, schema: str) -> AsyncIterator[object]:
    options = {"options": f"-c search_path={schema}"}
    engine = sqlalchemy.create_engine(_at(url, "psycopg"), connect_args=options)
    opened = _remember_connections(engine)
    is_over = threading.Event()

    # A consumer that stops does not wait for its threads: one may connect after this.
    @sqlalchemy.event.listens_for(engine, "checkin")
    def close_late(connection: Any, _: object) -> None:
        if is_over.is_set() and connection is not None:
            connection.close()

    try:
        yield engine
    finally:
        is_over.set()
        engine.dispose()
        for connection in opened:
            connection.close()


def _remember_connections(engine: sqlalchemy.Engine) -> list[Any]:
    """Return a list that gets every connection of the driver.

    After a lost one SQLAlchemy makes a new pool, and drops the connections that the old one had lent.
    """
    opened: list[Any] = []
    sqlalchemy.event.listen(engine, "connect", lambda connection, _: opened.append(connection))
    return opened


@asynccontextmanager
async def _sessions(url: str, schema: str) -> AsyncIterator[object]:
    async with _engine(url, schema) as engine:
        yield sessionmaker(engine)  # type: ignore[call-overload]


@asynccontextmanager
async def _async_engine(url: str, schema: str) -> AsyncIterator[object]:
    engine = create_async_engine(_at(url, "asyncpg"), connect_args={"server_settings": {"search_path": schema}})
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def _async_sessions(url: str, schema: str) -> AsyncIterator[object]:
    async with _async_engine(url, schema) as engine:
        yield async_sessionmaker(engine)  # type: ignore[call-overload]


@asynccontextmanager
async def _async_psycopg_sessions(url: str, schema: str) -> AsyncIterator[object]:
    options = {"options": f"-c search_path={schema}"}
    engine = create_async_engine(_at(url, "psycopg"), connect_args=options)
    opened = _remember_connections(engine.sync_engine)
    try:
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()
        for connection in opened:
            await connection.driver_connection.close()


ON_POSTGRES: Final[dict[str, tuple[Kind, bool]]] = {
    "asyncpg-pool": (_asyncpg, True),
    "psycopg": (_psycopg, False),
    "psycopg-pool": (_psycopg_pool, False),
    "async-psycopg-pool": (_async_psycopg_pool, True),
    "engine": (_engine, False),
    "sessions": (_sessions, False),
    "async-engine": (_async_engine, True),
    "async-sessions": (_async_sessions, True),
    "async-sessions-psycopg": (_async_psycopg_sessions, True),
}
"""By name; and whether its handlers are async."""


# --- MariaDB ---------------------------------------------------------------------------------------------


def _mysql(url: str, driver: str) -> str:
    return url.replace("mysql://", f"mysql+{driver}://")


@asynccontextmanager
async def _pymysql(url: str, schema: str) -> AsyncIterator[object]:
    """A function that returns a context manager."""

    @contextmanager
    def begin() -> Any:
        with closing(connected(url)) as connection:
            yield connection
            connection.commit()

    yield begin


@asynccontextmanager
async def _asyncmy(url: str, schema: str) -> AsyncIterator[object]:
    async with asyncmy.create_pool(minsize=1, maxsize=4, **options(url)) as pool:
        yield pool


@asynccontextmanager
async def _aiomysql(url: str, schema: str) -> AsyncIterator[object]:
    told = options(url)
    async with aiomysql.create_pool(minsize=1, maxsize=4, db=told.pop("database"), **told) as pool:
        yield pool


@asynccontextmanager
async def _mysql_sessions(url: str, schema: str) -> AsyncIterator[object]:
    engine = sqlalchemy.create_engine(_mysql(url, "pymysql"))
    try:
        yield sessionmaker(engine)
    finally:
        engine.dispose()


@asynccontextmanager
async def _async_mysql_sessions(url: str, schema: str) -> AsyncIterator[object]:
    engine = create_async_engine(_mysql(url, "asyncmy"))
    try:
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()


@asynccontextmanager
async def _async_mysql_engine(url: str, schema: str) -> AsyncIterator[object]:
    engine = create_async_engine(_mysql(url, "aiomysql"))
    try:
        yield engine
    finally:
        await engine.dispose()


ON_MARIADB: Final[dict[str, tuple[Kind, bool]]] = {
    "pymysql": (_pymysql, False),
    "asyncmy-pool": (_asyncmy, True),
    "aiomysql-pool": (_aiomysql, True),
    "sessions": (_mysql_sessions, False),
    "async-sessions": (_async_mysql_sessions, True),
    "async-engine": (_async_mysql_engine, True),
}
"""The same for MariaDB, whose database is in the URL."""
