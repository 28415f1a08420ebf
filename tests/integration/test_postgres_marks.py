"""Marks of lanes without messages: a read that walked their dead rows once must not do so again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from pillarbox.contracts.store import Cursor, IdleLanes
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.samples import sample_relay
from tests.support.relay_behaviour.scene import until

LANES = list(range(64))
LEASE = timedelta(minutes=5)
INSERT = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, payload, content_type, source,
                                  correlation_id, event_time)
    select gen_random_uuid(), 'orders', $2::integer, 'event', 't', 't', '', 'text/plain', '/', 'c', now()
      from generate_series(1, $1::integer)"""


@pytest.fixture
async def names(postgres_url: str, postgres_schema: str) -> Names:
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    return names


@pytest.fixture
async def store(postgres_url: str, names: Names) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, schema=names.schema)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def admin(postgres_url: str, names: Names) -> AsyncIterator[Any]:
    connection: Any = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f'set search_path = "{names.schema}"')
        yield connection
    finally:
        await connection.close()


async def read(store: PostgresStore, cursor: Cursor | None, *lanes: int) -> tuple[list[int], Cursor]:
    result = await store.read("orders", partitions=lanes or LANES, cursor=cursor, limit=100)
    return [message.id for message in result.messages], result.cursor


async def test_an_empty_lane_has_the_mark_of_the_others(store: PostgresStore, admin: Any) -> None:
    await admin.execute(INSERT, 500, 3)
    await admin.execute("delete from pillarbox_outbox where id < 500")
    ids, cursor = await read(store, None)
    assert ids == [500]
    assert set(cursor.low.values()) == {500}
    _, again = await read(store, cursor.restart([7]))
    assert again.low[7] == 500


async def test_lanes_that_are_all_empty_have_the_mark_of_the_last_id(store: PostgresStore, admin: Any) -> None:
    await admin.execute(INSERT, 500, 3)
    await admin.execute("delete from pillarbox_outbox")
    ids, cursor = await read(store, None)
    assert ids == []
    assert set(cursor.low.values()) == {500}


async def test_a_lane_that_was_cut_off_keeps_its_own_mark(store: PostgresStore, admin: Any) -> None:
    await admin.execute(INSERT, 300, 3)
    await admin.execute(INSERT, 1, 9)
    ids, cursor = await read(store, None, 3, 9)
    assert ids == [*range(1, 51), 301]
    assert cursor.low == {3: 50, 9: 301}
    ids, cursor = await read(store, cursor, 3, 9)
    assert ids == list(range(51, 101))


async def test_nothing_is_passed_over_below_a_mark_that_was_raised(
    store: PostgresStore, admin: Any, postgres_url: str, names: Names
) -> None:
    """Ids below the mark that are committed later come late, whenever their transaction began."""
    older: Any = await asyncpg.connect(postgres_url)
    younger: Any = await asyncpg.connect(postgres_url)
    try:
        for one in (older, younger):
            await one.execute(f'set search_path = "{names.schema}"; begin')
        await older.execute(INSERT, 1, 20)  # id 1, in a lane that is empty for all others
        await admin.execute(INSERT, 100, 3)
        await younger.execute(INSERT, 1, 21)  # id 102
        await admin.execute(INSERT, 1, 3)  # id 103
        await admin.execute("delete from pillarbox_outbox where partition = 3 and id < 103")
        ids, cursor = await read(store, None)
        assert ids == [103]
        assert cursor.low[20] == cursor.low[21] == 103
        await older.execute("commit")
        ids, cursor = await read(store, cursor)
        assert ids == [1]
        await younger.execute("commit")
        ids, cursor = await read(store, cursor)
        assert ids == [102]
    finally:
        await older.close()
        await younger.close()


# --- marks that outlive a connection ---


async def own(store: PostgresStore) -> UUID:
    relay = sample_relay()
    await store.register(relay, lease=LEASE)
    await store.take(relay.relay_id, "orders", partitions=LANES, lease=LEASE, claim_number=1)
    return relay.relay_id


async def mark(store: PostgresStore, relay_id: UUID, admin: Any, last_id: int) -> None:
    """Mark lanes until one has this mark: transactions of others on the server may be under way for a while."""

    async def is_marked() -> bool:
        await store.mark_lanes(relay_id)
        return last_id in await list_done(admin)

    await until(is_marked)


async def list_done(admin: Any) -> set[int]:
    return {row[0] for row in await admin.fetch("select done_to from pillarbox_lane")}


async def test_the_first_read_of_a_lane_begins_where_it_is_done_with(store: PostgresStore, admin: Any) -> None:
    relay_id = await own(store)
    await admin.execute(INSERT, 2_000, 3)
    await admin.execute("delete from pillarbox_outbox where id < 2000")
    await read(store, None)
    await admin.execute("delete from pillarbox_outbox")
    await store.mark_lanes(relay_id)
    assert await list_done(admin) == {0}, "a transaction of that time may still run"
    await mark(store, relay_id, admin, 2_000)
    assert await list_done(admin) == {2_000}
    await admin.execute(INSERT, 1, 3)
    ids, cursor = await read(store, None)
    assert ids == [2_001]
    # As it would be if a mark were wrong: the first read does not see it, and the safety net does.
    await admin.execute("update pillarbox_lane set done_to = 2001, done_tx = pg_current_xact_id()")
    assert (await read(store, None))[0] == []
    assert (await read(store, cursor.restart((), whole=[3])))[0] == [2_001]


