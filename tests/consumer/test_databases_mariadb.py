"""A consumer keeps its word on every kind of MariaDB handle: what commits, what is repeated, what has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
from pymysql.constants.COMMAND import COM_QUERY

from pillarbox.message import Names
from pillarbox.stores.migrations import build_statements
from tests.consumer.test_databases import (  # noqa: F401 - they run here once more
    test_a_conflict_repeats_the_transaction_and_spends_nothing,
    test_a_connection_that_is_cut_spends_nothing,
    test_a_duplicate_does_nothing,
    test_a_message_that_always_loses_its_connection_is_kept_in_the_end,
    test_errors_with_text_that_no_database_stores_free_their_slots,
    test_the_effect_and_the_record_commit_together,
    test_what_fails_leaves_nothing_behind,
)
from tests.support.consumer.databases import ON_MARIADB, MariadbScene, Scene, noted
from tests.support.consumer.scene import Ticked
from tests.support.granted import Logins
from tests.support.mariadb_server import connected, scratch_mariadb


@pytest.fixture(scope="module")
def tables(mariadb_server: str) -> Iterator[str]:
    """The URL of the database that they are in."""
    with scratch_mariadb(mariadb_server) as url:
        with closing(connected(url)) as connection:
            for statement in build_statements("mysql", names=Names(), since=0):
                connection.query(statement)
            connection.query("create table ticks (number int primary key)")
            connection.query("create table rivals (id int primary key, number int)")
            connection.query("insert into rivals values (1, 0), (2, 0)")
            connection.commit()
        yield url


@pytest.fixture(scope="module")
def consumer_url(mariadb_logins: Logins, tables: str) -> str:
    """The database as a consumer may use it, with the rights on the application's tables that its handlers need."""
    mariadb_logins.run(
        "consumer", tables,
        "grant select, insert on ticks to {login}",
        "grant select, update on rivals to {login}",
        "grant create on other to {login}",
    )  # fmt: skip
    return mariadb_logins.url_as("consumer", tables, Names())


@pytest.fixture(params=ON_MARIADB)
async def scene(request: pytest.FixtureRequest, consumer_url: str, tables: str) -> AsyncIterator[Scene]:
    kind, is_async = ON_MARIADB[request.param]
    with closing(connected(tables)) as connection:
        connection.query("delete from ticks")
        connection.query("delete from pillarbox_inbox")
        connection.commit()
    async with kind(consumer_url, "") as database:
        yield MariadbScene(database, rows=partial(_rows, tables), names=Names(), is_async=is_async)


def _rows(url: str, sql: str) -> Sequence[Any]:
    with closing(connected(url)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


async def test_a_statement_that_failed_and_was_caught_costs_only_itself(scene: Scene) -> None:
    """Unlike PostgreSQL, MariaDB goes on with the transaction."""

    def careful(event: Ticked) -> Generator[str, None, None]:
        yield from noted(event)
        with suppress(Exception):
            yield from noted(event)
        yield "do 1"

    await scene.run(careful)
    assert scene.left() == ([(1,)], [("done", 0, 0)])


@pytest.mark.parametrize("ending", ["rollback", "commit", "create table if not exists other (id int)"])
async def test_a_handler_that_ends_the_transaction_has_failed(scene: Scene, ending: str) -> None:
    """Also by a statement that commits on its own; whatever came after it would be a transaction of its own."""

    def ends(event: Ticked) -> Generator[str, None, None]:
        yield ending
        yield from noted(event)

    await scene.run(ends, attempts=1)
    effects, _ = scene.left()
    assert effects == []


async def test_a_deadlock_that_the_handler_caught_is_no_commit(scene: Scene, tables: str) -> None:
    """MariaDB has rolled back everything, the record of the inbox too, and would go on in a new transaction.

    The rival changed more rows, so it is the one that survives.
    """
    rival = connected(tables)
    rival.query("update rivals set number = number + 1 where id = 2")
    rival.query(f"insert into rivals values {', '.join(f'({number}, 0)' for number in range(10, 500))}")

    def swallowing(event: Ticked) -> Generator[str, None, None]:
        yield "update rivals set number = number + 1 where id = 1"
        rival._execute_command(COM_QUERY, "update rivals set number = number + 1 where id = 1")  # and not waited for
        with suppress(Exception):
            yield "update rivals set number = number + 1 where id = 2"
        yield from noted(event)

    with closing(rival):
        await scene.run(swallowing, attempts=1)
    assert scene.left() == ([], [("failed", 1, 0)])


@pytest.mark.parametrize("share", [0.6, 1.1])
async def test_a_large_message_that_cannot_be_read_is_kept_with_what_the_server_takes(
    scene: Scene, share: float
) -> None:
    """In hexadecimal digits even the smaller one is more than the server takes at once."""
    ((packet,),) = scene.rows("select @@max_allowed_packet")
    body = b"{" * int(packet * share)
    scene.queue.put_raw({"content-type": "application/cloudevents+json"}, body)
    await scene.run(noted, times=2)
    ((size, error),) = scene.rows("select length(message), last_error from pillarbox_inbox where status = 'failed'")
    if share < 1:
        assert size > len(body)
    else:
        assert size is None
        assert f"max_allowed_packet is {packet}" in error
