"""History is partitioned by id: partitions are added ahead, and dropped when all that is in them has expired."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, cast
from uuid import UUID

import asyncpg
import pytest

from pillarbox.contracts.store import HistoryPartition, Selection
from pillarbox.errors import StoreBusy, StoreForbidden
from pillarbox.message import Message, Names, State
from pillarbox.relay.janitor import Janitor
from pillarbox.relay.settings import Retention
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres import partitions
from pillarbox.stores.postgres.connection import SESSION_SETTINGS
from pillarbox.stores.postgres.grants import build_grants
from pillarbox.stores.postgres.history import Window, leave_out
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sql import Statements
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry
from tests.support.granted import Logins

DAY = timedelta(days=1)
WEEK = 7 * DAY
MILLION = 1_000_000
AGES = {State.DELIVERED: WEEK, State.SKIPPED: WEEK, State.DISCARDED: WEEK}
_CLOSED = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, payload, content_type,
                                   source, correlation_id, event_time, created_at, attempts, status_at, status)
    select i, gen_random_uuid(), 'orders', 7, 'event', 't', 't', '', 'c', '/', 'c', now(), now() - $2::interval, 0,
           now() - $3::interval, $4
      from unnest($1::bigint[]) i
"""
_OPEN = """
    insert into pillarbox_outbox (id, message_id, destination, partition, kind, type, topic, payload, content_type,
                                  source, correlation_id, event_time)
    overriding system value
    select i, gen_random_uuid(), 'orders', 7, 'event', 't', 't', '', 'c', '/', 'c', now() from unnest($1::bigint[]) i
"""


class Shop:
    """Tables whose messages the test writes itself."""

    def __init__(self, connection: Any, names: Names, store: PostgresStore) -> None:
        self.connection = connection
        self.names = names
        self.store = store

    async def run(self, sql: str, *values: object) -> Any:
        return await self.connection.fetchval(self.names.qualify(sql), *values)

    async def close(
        self, ids: Iterable[int], *, written: timedelta, closed: timedelta, state: State = State.DELIVERED
    ) -> None:
        """Put messages of these ids into history that were written and closed so long ago."""
        await self.run(_CLOSED, list(ids), written, closed, state.value)

    async def close_in_full_partition(self, ids: Iterable[int], *, closed: timedelta = 8 * DAY) -> None:
        """Put delivered messages into history, and one into the partition behind theirs, so that it is full."""
        await self.close(ids, written=closed, closed=closed)
        await self.close([3 * MILLION + 1], written=timedelta(), closed=timedelta())

    async def list_ids(self, table: str = "") -> list[int]:
        """List the ids in history, or in one of its partitions."""
        name = self.names.table(f"history{table}")
        return [row[0] for row in await self.connection.fetch(f"select id from {name} order by id")]

    async def list_partitions(self) -> list[str]:
        rows = await self.connection.fetch(
            self.names.qualify(
                "select substr(inhrelid::regclass::text, strpos(inhrelid::regclass::text, 'history_') + 8) "
                "from pg_inherits where inhparent = 'pillarbox_history'::regclass"
            )
        )
        return sorted(row[0] for row in rows)

    async def has_table(self, table: str) -> bool:
        found: bool = await self.connection.fetchval("select to_regclass($1) is not null", self.names.table(table))
        return found

    def janitor(self, store: PostgresStore | None = None, **options: Any) -> Janitor:
        retention = Retention(delivered=WEEK, batch=500)
        return Janitor(store or self.store, retention=retention, telemetry=Telemetry(), **options)


@pytest.fixture(params=["asyncpg", "psycopg"])
async def shop(
    postgres_url: str, postgres_schema: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shop]:
    monkeypatch.setattr(partitions, "_STEP", 40)
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    connection: Any = await asyncpg.connect(postgres_url)
    driver = cast(Literal["asyncpg", "psycopg"], request.param)
    store = PostgresStore(postgres_url, schema=postgres_schema, connections=1, driver=driver)
    await store.open()
    yield Shop(connection, names, store)
    await store.close()
    await connection.close()


OLD = range(2 * MILLION, 2 * MILLION + 100)


# --- drop ---


