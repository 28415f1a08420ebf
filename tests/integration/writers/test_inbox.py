"""A consumer handles each message once, whatever comes twice, at once, or after a failure."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from pillarbox.errors import ConfigError, DecodeError
from pillarbox.inbox import Inbox
from tests.support.mariadb_server import connected
from tests.support.writers.handles import Handle, insert, resolve, undo
from tests.support.writers.kinds import KINDS
from tests.support.writers.places import (
    MariadbPlace,
    Place,
    PostgresPlace,
    SqlitePlace,
    batch,
    message,
    orders,
    subjects,
)


@dataclass(frozen=True)
class CloudEvent:
    source: str = "/shop"
    id: str = "e-1"


@pytest.fixture
def inbox(place: Place) -> Inbox:
    return Inbox("billing", schema=place.names.schema)


async def accept(inbox: Inbox, handle: Handle, event: Any) -> bool:
    return bool(await resolve(inbox.accept(handle.tx, event)))


def seen(place: Place) -> list[tuple[Any, ...]]:
    sql = "select consumer, source, message_id, status, duplicates from pillarbox_inbox order by consumer, message_id"
    return [tuple(map(_text, row.values())) for row in place.query(sql)]


def _text(value: Any) -> Any:
    """MariaDB keeps identities as bytes."""
    return value.decode() if isinstance(value, bytes) else value


async def test_new_once_then_known(handle: Handle, place: Place, inbox: Inbox) -> None:
    answers = []
    for _ in range(3):
        await handle.begin()
        answers.append(await accept(inbox, handle, CloudEvent()))
        await handle.commit()
    assert answers == [True, False, False]
    assert seen(place) == [("billing", "/shop", "e-1", "done", 2)]


async def test_known_within_one_transaction_too(handle: Handle, place: Place, inbox: Inbox) -> None:
    await handle.begin()
    assert await accept(inbox, handle, CloudEvent())
    assert not await accept(inbox, handle, CloudEvent())
    await handle.commit()
    assert seen(place) == [("billing", "/shop", "e-1", "done", 1)]


async def test_consumer_source_and_id_tell_messages_apart(handle: Handle, place: Place, inbox: Inbox) -> None:
    other = Inbox("mail", schema=place.names.schema)
    await handle.begin()
    assert await accept(inbox, handle, CloudEvent())
    assert await accept(other, handle, CloudEvent())
    assert await accept(inbox, handle, CloudEvent(id="e-2"))
    assert await accept(inbox, handle, CloudEvent(source="/stock"))
    await handle.commit()
    assert len(seen(place)) == 4


async def test_effect_record_and_messages_share_their_fate(handle: Handle, place: Place, inbox: Inbox) -> None:
    for number, ends in enumerate((handle.rollback, handle.commit)):
        await handle.begin()
        assert await accept(inbox, handle, CloudEvent())
        await handle.order(number)
        await insert(handle, batch(place, str(number)))
        await ends()
    assert (orders(place), subjects(place)) == ([1], ["1"])
    assert seen(place) == [("billing", "/shop", "e-1", "done", 0)]


async def test_savepoint_takes_the_record_back(handle: Handle, place: Place, inbox: Inbox) -> None:
    await handle.begin()
    await handle.order(1)
    await handle.flush_written()
    async with handle.savepoint():
        assert await accept(inbox, handle, CloudEvent())
        undo()
    assert await accept(inbox, handle, CloudEvent())
    await handle.commit()


@pytest.mark.parametrize("status", ["started", "failed"])
async def test_unfinished_is_taken_over(handle: Handle, place: Place, inbox: Inbox, status: str) -> None:
    _write(
        place,
        "insert into pillarbox_inbox (consumer, source, message_id, status, attempts) "
        f"values ('billing', '/shop', 'e-1', '{status}', 3)",
    )
    await handle.begin()
    assert await accept(inbox, handle, CloudEvent())
    assert not await accept(inbox, handle, CloudEvent())
    await handle.commit()
    assert seen(place) == [("billing", "/shop", "e-1", "done", 1)]
    (row,) = place.query("select attempts, status_at >= created_at as later from pillarbox_inbox")
    assert (row["attempts"], bool(row["later"])) == (3, True)


async def test_our_own_messages_are_known_by_message_id(handle: Handle, place: Place, inbox: Inbox) -> None:
    sent = message()
    await handle.begin()
    assert await accept(inbox, handle, sent)
    await handle.commit()
    assert seen(place) == [("billing", "/shop", str(sent.message_id), "done", 0)]


async def test_forgetting_keeps_the_window_and_what_failed(handle: Handle, place: Place, inbox: Inbox) -> None:
    """Records of two hours ago: done, started, failed, redriven, and one of another consumer; and one done just now."""
    old, new = [CloudEvent(id=f"e-{number}") for number in range(4)], CloudEvent(id="new")
    await handle.begin()
    await accept(inbox, handle, old[0])
    await accept(Inbox("mail", schema=place.names.schema), handle, CloudEvent(id="mail"))
    await resolve(inbox.start(handle.tx, old[1]))
    for event in old[2:]:
        await resolve(inbox.fail(handle.tx, event, error="no", attempts=3, content=b"x"))
    await resolve(inbox.start(handle.tx, old[3]))
    await handle.commit()
    hours = "interval '2 hours'" if isinstance(place, PostgresPlace) else str(2 * 3600 * 1_000_000)
    _write(place, f"update pillarbox_inbox set status_at = status_at - {hours}")
    await handle.begin()
    await accept(inbox, handle, new)
    assert await resolve(inbox.forget(handle.tx, older_than=timedelta(hours=3))) == 0
    forever = timedelta.max
    assert await resolve(inbox.forget(handle.tx, older_than=forever, failed_older_than=forever)) == 0
    assert await resolve(inbox.forget(handle.tx, older_than=timedelta(hours=1))) == 2
    assert not await accept(inbox, handle, new)
    await handle.commit()
    assert {row[2] for row in seen(place)} == {"e-2", "e-3", "new", "mail"}
    await handle.begin()
    hour = timedelta(hours=1)
    assert await resolve(inbox.forget(handle.tx, older_than=hour, failed_older_than=3 * hour)) == 0
    assert await resolve(inbox.forget(handle.tx, older_than=hour, failed_older_than=hour)) == 2
    await handle.commit()


async def test_what_is_done_does_not_fail_any_more(handle: Handle, place: Place, inbox: Inbox) -> None:
    """Another process handled it meanwhile: its effect is there."""
    await handle.begin()
    await accept(inbox, handle, CloudEvent())
    await resolve(inbox.fail(handle.tx, CloudEvent(), error="no", attempts=3, content=b"x"))
    await handle.commit()
    assert [row[3] for row in seen(place)] == ["done"]


async def test_a_failed_message_that_comes_again_is_counted_afresh(handle: Handle, place: Place, inbox: Inbox) -> None:
    await handle.begin()
    await resolve(inbox.fail(handle.tx, CloudEvent(), error="no", attempts=3, content=b"x"))
    assert [await resolve(inbox.start(handle.tx, CloudEvent())) for _ in range(2)] == [1, 2]
    await handle.commit()


async def test_new_message_is_one_statement(handle: Handle, place: Place, inbox: Inbox) -> None:
    await handle.begin()
    async with handle.statements() as statements:
        assert await accept(inbox, handle, CloudEvent())
    await handle.commit()
    assert len(statements) == 1, statements


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_concurrent_duplicate_waits_and_takes_over(place: Place, kind: str, inbox: Inbox, ends: str) -> None:
    """The second is given the answer only when the first has ended."""
    first, second = KINDS[kind][1](), _Elsewhere(place, inbox)
    await first.open(place)
    await first.begin()
    assert await accept(inbox, first, CloudEvent())
    second.start()
    await asyncio.to_thread(second.waits)
    await getattr(first, ends)()
    await first.close()
    await asyncio.to_thread(second.join, 60)
    assert second.answer is (ends == "rollback")
    assert seen(place) == [("billing", "/shop", "e-1", "done", 0 if ends == "rollback" else 1)]


class _Elsewhere(threading.Thread):
    """Another consumer process, played by a thread with a plain connection."""

    answer: bool | None = None
    number: int
    """MariaDB's for its connection."""

    def __init__(self, place: Place, inbox: Inbox) -> None:
        super().__init__(daemon=True)
        self.place, self.inbox = place, inbox
        self.begun = threading.Event()

    def run(self) -> None:
        if isinstance(self.place, PostgresPlace):
            connection: Any = psycopg.connect(self.place.url, application_name="elsewhere")
        elif isinstance(self.place, MariadbPlace):
            connection = connected(self.place.url)
            self.number = connection.thread_id()
        else:
            assert isinstance(self.place, SqlitePlace)
            connection = sqlite3.connect(self.place.path, timeout=60)
        with closing(connection):
            self.begun.set()
            self.answer = self.inbox.accept(connection, CloudEvent())
            connection.commit()

    def waits(self) -> None:
        """Until the database says that it waits; on SQLite, which cannot tell, until it has begun and not ended."""
        assert self.begun.wait(60)
        while not isinstance(self.place, SqlitePlace) and not self.place.query(self._blocked()):
            assert self.is_alive()
            time.sleep(0.15)  # asked more often than that, MariaDB repeats its last answer
        self.join(0.1)
        assert self.answer is None

    def _blocked(self) -> str:
        if isinstance(self.place, PostgresPlace):
            return "select 1 from pg_stat_activity where application_name = 'elsewhere' and wait_event_type = 'Lock'"
        waiting = "trx_state = 'LOCK WAIT'"
        return f"select 1 from information_schema.innodb_trx where trx_mysql_thread_id = {self.number} and {waiting}"


