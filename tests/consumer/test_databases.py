"""A consumer keeps its word on every kind of PostgreSQL handle: what commits, what is repeated, what has failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from pillarbox.consumer import Consumer
from pillarbox.names import Names
from pillarbox.receivers.memory import MemoryQueue, MemoryReceiver
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url
from tests.consumer.databases import ON_POSTGRES, Body, handler
from tests.consumer.scene import QUICK, TYPES, Ticked, tick, until
from tests.postgres_server import scratch_schema


class Scene:
    """A consumer for one handler, and a look at its tables from outside."""

    def __init__(self, url: str, schema: str, database: object, *, is_async: bool) -> None:
        self.queue = MemoryQueue()
        self.calls = 0
        self._url, self._schema = url, schema
        self._database = database
        self._is_async = is_async

    async def run(self, body: Body, *, times: int = 1, attempts: int = 3) -> None:
        """Handle a message with it, until the broker has been told so often."""
        consumer = Consumer(
            "clock", receiver=MemoryReceiver(self.queue), database=self._database, schema=self._schema, types=TYPES,
            settings=replace(QUICK, retry=replace(QUICK.retry, attempts=attempts)),
        )  # fmt: skip

        def counted(event: Ticked) -> Generator[str, None, None]:
            self.calls += 1
            return body(event)

        consumer.on(Ticked)(handler(counted, is_async=self._is_async))
        self.queue.put(tick(1, "a"))
        async with consumer:
            await until(lambda: len(self.queue.acknowledged) == times)

    def rows(self, sql: str) -> Sequence[Any]:
        with psycopg.connect(self._url, options=f"-c search_path={self._schema}") as connection:
            return connection.execute(sql.encode()).fetchall()

    def left(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """The handler's rows, and the inbox's."""
        return self.rows("select number from ticks order by number"), self.rows(
            "select status, attempts, duplicates from pillarbox_inbox"
        )


@pytest.fixture(scope="module")
def tables(postgres_url: str) -> Iterator[str]:
    """The schema that they are in."""
    with scratch_schema(postgres_url) as schema:
        asyncio.run(schema_at(store_url(postgres_url), names=Names(schema)).install())
        with psycopg.connect(postgres_url, options=f"-c search_path={schema}") as connection:
            connection.execute("create table ticks (number int primary key)")
        yield schema


@pytest.fixture(params=ON_POSTGRES)
async def scene(request: pytest.FixtureRequest, postgres_url: str, tables: str) -> AsyncIterator[Scene]:
    kind, is_async = ON_POSTGRES[request.param]
    with psycopg.connect(postgres_url, options=f"-c search_path={tables}") as connection:
        connection.execute("truncate ticks, pillarbox_inbox")
    async with kind(postgres_url, tables) as database:
        yield Scene(postgres_url, tables, database, is_async=is_async)


def noted(event: Ticked) -> Generator[str, None, None]:
    yield f"insert into ticks values ({event.number})"


async def test_the_effect_and_the_record_commit_together(scene: Scene) -> None:
    await scene.run(noted)
    assert scene.left() == ([(1,)], [("done", 0, 0)])


async def test_a_duplicate_does_nothing(scene: Scene) -> None:
    scene.queue.put(tick(1, "a"))
    await scene.run(noted, times=2)
    assert scene.left() == ([(1,)], [("done", 0, 1)])
    assert scene.calls == 1


async def test_what_fails_leaves_nothing_behind(scene: Scene) -> None:
    def failing(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        raise ValueError("no")

    await scene.run(failing)
    assert scene.left() == ([], [("failed", 3, 0)])
    assert scene.calls == 3


async def test_an_error_that_the_handler_caught_is_no_commit(scene: Scene) -> None:
    """PostgreSQL would answer COMMIT with a rollback, and nobody would notice."""

    def swallowing(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        try:
            yield "select 1 / 0"
        except Exception:
            return

    await scene.run(swallowing)
    assert scene.left() == ([], [("failed", 3, 0)])


async def test_an_error_behind_a_savepoint_is_none(scene: Scene) -> None:
    def careful(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        yield "savepoint here"
        try:
            yield "select 1 / 0"
        except Exception:
            yield "rollback to savepoint here"

    await scene.run(careful)
    assert scene.left() == ([(1,)], [("done", 0, 0)])


async def test_a_handler_that_ends_the_transaction_has_failed(scene: Scene) -> None:
    def rolling_back(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        yield "rollback"

    await scene.run(rolling_back)
    assert scene.left() == ([], [("failed", 3, 0)])


async def test_a_conflict_repeats_the_transaction_and_spends_nothing(scene: Scene) -> None:
    states = ["40001", "40P01", "55P03"]

    def conflicting(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        if scene.calls <= len(states):
            yield f"do $$ begin raise sqlstate '{states[scene.calls - 1]}'; end $$"

    await scene.run(conflicting, attempts=1)
    assert scene.left() == ([(1,)], [("done", 0, 0)])
    assert scene.calls == 4


async def test_a_connection_that_is_cut_spends_nothing(scene: Scene) -> None:
    def cut(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        if scene.calls < 2:
            yield "select pg_terminate_backend(pg_backend_pid())"

    await scene.run(cut, attempts=1)
    assert scene.left() == ([(1,)], [("done", 0, 0)])
    assert scene.calls == 2