async def test_an_expired_partition_is_dropped_and_what_must_stay_stays(shop: Shop) -> None:
    failed, young, expired = 2 * MILLION + 200, 2 * MILLION + 201, 2 * MILLION + 202
    await shop.close_in_full_partition(OLD)
    await shop.close([failed], written=8 * DAY, closed=8 * DAY, state=State.FAILED)
    await shop.close([young], written=8 * DAY, closed=DAY)
    await shop.close([expired], written=8 * DAY, closed=8 * DAY, state=State.DISCARDED)
    await shop.run(
        "insert into pillarbox_journal (message_id, destination, action, at, by) "
        "select message_id, destination, 'noted', now(), 'test' from pillarbox_history where id = any($1)",
        [OLD[0], OLD[-1], failed, young],
    )

    assert await shop.janitor().run_once() == len(OLD) + 1

    assert "p2" not in await shop.list_partitions()
    assert not await shop.has_table("history_p2")
    assert await shop.list_ids() == [failed, young, 3 * MILLION + 1]
    assert await shop.list_ids("_default") == [failed, young]
    noted = await shop.run(
        "select count(*) = count(h.id) and count(*) = 2 from pillarbox_journal j "
        "left join pillarbox_history h using (message_id)"
    )
    assert noted is True


async def test_what_must_stay_is_found_in_every_part_of_a_large_partition(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_STEP_IDS", 400_000)
    failed = [2 * MILLION + 200, 2 * MILLION + 500_000, 3 * MILLION - 1]
    await shop.close_in_full_partition(OLD)
    await shop.close(failed, written=8 * DAY, closed=8 * DAY, state=State.FAILED)
    found = await shop.store.find_expired_partition(AGES, after=0)
    assert found is not None
    assert list(found.keep) == failed


async def test_the_messages_of_all_partitions_that_were_dropped_are_counted(shop: Shop) -> None:
    later = range(3 * MILLION, 3 * MILLION + 7)
    await shop.close([*OLD, *later], written=8 * DAY, closed=8 * DAY)
    await shop.close([4 * MILLION + 1], written=timedelta(), closed=timedelta())
    assert await shop.janitor().drop_partitions() == len(OLD) + len(later)
    assert await shop.list_ids() == [4 * MILLION + 1]


async def test_a_partition_whose_messages_are_all_gone_is_dropped(shop: Shop) -> None:
    await shop.close_in_full_partition([])
    assert await shop.janitor().drop_partitions() == 0
    assert {"p0", "p2"}.isdisjoint(await shop.list_partitions())


@pytest.mark.parametrize("closed", [DAY, WEEK - timedelta(minutes=1)])
async def test_a_partition_with_younger_messages_is_not_dropped(shop: Shop, closed: timedelta) -> None:
    await shop.close_in_full_partition(OLD, closed=closed)
    assert await shop.janitor().run_once() == 0
    assert "p2" in await shop.list_partitions()


async def test_a_partition_is_not_dropped_before_all_of_its_ids_are_given(shop: Shop) -> None:
    await shop.close(OLD, written=8 * DAY, closed=8 * DAY)
    assert await shop.store.find_expired_partition(AGES, after=0) is None
    forged = HistoryPartition(number=2, first=0, last=0, cutoffs={})
    assert await shop.store.drop_partition(forged) == 0
    assert await shop.list_ids() == list(OLD)


async def test_messages_that_are_kept_forever_keep_their_partition(shop: Shop) -> None:
    await shop.close_in_full_partition(OLD)
    assert await shop.store.find_expired_partition({State.SKIPPED: WEEK}) is None


async def test_where_many_must_stay_the_others_are_deleted_row_by_row(shop: Shop) -> None:
    kept = range(2 * MILLION + 1_000, 2 * MILLION + 2_100)
    await shop.close_in_full_partition(OLD)
    await shop.close(kept, written=8 * DAY, closed=8 * DAY, state=State.FAILED)
    assert await shop.janitor().drop_partitions() == 0
    # What is overdue by more than a tenth of the retention does not wait for its partition.
    await shop.run("update pillarbox_history set created_at = created_at - interval '3 days'")
    assert await shop.janitor().run_once() == len(OLD)
    assert await shop.list_ids("_p2") == list(kept)


async def test_where_many_messages_are_open_their_partition_stays_for_them(shop: Shop) -> None:
    await shop.close_in_full_partition(OLD)
    await shop.run(_OPEN, list(range(2 * MILLION + 1_000, 2 * MILLION + 2_100)))
    assert await shop.store.find_expired_partition(AGES, after=0) is None


async def test_a_message_that_is_closed_between_the_look_and_the_drop_stays(shop: Shop) -> None:
    await shop.close_in_full_partition(OLD)
    partition = await shop.store.find_expired_partition(AGES, after=0)
    assert partition is not None
    assert partition.keep == []
    await shop.run("update pillarbox_history set status_at = now() where id = $1", OLD[50])
    await shop.close([OLD[-1] + 1], written=8 * DAY, closed=timedelta())

    assert await shop.store.drop_partition(partition) == len(OLD) - 1

    assert await shop.list_ids("_default") == [OLD[50], OLD[-1] + 1]


async def test_a_drop_that_was_interrupted_is_finished_with_its_own_times(shop: Shop) -> None:
    """A message that was closed after the archive had looked must not go, however long it took to come back."""
    await shop.close_in_full_partition(OLD)
    await shop.run("update pillarbox_history set status_at = now() - interval '9 days' where id = $1", OLD[7])
    at = await shop.run("select to_jsonb(now() - interval '8 days 1 hour')")
    await shop.run("select pillarbox_history_detach(2, '{}', jsonb_build_object('delivered', $1::jsonb))", at)
    assert await shop.list_ids("_default") == []

    assert await shop.janitor().drop_partitions() == 1

    assert not await shop.has_table("history_p2")
    assert await shop.list_ids("_default") == [one for one in OLD if one != OLD[7]]


async def test_an_id_that_was_given_twice_is_replaced_when_its_message_comes_back(shop: Shop) -> None:
    await shop.close_in_full_partition([OLD[0]], closed=DAY)
    await shop.run("""select pillarbox_history_detach(2, '{}', '{"delivered": "2000-01-01"}')""")
    await shop.close([OLD[0]], written=DAY, closed=DAY)
    await shop.janitor().drop_partitions()
    first, second = await shop.list_ids("_default")
    assert first == OLD[0]
    assert second >= 2**52


async def test_a_table_that_only_has_such_a_name_is_left_alone(shop: Shop) -> None:
    await shop.connection.execute(f"create table {shop.names.table('history_p77')} (id bigint)")
    assert await shop.run("select removed from pillarbox_history_remove(77, 0, 10)") == 0
    assert await shop.run("""select pillarbox_history_detach(77, '{}', '{}')""") is False
    await shop.janitor().drop_partitions()
    assert await shop.has_table("history_p77")


async def test_janitors_of_several_relays_share_the_work(shop: Shop, postgres_url: str) -> None:
    await shop.close_in_full_partition(OLD)
    other = PostgresStore(postgres_url, schema=shop.names.schema, connections=1)
    await other.open()
    try:
        removed = await asyncio.gather(shop.janitor().run_once(), shop.janitor(other).run_once())
        assert sum(removed) >= 1
        await shop.janitor().run_once()
    finally:
        await other.close()
    assert await shop.list_ids() == [3 * MILLION + 1]
    assert not await shop.has_table("history_p2")


async def test_a_retention_of_almost_forever_is_no_error(shop: Shop) -> None:
    await shop.close_in_full_partition(OLD)
    age = timedelta.max - timedelta.resolution
    assert await shop.store.find_expired_partition({State.DELIVERED: age}) is None
    assert await shop.store.list_spared_ids(older_than=age) == [(2 * MILLION, 3 * MILLION - 1)]


# --- rows of a partition that is about to expire ---


async def test_rows_wait_for_their_partition_if_it_expires_soon(shop: Shop) -> None:
    await shop.close(OLD, written=7.05 * DAY, closed=7.05 * DAY)
    await shop.close([2 * MILLION + 500], written=6.9 * DAY, closed=6.9 * DAY)
    await shop.close([3 * MILLION + 1], written=timedelta(), closed=timedelta())
    taken = Taken()

    assert await shop.janitor().run_once() == 0
    assert await shop.janitor(archive=taken).run_once() == 0
    assert taken.ids == []

    await shop.run("update pillarbox_history set created_at = created_at - interval '1 day', "
                   "status_at = status_at - interval '3 hours' where id < 3000000")  # fmt: skip
    assert await shop.janitor(archive=taken).run_once() == len(OLD) + 1
    assert taken.ids == [*OLD, 2 * MILLION + 500]


async def test_rows_do_not_wait_for_a_partition_that_was_written_for_long(shop: Shop) -> None:
    await shop.close(OLD, written=8 * DAY, closed=8 * DAY)
    await shop.close([2 * MILLION + 500], written=DAY, closed=DAY)
    await shop.close([3 * MILLION + 1], written=timedelta(), closed=timedelta())
    assert await shop.janitor().run_once() == len(OLD)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(0, 9, None), Window(0, 9, None)),
        (Window(0, 15, None), Window(0, 9, 19)),
        (Window(9, 15, 15), Window(9, 9, 19)),
        (Window(12, 40, 40), Window(12, 12, 19)),
        (Window(19, 40, 40), Window(19, 29, 39)),
        (Window(39, 50, 50), Window(39, 50, 50)),
    ],
)
def test_spared_ids_are_left_out_of_a_window(window: Window, expected: Window) -> None:
    assert leave_out(window, [(30, 39), (10, 19)]) == expected


