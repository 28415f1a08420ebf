"""History is walked by id, in windows, and purged from where the last batch ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from pillarbox.contracts.store import Selection
from pillarbox.message import Message, Names, State
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.settings import Retention
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres import history
from pillarbox.stores.postgres.queries import Parameters
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sql import Statements, build_conditions
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry

DAY = timedelta(days=1)
WEEK = 7 * DAY
REPLACED = 2**52 + 5
_CLOSED = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, payload, content_type,
                                   source, correlation_id, event_time, created_at, attempts, status_at, status)
    select i, gen_random_uuid(), 'orders', 7, 'event', 't', 't', '', '', '/', 'c', now(), now() - $2::interval, 0,
           now() - $3::interval, $4
      from unnest($1::bigint[]) i
"""


class Shop:
    """Tables whose history the test writes itself."""

    def __init__(self, connection: Any, names: Names, store: PostgresStore) -> None:
        self.connection = connection
        self.names = names
        self.store = store

    async def close(
        self, ids: Sequence[int], *, written: timedelta, closed: timedelta, state: State = State.DELIVERED
    ) -> None:
        """Put messages of these ids into history that were written and closed so long ago."""
        await self.connection.execute(self.names.qualify(_CLOSED), ids, written, closed, state.value)

    async def list_ids(self) -> list[int]:
        rows = await self.connection.fetch(self.names.qualify("select id from pillarbox_history order by id"))
        return [row[0] for row in rows]