async def test_pipeline_of_psycopg(postgres_place: PostgresPlace) -> None:
    inbox = Inbox("billing", schema=postgres_place.names.schema)
    with psycopg.connect(postgres_place.url) as connection, connection.pipeline():
        assert inbox.accept(connection, CloudEvent()) is True
        assert inbox.accept(connection, CloudEvent()) is False
    async with await psycopg.AsyncConnection.connect(postgres_place.url) as other, other.pipeline():
        assert await inbox.accept(other, CloudEvent()) is False
        assert await inbox.accept(other, CloudEvent(id="e-2")) is True
    assert seen(postgres_place) == [("billing", "/shop", "e-1", "done", 2), ("billing", "/shop", "e-2", "done", 0)]


async def test_other_transaction_wins_under_repeatable_read(postgres_place: PostgresPlace) -> None:
    """A snapshot that is too old is an error to be repeated, not a second handling."""
    inbox = Inbox("billing", schema=postgres_place.names.schema)
    late = await asyncpg.connect(postgres_place.url)
    transaction = late.transaction(isolation="repeatable_read")
    await transaction.start()
    await late.fetch("select 1 from pg_class limit 1")
    with psycopg.connect(postgres_place.url) as first:
        assert inbox.accept(first, CloudEvent())
    with pytest.raises(asyncpg.SerializationError):
        await inbox.accept(late, CloudEvent())
    await transaction.rollback()
    await late.close()
    assert seen(postgres_place) == [("billing", "/shop", "e-1", "done", 0)]


@pytest.mark.parametrize("nameless", [object(), CloudEvent(source=""), CloudEvent(id="")])
async def test_message_without_identity_is_refused(sqlite_place: SqlitePlace, nameless: Any) -> None:
    with closing(sqlite3.connect(sqlite_place.path)) as connection, pytest.raises(DecodeError, match="source"):
        Inbox("billing").accept(connection, nameless)


def test_consumer_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="consumer"):
        Inbox("")


def _write(place: Place, sql: str) -> None:
    if isinstance(place, PostgresPlace):
        with psycopg.connect(place.url) as connection:
            connection.execute(place.names.qualify(sql).encode())
        return
    if isinstance(place, MariadbPlace):
        with closing(connected(place.url)) as maria, maria.cursor() as cursor:
            cursor.execute(place.names.qualify(sql, quote="`"))
            maria.commit()
        return
    assert isinstance(place, SqlitePlace)
    with closing(sqlite3.connect(place.path)) as lite:
        lite.execute(place.names.qualify(sql))
        lite.commit()
