"""A consumer keeps its word on every kind of PostgreSQL handle: what commits, what is repeated, what has failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.consumer.databases import ON_POSTGRES, PostgresScene, Scene, noted
from tests.support.consumer.scene import QUICK, Ticked, tick
from tests.support.granted import Logins
from tests.support.postgres_server import scratch_schema


@pytest.fixture(scope="module")
def tables(postgres_url: str) -> Iterator[str]:
    """The schema that they are in."""
    with scratch_schema(postgres_url) as schema:
        asyncio.run(open_schema(parse_store_url(postgres_url), names=Names(schema)).install())
        with psycopg.connect(postgres_url, options=f"-c search_path={schema}") as connection:
            connection.execute("create table ticks (number int primary key)")
        yield schema


@pytest.fixture(scope="module")
def consumer_url(postgres_url: str, postgres_logins: Logins, tables: str) -> str:
    """The database as a consumer may use it, with the rights on the application's table that its handlers need."""
    postgres_logins.run("consumer", postgres_url, f'grant select, insert on "{tables}".ticks to {{login}}')
    return postgres_logins.url_as("consumer", postgres_url, Names(tables))


@pytest.fixture(params=ON_POSTGRES)
async def scene(
    request: pytest.FixtureRequest, postgres_url: str, consumer_url: str, tables: str
) -> AsyncIterator[Scene]:
    kind, is_async = ON_POSTGRES[request.param]
    with psycopg.connect(postgres_url, options=f"-c search_path={tables}") as connection:
        connection.execute("truncate ticks, pillarbox_inbox")
    async with kind(consumer_url, tables) as database:
        yield PostgresScene(database, rows=partial(_rows, postgres_url, tables), names=Names(tables), is_async=is_async)


def _rows(url: str, schema: str, sql: str) -> Sequence[Any]:
    with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
        return connection.execute(sql.encode()).fetchall()


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
    def conflicting(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        if scene.calls <= len(scene.conflicts):
            yield scene.conflicts[scene.calls - 1]

    await scene.run(conflicting, attempts=1)
    assert scene.left() == ([(1,)], [("done", 0, 0)])
    assert scene.calls == 4


async def test_a_connection_that_is_cut_spends_nothing(scene: Scene) -> None:
    def cut(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        if scene.calls < 2:
            yield scene.cut

    await scene.run(cut, attempts=1)
    assert scene.left() == ([(1,)], [("done", 0, 0)])
    assert scene.calls == 2


# --- what one message could stop ---


async def test_errors_with_text_that_no_database_stores_free_their_slots(scene: Scene) -> None:
    """More of them than the consumer has slots, before one that can be handled."""
    bad = b'{"specversion": "1.0", "id": "%d", "source": "/x", "type": "tick", "a\\u0000b\\ud800": 1}'
    for number in range(QUICK.concurrency):
        scene.queue.put_raw({"content-type": "application/cloudevents+json"}, bad % number)

    def failing(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        raise ValueError("no \0 such \ud800 thing")

    scene.queue.put(tick(2, "a", payload=b'{"number": "\\u0000"}'))
    await scene.run(failing, times=QUICK.concurrency + 2)
    assert {row[0] for row in scene.left()[1]} == {"failed"}
    (error,) = scene.rows("select last_error from pillarbox_inbox where attempts = 3")
    assert error[0] == "ValueError: no such thing"


async def test_a_message_that_always_loses_its_connection_is_kept_in_the_end(scene: Scene) -> None:
    """The database answers all others, so it is no outage."""

    def cut(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        yield scene.cut

    await scene.run(cut, attempts=1)
    assert scene.left() == ([], [("failed", 1, 0)])
    assert scene.calls == 6