@pytest.fixture
async def shop(postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    monkeypatch.setattr(history, "_WINDOW", 10)
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    connection: Any = await asyncpg.connect(postgres_url)
    store = PostgresStore(postgres_url, schema=postgres_schema, connections=1)
    await store.open()
    yield Shop(connection, names, store)
    await store.close()
    await connection.close()


async def _purge_all(store: PostgresStore, *, limit: int, state: State = State.DELIVERED) -> list[int]:
    counts = []
    while count := await store.purge(state, older_than=WEEK, limit=limit):
        counts.append(count)
    return counts


async def test_what_was_closed_again_later_does_not_hide_what_is_old_behind_it(shop: Shop) -> None:
    await shop.close(range(1, 31), written=9 * DAY, closed=DAY)
    await shop.close(range(31, 41), written=9 * DAY, closed=8 * DAY)
    await shop.close(range(41, 61), written=DAY, closed=DAY)
    assert await _purge_all(shop.store, limit=4) == [4, 4, 2]
    assert await shop.list_ids() == [*range(1, 31), *range(41, 61)]


async def test_messages_whose_id_replaces_another_are_reached(shop: Shop) -> None:
    await shop.close(range(1, 31), written=DAY, closed=DAY)
    await shop.close(range(REPLACED, REPLACED + 20), written=DAY, closed=DAY)
    await shop.close([REPLACED + 20], written=9 * DAY, closed=8 * DAY)
    assert await _purge_all(shop.store, limit=4) == [1]
    assert await shop.list_ids() == [*range(1, 31), *range(REPLACED, REPLACED + 20)]


async def test_the_walk_ends_where_all_was_written_later(shop: Shop) -> None:
    """Only a row that breaks the rule shows where it ends: closed before it was written, far behind."""
    await shop.close([1], written=9 * DAY, closed=8 * DAY)
    await shop.close(range(2, 102), written=DAY, closed=DAY)
    await shop.close([102], written=DAY, closed=8 * DAY)
    assert await _purge_all(shop.store, limit=4) == [1]
    assert await shop.store.count(Selection(states=[State.DELIVERED], changed_before=datetime.now(UTC) - WEEK)) == 0


async def test_what_became_old_below_the_mark_goes_before_the_purge_ends(shop: Shop) -> None:
    await shop.close(range(10, 20), written=9 * DAY, closed=8 * DAY)
    assert await shop.store.purge(State.DELIVERED, older_than=WEEK, limit=5) == 5
    await shop.close(range(1, 4), written=9 * DAY, closed=8 * DAY)
    assert await _purge_all(shop.store, limit=5) == [5, 3]
    assert await shop.list_ids() == []


async def test_each_age_is_purged_from_its_own_mark(shop: Shop) -> None:
    await shop.close([1], written=9 * DAY, closed=2 * DAY)
    await shop.close([2, 3], written=9 * DAY, closed=8 * DAY)
    assert await shop.store.purge(State.DELIVERED, older_than=WEEK, limit=2) == 2
    assert await shop.store.purge(State.DELIVERED, older_than=DAY, limit=2) == 1


async def test_what_somebody_has_locked_is_left_for_the_next_run(shop: Shop) -> None:
    await shop.close(range(1, 7), written=9 * DAY, closed=8 * DAY)
    async with shop.connection.transaction():
        await shop.connection.execute(
            shop.names.qualify("select from pillarbox_history where id in (1, 2, 4) for update")
        )
        assert await _purge_all(shop.store, limit=2) == [2, 1]
    assert await _purge_all(shop.store, limit=2) == [2, 1]


@pytest.mark.parametrize("state", [State.FAILED, State.SKIPPED, State.DISCARDED])
async def test_every_destination_is_purged_of_what_was_not_delivered(shop: Shop, state: State) -> None:
    await shop.close(range(1, 11), written=9 * DAY, closed=8 * DAY, state=state)
    await shop.close(range(11, 21), written=9 * DAY, closed=DAY, state=state)
    await shop.connection.execute(
        shop.names.qualify("update pillarbox_history set destination = case id % 2 when 0 then 'a' else 'b' end")
    )
    await shop.close([21], written=9 * DAY, closed=8 * DAY)
    assert await _purge_all(shop.store, limit=3, state=state) == [3, 3, 3, 1]
    assert await shop.list_ids() == list(range(11, 22))


async def test_batches_do_not_walk_over_what_earlier_ones_deleted(shop: Shop, postgres_url: str) -> None:
    """While a snapshot is open no deleted row is removed. A batch at the mark reads no more entries all the same."""
    if await shop.connection.fetchval("select current_setting('server_version_num')::integer < 150000"):
        pytest.skip("the server cannot be told to publish its statistics at once")
    await shop.close(range(1, 5_001), written=9 * DAY, closed=8 * DAY)
    reader: Any = await asyncpg.connect(postgres_url)
    entries = []
    try:
        async with reader.transaction(isolation="repeatable_read"):
            await reader.fetchval(shop.names.qualify("select count(*) from pillarbox_history"))
            for _ in range(10):
                before = await _count_entries(shop)
                assert await shop.store.purge(State.DELIVERED, older_than=WEEK, limit=400) == 400
                entries.append(await _count_entries(shop) - before)
    finally:
        await reader.close()
    assert entries[-1] <= entries[0], entries


async def _count_entries(shop: Shop) -> int:
    """Count the index entries of history that scans have read so far, dead ones too."""
    async with shop.store._database.unpinned() as connection:
        await connection.execute("select pg_stat_force_next_flush()")
    entries: int = await shop.connection.fetchval(
        "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where schemaname = $1 and relname like '%history%'",
        shop.names.schema,
    )
    return entries


async def test_old_messages_are_found_and_counted_window_by_window(shop: Shop) -> None:
    await shop.close(range(1, 31), written=9 * DAY, closed=DAY)
    await shop.close(range(31, 61), written=9 * DAY, closed=8 * DAY)
    await shop.close(range(61, 101), written=DAY, closed=DAY)
    old = Selection(states=[State.DELIVERED, State.FAILED], changed_before=datetime.now(UTC) - WEEK)
    assert [message.id for message in await shop.store.find(old, limit=100)] == list(range(31, 61))
    assert [message.id for message in await shop.store.find(old, limit=12)] == list(range(31, 43))
    assert await shop.store.count(old) == 30


async def test_an_archive_receives_everything_once(shop: Shop) -> None:
    await shop.close(range(1, 31), written=9 * DAY, closed=DAY)
    await shop.close(range(31, 61), written=9 * DAY, closed=8 * DAY)
    taken: list[int] = []

    async def take(messages: Sequence[Message]) -> None:
        taken.extend(message.id for message in messages)

    retention = Retention(delivered=WEEK, batch=7)
    await Janitor(shop.store, retention=retention, telemetry=Telemetry(), archive=take).run_once()
    assert taken == list(range(31, 61))
    assert await shop.list_ids() == list(range(1, 31))


@pytest.mark.parametrize(
    ("statement", "values", "selection"),
    [
        ("reopen", (["failed"], True, None, 10, "redriven", "ann", None, None), Selection(message_ids=[uuid4()])),
        (
            "reopen",
            (["failed", "discarded"], True, None, 10, "redriven", "ann", None, None),
            Selection(destination="orders"),
        ),
        ("discard", (["failed"], "wrong", "ann", 10, None, []), Selection(message_ids=[uuid4()])),
        ("find_closed", (10, "failed"), Selection(message_ids=[uuid4()])),
        ("find_closed", (10, "failed"), Selection(correlation_id="nobody")),
        ("count_closed", (["failed"],), Selection(destination="orders")),
    ],
)
async def test_what_was_not_delivered_is_found_without_a_walk_through_the_rest(
    shop: Shop, postgres_url: str, statement: str, values: tuple[object, ...], selection: Selection
) -> None:
    await open_schema(parse_store_url(postgres_url), names=shop.names).change_lookups(wanted=False)
    await shop.close(range(1, 20_001), written=DAY, closed=DAY)
    await shop.close(range(20_001, 20_051), written=DAY, closed=DAY, state=State.FAILED)
    await shop.connection.execute(shop.names.qualify("vacuum analyze pillarbox_history"))
    parameters = Parameters(values)
    where = build_conditions(selection, parameters)
    sql = Statements("pillarbox.stores.postgres", shop.names).fill(statement, where)
    plan = "\n".join(row[0] for row in await shop.connection.fetch(f"explain {sql}", *parameters.values))
    indexes = ("pillarbox_history_p0_ended_idx", "pillarbox_history_p0_failed_idx")
    assert any(index in plan for index in indexes), plan
    assert "Seq Scan on pillarbox_history_p0 " not in plan, plan  # the other partitions are empty