# --- archive ---


class Taken:
    """Archive that remembers ids, and refuses after some of them."""

    def __init__(self, *, most: int = 10_000) -> None:
        self.ids: list[int] = []
        self._most = most

    async def __call__(self, messages: Sequence[Message]) -> None:
        if len(self.ids) + len(messages) > self._most:
            raise OSError("the disk is full")
        self.ids += [message.id for message in messages]


async def test_the_archive_takes_everything_before_a_drop(shop: Shop) -> None:
    skipped, young = 2 * MILLION + 200, 2 * MILLION + 201
    await shop.close_in_full_partition(OLD)
    await shop.close([skipped], written=8 * DAY, closed=8 * DAY, state=State.SKIPPED)
    await shop.close([young], written=8 * DAY, closed=DAY)
    taken = Taken()
    janitor = shop.janitor(archive=taken)
    janitor._retention = Retention(delivered=WEEK, skipped=WEEK, batch=30)

    assert await janitor.drop_partitions() == len(OLD) + 1

    assert taken.ids == [*OLD, skipped]
    assert await shop.list_ids() == [young, 3 * MILLION + 1]


async def test_the_first_and_the_last_message_of_a_partition_are_archived_before_it_goes(shop: Shop) -> None:
    first, last = 2 * MILLION, 3 * MILLION - 1
    await shop.close_in_full_partition([first, last])
    taken = Taken()

    assert await shop.janitor(archive=taken).run_once() == 2

    assert taken.ids == [first, last]
    assert "p2" not in await shop.list_partitions()