async def test_no_mark_passes_a_message_that_is_fresh(store: PostgresStore, admin: Any) -> None:
    relay_id = await own(store)
    await admin.execute(INSERT, 2_000, 3)
    await admin.execute("delete from pillarbox_outbox where id not in (1, 2000)")
    await read(store, None)
    await mark(store, relay_id, admin, 2_000)
    marks = dict(await admin.fetch("select partition, done_to from pillarbox_lane"))
    assert marks.pop(3) == 0
    assert set(marks.values()) == {2_000}
    assert (await read(store, None))[0] == [1, 2_000]


async def test_a_lane_with_a_backlog_is_marked_up_to_it(store: PostgresStore, admin: Any) -> None:
    """A relay that starts over a million messages need not walk those that were delivered before."""
    relay_id = await own(store)
    await admin.execute(INSERT, 3_000, 3)
    await admin.execute("delete from pillarbox_outbox where id < 1500")
    await read(store, None)
    await mark(store, relay_id, admin, 1_499)
    marks = dict(await admin.fetch("select partition, done_to from pillarbox_lane"))
    assert marks.pop(3) == 1_499
    assert len(set(marks.values())) == 1, "the others have nothing fresh"
    assert (await read(store, None))[0][:2] == [1_500, 1_501]


@pytest.mark.parametrize("younger", [False, True])
async def test_no_mark_passes_what_may_still_be_committed(
    store: PostgresStore, admin: Any, postgres_url: str, names: Names, younger: bool
) -> None:
    relay_id = await own(store)
    settings = {"search_path": str(names.schema)}
    slow: Any = await asyncpg.connect(postgres_url, server_settings=settings)
    first: Any = await asyncpg.connect(postgres_url, server_settings=settings)
    try:
        for one in (slow, first):
            await one.execute("begin; select pg_current_xact_id()")
        if younger:  # its transaction is above the end of any snapshot that is taken before another one ends
            await slow.execute("rollback; begin; select pg_current_xact_id()")
        await slow.execute(INSERT, 1, 9)  # id 1
        await first.execute(INSERT, 2_000, 3)
        await first.execute("commit")
        await admin.execute("delete from pillarbox_outbox where partition = 3 and id < 2001")
        assert (await read(store, None))[0] == [2_001]
        await admin.execute("delete from pillarbox_outbox where partition = 3")
        for _ in range(3):
            await store.mark_lanes(relay_id)
        assert await list_done(admin) == {0}
        await slow.execute("commit")
        await store.mark_lanes(relay_id)
        assert (await read(store, None))[0] == [1]
    finally:
        await slow.close()
        await first.close()


