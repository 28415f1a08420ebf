"""A consumer waits for its database, on every kind of handle: nothing is spent, nothing is lost, and it goes on."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.migrations import build_statements
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.consumer.databases import ON_MARIADB, ON_POSTGRES, Body, Kind, handler, noted
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until
from tests.support.mariadb_server import MariadbServer, PrivateMariadb, connected, scratch_mariadb
from tests.support.postgres_server import scratch_schema
from tests.support.private_postgres import PrivatePostgres
from tests.support.servers import ServerMissing, missing

_ONE_ATTEMPT = replace(QUICK, retry=replace(QUICK.retry, attempts=1))
_MESSAGES = 20


class Outages(ConsumerTelemetry):
    def __init__(self) -> None:
        self.count = 0

    def on_store_failed(self, consumer: str, error: Exception) -> None:
        self.count += 1


class Scene:
    def __init__(
        self, database: object, *, schema: str | None, is_async: bool, rows: Callable[[str], Any], body: Body = noted
    ) -> None:
        self.queue, self.outages, self.rows = MemoryQueue(), Outages(), rows
        self.consumer = Consumer(
            "clock", receiver=MemoryReceiver(self.queue), database=database, schema=schema, settings=_ONE_ATTEMPT,
            types=TYPES, telemetry=self.outages,
        )  # fmt: skip
        self.consumer.on(Ticked)(handler(body, is_async=is_async))

    async def wait_for(self, count: int) -> None:
        """Wait until so many are acknowledged; raise what ended the consumer."""
        assert self.consumer._task is not None
        waiting = asyncio.create_task(until(lambda: len(self.queue.acknowledged) == count))
        await asyncio.wait({waiting, self.consumer._task}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await self.consumer._task
        await waiting


@asynccontextmanager
async def proxied(url: str, *, port: int, query: str = "") -> AsyncIterator[tuple[str, FaultProxy]]:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    async with FaultProxy(parts.hostname or "127.0.0.1", parts.port or port) as proxy:
        yield parts._replace(netloc=f"{login or 'postgres'}@{proxy.host}:{proxy.port}", query=query).geturl(), proxy


@pytest.fixture(scope="module")
def postgres_tables(postgres_url: str) -> Iterator[str]:
    with scratch_schema(postgres_url) as schema:
        asyncio.run(open_schema(parse_store_url(postgres_url), names=Names(schema)).install())
        with psycopg.connect(postgres_url, options=f"-c search_path={schema}") as connection:
            connection.execute("create table ticks (number int primary key)")
        yield schema


@pytest.fixture(scope="module")
def mariadb_tables(mariadb_server: str) -> Iterator[str]:
    with scratch_mariadb(mariadb_server) as url:
        with closing(connected(url)) as connection:
            for statement in build_statements("mysql", names=Names(), since=0):
                connection.query(statement)
            connection.query("create table ticks (number int primary key)")
            connection.commit()
        yield url


def postgres_rows(url: str, schema: str) -> Callable[[str], Sequence[Any]]:
    def rows(sql: str) -> Sequence[Any]:
        with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
            return connection.execute(sql.encode()).fetchall()

    return rows


def mariadb_rows(url: str) -> Callable[[str], Sequence[Any]]:
    def rows(sql: str) -> Sequence[Any]:
        with closing(connected(url)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    return rows


async def _go_through_outage(scene: Scene, proxy: FaultProxy) -> None:
    scene.queue.put(tick(0))
    async with scene.consumer:
        await scene.wait_for(1)
        await proxy.down()
        for number in range(1, _MESSAGES):
            scene.queue.put(tick(number))
        # Handlers, and the loop that looks for redriven messages, meet it several times.
        await until(lambda: scene.outages.count >= _MESSAGES)
        await proxy.up()
        await scene.wait_for(_MESSAGES)
    assert scene.rows("select count(*) from ticks")[0][0] == _MESSAGES
    assert [row[0] for row in scene.rows("select distinct status from pillarbox_inbox")] == ["done"]


@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_postgresql_that_is_away_is_waited_for(name: str, postgres_url: str, postgres_tables: str) -> None:
    kind, is_async = ON_POSTGRES[name]
    rows = postgres_rows(postgres_url, postgres_tables)
    with psycopg.connect(postgres_url, options=f"-c search_path={postgres_tables}") as connection:
        connection.execute("truncate ticks, pillarbox_inbox")
    async with proxied(postgres_url, port=5432) as (url, proxy), kind(url, postgres_tables) as database:
        await _go_through_outage(Scene(database, schema=postgres_tables, is_async=is_async, rows=rows), proxy)


@pytest.mark.parametrize("name", ON_MARIADB)
async def test_mariadb_that_is_away_is_waited_for(name: str, mariadb_tables: str) -> None:
    kind, is_async = ON_MARIADB[name]
    with closing(connected(mariadb_tables)) as connection:
        connection.query("delete from ticks")
        connection.query("delete from pillarbox_inbox")
        connection.commit()
    async with proxied(mariadb_tables, port=3306) as (url, proxy), kind(url, "") as database:
        rows = mariadb_rows(mariadb_tables)
        await _go_through_outage(Scene(database, schema=None, is_async=is_async, rows=rows), proxy)


async def test_a_postgresql_that_hangs_is_waited_for(postgres_url: str, postgres_tables: str) -> None:
    """asyncpg raises a bare TimeoutError then, inside the handler as well."""
    with psycopg.connect(postgres_url, options=f"-c search_path={postgres_tables}") as connection:
        connection.execute("truncate ticks, pillarbox_inbox")
    rows = postgres_rows(postgres_url, postgres_tables)
    async with (
        proxied(postgres_url, port=5432) as (url, proxy),
        asyncpg.create_pool(
            url, min_size=1, max_size=4, timeout=0.5, command_timeout=0.5,
            server_settings={"search_path": postgres_tables},
        ) as pool,
    ):  # fmt: skip
        scene = Scene(pool, schema=postgres_tables, is_async=True, rows=rows)
        in_handler = asyncio.Event()

        @scene.consumer.on(Ticked)
        async def hang(event: Ticked, tx: Any) -> None:
            if not in_handler.is_set():
                in_handler.set()
                proxy.hang()
                await tx.fetchval("select 1")

        scene.queue.put(tick(0))
        async with scene.consumer:
            await until(lambda: scene.outages.count >= 2)
            proxy.cut()
            proxy.heal()
            await scene.wait_for(1)
    assert rows("select status, attempts from pillarbox_inbox") == [("done", 0)]


async def test_a_network_error_of_the_handlers_own_call_spends_attempts(
    postgres_url: str, postgres_tables: str
) -> None:
    with psycopg.connect(postgres_url, options=f"-c search_path={postgres_tables}") as connection:
        connection.execute("truncate ticks, pillarbox_inbox")
    rows = postgres_rows(postgres_url, postgres_tables)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=4) as pool:
        scene = Scene(pool, schema=postgres_tables, is_async=True, rows=rows)

        @scene.consumer.on(Ticked)
        async def call(event: Ticked) -> None:
            raise ConnectionRefusedError("the bank does not answer")

        scene.queue.put(tick(0))
        async with scene.consumer:
            await scene.wait_for(1)
    assert rows("select status, attempts from pillarbox_inbox") == [("failed", 1)]


# --- restarts of a whole server, with a consumer over every kind of handle at once ---


def _note_slowly(sleep: str) -> Body:
    def steps(event: Ticked) -> Generator[str, None, None]:
        yield f"insert into ticks values ({event.number})"
        yield sleep

    return steps


async def _go_through_restarts(
    kinds: Mapping[str, tuple[Kind, bool]], *, url: str, schema: str | None, sleep: str, rows: Callable[[str], Any],
    restarts: Sequence[tuple[Callable[[], None], Callable[[], None]]],
) -> None:  # fmt: skip
    """Stop the server in the middle of transactions, and start it again, while each consumer has work."""
    async with AsyncExitStack() as closing_all:
        scenes: list[Scene] = []
        for kind, is_async in kinds.values():
            database = await closing_all.enter_async_context(kind(url, schema or ""))
            scene = Scene(database, schema=schema, is_async=is_async, rows=rows, body=_note_slowly(sleep))
            scenes.append(await _start(scene, closing_all))
        numbers = {id(scene): 1000 * place for place, scene in enumerate(scenes)}
        count = 0
        for stop, start in restarts:
            for scene in scenes:
                for number in range(count, count + _MESSAGES):
                    scene.queue.put(tick(numbers[id(scene)] + number))
            await _wait_until_all_work(scenes, after=count)
            count += _MESSAGES
            await asyncio.to_thread(stop)
            await until(lambda: all(scene.outages.count for scene in scenes))
            await asyncio.to_thread(start)
            for scene in scenes:
                await scene.wait_for(count)
                scene.outages.count = 0
    gc.collect()  # what SQLAlchemy left open is found now, and not in a later test that minds
    assert rows("select count(*) from ticks")[0][0] == len(scenes) * count
    assert [tuple(row) for row in rows("select status, max(attempts) from pillarbox_inbox group by 1")] == [("done", 0)]


async def _wait_until_all_work(scenes: Sequence[Scene], *, after: int) -> None:
    await until(lambda: all(len(scene.queue.acknowledged) > after for scene in scenes))


async def _start(scene: Scene, closing_all: AsyncExitStack) -> Scene:
    await closing_all.enter_async_context(scene.consumer)
    return scene


async def test_consumers_on_every_handle_outlive_restarts_of_postgresql(
    private_postgres: Callable[[], PrivatePostgres],
) -> None:
    server = await asyncio.to_thread(private_postgres)
    with psycopg.connect(server.url) as connection:
        connection.execute("create schema shop")
    await open_schema(parse_store_url(server.url), names=Names("shop")).install()
    rows = postgres_rows(server.url, "shop")
    with psycopg.connect(server.url) as connection:
        connection.execute("create table shop.ticks (number int primary key)")
    await _go_through_restarts(
        ON_POSTGRES, url=server.url, schema="shop", sleep="select pg_sleep(0.02)", rows=rows,
        restarts=[(server.stop, server.start), (server.kill, server.start)],
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_consumers_on_every_handle_outlive_restarts_of_mariadb() -> None:
    try:
        server = await asyncio.to_thread(lambda: PrivateMariadb(PrivateMariadb.found()).started())
    except ServerMissing as reason:
        missing(MariadbServer(), reason=str(reason), environ=os.environ)
    with closing(server):
        with closing(connected(server.url)) as connection:
            connection.query("create database shop")
        url = f"{server.url}/shop"
        with closing(connected(url)) as connection:
            for statement in build_statements("mysql", names=Names(), since=0):
                connection.query(statement)
            connection.query("create table ticks (number int primary key)")
            connection.commit()
        await _go_through_restarts(
            ON_MARIADB, url=url, schema=None, sleep="do sleep(0.02)", rows=mariadb_rows(url),
            restarts=[(server.stop, server.start), (server.kill, server.start)],
        )  # fmt: skip