async def test_the_journal_of_a_message_at_another_destination_outlives_the_partition(shop: Shop) -> None:
    await shop.close_in_full_partition(OLD)
    await shop.run(
        "insert into pillarbox_journal (message_id, destination, action, at, by) "
        "select message_id, d, 'noted', now(), 'test' from pillarbox_history, unnest(array['orders', 'billing']) d "
        "where id = $1",
        OLD[3],
    )

    assert await shop.janitor().run_once() == len(OLD)

    assert await shop.run("select array_agg(destination) from pillarbox_journal where action = 'noted'") == ["billing"]


async def test_nothing_is_dropped_that_the_archive_did_not_take(shop: Shop) -> None:
    await shop.close_in_full_partition(OLD)
    janitor = shop.janitor(archive=Taken(most=60))
    janitor._retention = Retention(delivered=WEEK, batch=30)
    with pytest.raises(OSError, match="full"):
        await janitor.run_once()
    assert await shop.list_ids("_p2") == list(OLD)


# --- messages that are closed later ---


async def test_messages_that_are_closed_after_their_partition_went_are_kept_shown_and_redriven(shop: Shop) -> None:
    late = OLD[-1] + 7
    await shop.close_in_full_partition(OLD)
    await shop.run(_OPEN, [late])
    assert await shop.janitor().run_once() == len(OLD)

    result = await shop.store.discard(Selection(ids=[late]), by="ann", reason="wrong", limit=10)

    assert result.count == 1
    assert await shop.list_ids("_default") == [late]
    (found,) = await shop.store.find(Selection(ids=[late]), limit=10)
    assert [found] == list(await shop.store.find(Selection(message_ids=[UUID(str(found.message_id))]), limit=10))
    assert await shop.run("select state from pillarbox_messages where id = $1", late) == "discarded"
    redriven = await shop.store.redrive(Selection(ids=[late]), by="ann", limit=10)
    assert redriven.count == 1
    assert await shop.run("select id from pillarbox_outbox") == late
    assert await shop.list_ids("_default") == []


async def test_what_is_in_the_default_partition_is_deleted_row_by_row(shop: Shop) -> None:
    await shop.close_in_full_partition([])
    await shop.janitor().drop_partitions()
    await shop.close(OLD, written=8 * DAY, closed=8 * DAY)
    assert await shop.list_ids("_default") == list(OLD)
    assert await shop.janitor().run_once() == len(OLD)