async def test_what_is_read_while_the_server_is_asked_is_of_the_same_server(
    store: PostgresStore, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readers go on beside the janitor: ids above the last one that it was told do not mean that ids went back."""
    relay_id = await own(store)
    quick = store._database.quick
    async with quick():  # the second connection is there: a new one would begin everything anew
        _, cursor = await read(store, None)

    async def write_and_read() -> None:
        monkeypatch.undo()
        await admin.execute(INSERT, 5, 3)
        assert (await read(store, cursor))[0] == [1, 2, 3, 4, 5]

    @asynccontextmanager
    async def lend() -> AsyncIterator[Any]:
        async with quick() as connection:
            yield _Interrupted(connection, write_and_read)

    monkeypatch.setattr(store._database, "quick", lend)
    await store.mark_lanes(relay_id)
    assert store._database.session is cursor.session


class _Interrupted:
    """Connection that does something else after the answer to a statement, before it returns it."""

    def __init__(self, connection: Any, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self._meanwhile = meanwhile

    async def fetchrow(self, *arguments: object) -> object:
        row: object = await self._connection.fetchrow(*arguments)
        await self._meanwhile()
        return row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_marks_of_another_server_do_not_count(store: PostgresStore, admin: Any) -> None:
    """After a restore into a new server, transactions and ids may have gone back."""
    await own(store)
    await admin.execute(INSERT, 1, 3)
    await admin.execute("update pillarbox_lane set done_to = 3000, done_tx = '9000000000000'")
    assert (await read(store, None))[0] == [1]


async def test_a_mark_above_the_sequence_is_ignored_and_removed(
    store: PostgresStore, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A switch by logical replication copies the marks, and not the sequence."""
    await own(store)
    await admin.execute(INSERT, 300, 3)
    await admin.execute("delete from pillarbox_outbox")
    await admin.execute("update pillarbox_lane set done_to = 1600, done_tx = pg_current_xact_id()")
    await admin.execute(INSERT, 2, 3)
    assert (await read(store, None))[0] == [301, 302]
    assert await list_done(admin) == {0}, "or it would count once the sequence has passed it"
    assert "the sequence went back" in caplog.text


async def test_a_mark_that_the_sequence_has_passed_again_is_ignored_and_removed(
    store: PostgresStore, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Writers went on for a while before the first relay looks. The first message after the mark is below it."""
    await own(store)
    await admin.execute(INSERT, 300, 3)
    await admin.execute("delete from pillarbox_outbox")
    await admin.execute("update pillarbox_lane set done_to = 1600, done_tx = pg_current_xact_id()")
    await admin.execute(INSERT, 1_400, 3)
    assert (await read(store, None))[0][:2] == [301, 302]
    assert await list_done(admin) == {0}
    assert "the sequence went back" in caplog.text


async def test_a_mark_below_later_messages_counts(store: PostgresStore, admin: Any) -> None:
    await own(store)
    await admin.execute(INSERT, 300, 3)
    await admin.execute("delete from pillarbox_outbox")
    await admin.execute("update pillarbox_lane set done_to = 300, done_tx = pg_current_xact_id()")
    await admin.execute(INSERT, 2, 3)
    assert (await read(store, None))[0] == [301, 302]
    assert await list_done(admin) == {300}


async def test_a_mark_above_the_sequence_is_reported(postgres_url: str, names: Names, admin: Any) -> None:
    await admin.execute(INSERT, 300, 3)
    await admin.execute("insert into pillarbox_lane (destination, partition, done_to) values ('orders', 3, 1600)")
    (difference,) = await open_schema(parse_store_url(postgres_url), names=names).verify()
    assert (difference.item, difference.found) == ("counter of ids", "300")
    assert difference.expected == "1600 or higher, as the marks of lanes are"
    store = PostgresStore(postgres_url, schema=names.schema)
    await store.open()
    try:
        findings = [finding for finding in await store.inspect() if finding.code == "postgresql.ids-behind"]
    finally:
        await store.close()
    assert "marked as done with up to 1600" in findings[0].what


@pytest.mark.parametrize("notices", ["read", "peek", "mark"])
async def test_what_was_read_from_a_lost_server_marks_nothing_on_the_next(
    store: PostgresStore, admin: Any, notices: str
) -> None:
    """Behind a pooler the connection stays, and the server behind it is another one, without the last commits."""
    relay_id = await own(store)
    await admin.execute(INSERT, 2_000, 3)
    await admin.execute("delete from pillarbox_outbox where id < 2000")
    _, cursor = await read(store, None)
    await store.mark_lanes(relay_id)
    await admin.execute("delete from pillarbox_outbox")
    await admin.execute("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 300)")
    started_at = await admin.fetchval("select pg_postmaster_start_time() - interval '1 day'")
    if notices != "mark":
        store._database._started_at = started_at  # as if another server had answered before
    if notices == "read":
        await read(store, cursor)
    if notices == "peek":
        await store.peek({"orders": IdleLanes(LANES, cursor)})
    for _ in range(3):
        await store.mark_lanes(relay_id)
    assert await list_done(admin) == {0}
    await admin.execute(INSERT, 2, 3)
    assert (await read(store, None))[0] == [301, 302]


async def test_what_was_read_in_an_earlier_session_marks_nothing_in_the_next(store: PostgresStore, admin: Any) -> None:
    """The next server may have drawn the ids again: an earlier one of them may belong to an open transaction."""
    relay_id = await own(store)
    await admin.execute(INSERT, 2_000, 3)
    await admin.execute("delete from pillarbox_outbox where id < 2000")
    await read(store, None)
    await store.mark_lanes(relay_id)
    await admin.execute("delete from pillarbox_outbox")
    await admin.execute("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 300)")
    store._database.session = object()  # as with a new connection, after a failover
    await admin.execute(INSERT, 1_800, 3)
    await admin.execute("delete from pillarbox_outbox")
    await store.mark_lanes(relay_id)
    assert await list_done(admin) == {0}


async def test_no_mark_is_written_to_another_server_than_was_read(store: PostgresStore, admin: Any) -> None:
    """The server may change between the statement that finds lanes and the one that marks them."""
    await own(store)
    await admin.execute(INSERT, 2_000, 3)
    other = await admin.fetchval("select pg_postmaster_start_time() - interval '1 day'")
    statement, table = store._sql["lanes_mark_done"], store._names.table("outbox")
    mark_one = (["orders"], [3], [2_000], 1)
    async with store._database.quick() as connection:
        await connection.execute(statement, *mark_one, other, table)
        assert await list_done(admin) == {0}
        here = await connection.fetchval("select pg_postmaster_start_time()")
        await connection.execute(statement, ["orders"], [3], [2_001], 1, here, table)
        assert await list_done(admin) == {0}, "no message has that id"
        await connection.execute(statement, *mark_one, here, table)
    assert await list_done(admin) == {0, 2_000}