# --- locks ---


async def test_a_lock_of_somebody_else_delays_the_drop_and_stops_nobody(shop: Shop, postgres_url: str) -> None:
    await shop.close_in_full_partition(OLD)
    partition = await shop.store.find_expired_partition(AGES, after=0)
    assert partition is not None
    reader: Any = await asyncpg.connect(postgres_url)
    try:
        async with reader.transaction():
            await reader.fetchval(shop.names.qualify("select count(*) from pillarbox_history"))
            with pytest.raises(StoreBusy):
                await shop.store.drop_partition(partition)
            await shop.connection.execute("set lock_timeout = '2s'")
            await shop.close([OLD[0] + 500], written=8 * DAY, closed=timedelta())
            assert await shop.janitor().drop_partitions() == 0
            assert await shop.store.extend_history() == 0  # nobody is in the way, but nothing is to be done
    finally:
        await reader.close()
    assert await shop.list_ids("_p2") == [*OLD, OLD[0] + 500]
    assert await shop.janitor().drop_partitions() == len(OLD)


async def test_partitions_that_cannot_be_added_now_are_added_later(shop: Shop, postgres_url: str) -> None:
    await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 30000000)")
    reader: Any = await asyncpg.connect(postgres_url)
    try:
        async with reader.transaction():
            await reader.fetchval(f"select count(*) from {shop.names.table('history_default')}")
            assert await shop.store.extend_history() == 0
    finally:
        await reader.close()
    assert await shop.store.extend_history() == 3


# --- extension ---


async def test_new_tables_have_partitions_ahead_of_the_ids(shop: Shop) -> None:
    assert await shop.list_partitions() == ["default", "p0", "p2", "p3", "p4"]
    assert await shop.store.extend_history() == 0


async def test_partitions_are_added_when_ids_come_near(shop: Shop) -> None:
    await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 3500000)")
    assert await shop.store.extend_history() == 2
    assert await shop.list_partitions() == ["default", "p0", "p2", "p3", "p4", "p5", "p6"]


async def test_inserts_go_on_when_no_partition_was_added_ahead(shop: Shop) -> None:
    ids = [5 * MILLION + 1, 7 * MILLION + 5]
    await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 7950000)")
    await shop.close(ids, written=timedelta(), closed=timedelta())
    assert await shop.list_ids("_default") == ids

    # Not where ids that were given a moment ago may still be on their way into the default partition.
    assert await shop.store.extend_history() == 3

    assert await shop.list_partitions() == ["default", "p0", "p10", "p11", "p2", "p3", "p4", "p9"]
    assert await shop.list_ids() == ids
    await shop.close([9 * MILLION + 1], written=timedelta(), closed=timedelta())
    assert await shop.list_ids("_p9") == [9 * MILLION + 1]


async def test_ids_above_the_counter_do_not_stop_the_extension(shop: Shop) -> None:
    """After a restore the counter may be behind, and the default partition has ids that it has yet to give."""
    await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 3500000)")
    await shop.close([6 * MILLION + 5], written=timedelta(), closed=timedelta())
    assert await shop.store.extend_history() == 3
    assert await shop.list_ids("_default") == [6 * MILLION + 5]
    assert await shop.list_partitions() == ["default", "p0", "p2", "p3", "p4", "p7", "p8", "p9"]


async def test_partitions_grow_with_history(shop: Shop) -> None:
    """Thousands of them would cost more than they save."""
    await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 200000000)")
    assert await shop.store.extend_history() == 3
    assert await shop.list_partitions() == ["default", "p0", "p2", "p201", "p209", "p217", "p3", "p4"]


# --- rights ---


@pytest.mark.parametrize("role", ["relay", "operator"])
async def test_a_role_that_owns_nothing_adds_and_drops_partitions(
    shop: Shop, role: Literal["relay", "operator"], postgres_url: str, postgres_logins: Logins
) -> None:
    await shop.close_in_full_partition(OLD)
    store = PostgresStore(
        postgres_logins.url_as(role, postgres_url, shop.names), schema=shop.names.schema, connections=1
    )
    await store.open()
    try:
        assert await shop.janitor(store).run_once() == len(OLD)
        await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 3500000)")
        assert await store.extend_history() == 2
        assert list((await store.read_facts()).missing_rights) == []
    finally:
        await store.close()
    assert not await shop.has_table("history_p2")


async def test_a_relay_without_the_right_deletes_row_by_row(
    shop: Shop, postgres_url: str, postgres_logins: Logins
) -> None:
    await shop.close_in_full_partition(OLD, closed=9 * DAY)
    url = postgres_logins.url_as("relay", postgres_url, shop.names)
    login = postgres_logins.users["relay"]
    for function in ("extend()", "detach(bigint, bigint[], jsonb)", "remove(bigint, bigint, integer)"):
        await shop.run(f"revoke execute on function pillarbox_history_{function} from {login}")
    store = PostgresStore(url, schema=shop.names.schema, connections=1)
    await store.open()
    try:
        partition = await store.find_expired_partition(AGES, after=0)
        assert partition is not None
        with pytest.raises(StoreForbidden):
            await store.drop_partition(partition)
        assert await store.extend_history() == 0
        assert await shop.janitor(store).run_once() == len(OLD)
        assert len((await store.read_facts()).missing_rights) == 3
    finally:
        await store.close()
    assert "p2" in await shop.list_partitions()


# --- plans ---


@pytest.mark.parametrize("statement", ["purge_archived", "reopen"])
async def test_a_message_that_is_named_by_its_id_is_looked_for_in_its_partition_alone(
    shop: Shop, statement: str
) -> None:
    await shop.close([2 * MILLION + 5], written=DAY, closed=DAY, state=State.FAILED)
    sql = Statements("pillarbox.stores.postgres", shop.names)
    texts = {
        "purge_archived": (sql["purge_archived"], "'{2000005}', '{failed}', '{now}'"),
        "reopen": (
            sql.fill("reopen", "id = any('{2000005}'::bigint[])"),
            "'{failed}', false, null, 10, 'redriven', 'ann', null, null",
        ),
    }
    text, values = texts[statement]
    kinds = {
        "purge_archived": "bigint[], text[], timestamptz[]",
        "reopen": "text[], boolean, text, bigint, text, text, text, timestamptz",
    }
    await shop.connection.execute("; ".join(f"set {name} = '{value}'" for name, value in SESSION_SETTINGS))
    await shop.connection.execute(f"prepare looked ({kinds[statement]}) as {text}")
    rows = await shop.connection.fetch(f"explain (analyze, costs off, timing off) execute looked({values})")
    plan = [row[0] for row in rows]
    read = [line for line in plan if "Scan" in line and "history_" in line and "never executed" not in line]
    assert read, "\n".join(plan)
    assert all("history_p2" in line for line in read), "\n".join(plan)


async def test_a_settlement_plans_for_no_partition(shop: Shop) -> None:
    """Every partition in a plan is locked before it runs, in every settlement."""
    sql = Statements("pillarbox.stores.postgres", shop.names)["settle"]
    await shop.connection.execute("set plan_cache_mode = force_generic_plan")
    kinds = (
        "uuid, text, smallint[], bigint[], bigint[], bigint[], bigint[], bigint[], text, timestamptz, uuid[], bigint[]"
    )
    await shop.connection.execute(f"prepare settled ({kinds}) as {sql}")
    values = "gen_random_uuid(), 'orders', '{7}', '{1}', '{1}', '{}', '{}', '{}', 'full', null, '{}', '{}'"
    rows = await shop.connection.fetch(f"explain (costs off) execute settled({values})")
    assert [row[0].strip() for row in rows if "history" in row[0]] == ["->  Insert on pillarbox_history"]


# --- schema ---


async def test_verify_accepts_partitions_and_notices_that_the_default_one_is_missing(
    shop: Shop, postgres_url: str
) -> None:
    schema = open_schema(parse_store_url(postgres_url), names=shop.names)
    await shop.run("select setval(pg_get_serial_sequence('pillarbox_outbox', 'id'), 30000000)")
    await shop.store.extend_history()
    assert await schema.verify() == ()
    whole, default = shop.names.table("history"), shop.names.table("history_default")
    await shop.connection.execute(f"alter table {whole} detach partition {default}")
    assert [one.item for one in await schema.verify()] == ["partitions of pillarbox_history"]


def test_grants_name_the_functions_with_their_arguments() -> None:
    text = build_grants({"relay": "shop_relay"}, names=Names("mail"))
    assert 'grant execute on function "mail"."pillarbox_history_extend"() to "shop_relay";' in text
    assert "execute" not in build_grants({"viewer": "v", "writer": "w"}, names=Names("mail"))
