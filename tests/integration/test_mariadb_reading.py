"""Reads of a lane in which very many messages are known: those of a hot key, whose rest stays in the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from pillarbox import Outbox
from pillarbox.contracts.store import Cursor, ReadResult
from pillarbox.message import Message, Names, compute_partition
from pillarbox.stores.mariadb.reading import IdBlock, KnownIds
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.mariadb.waiting import choose_step
from pillarbox.stores.unreadable import NO_ID
from pillarbox.stores.urls import parse_store_url
from tests.support.mariadb_server import connected

HOT = "hot"
LANE = compute_partition(HOT, NO_ID)
BESIDE = next(f"k{n}" for n in range(1000) if compute_partition(f"k{n}", NO_ID) == LANE)
ELSEWHERE = next(f"k{n}" for n in range(1000) if compute_partition(f"k{n}", NO_ID) != LANE)
OTHER = compute_partition(ELSEWHERE, NO_ID)
MANY = 40


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to the server, by any connection."""
    sent: list[str] = []
    query = pymysql.connections.Connection.query

    def watch(self: Any, sql: Any, *more: Any, **named: Any) -> Any:
        sent.append(sql.decode() if isinstance(sql, bytes) else sql)
        return query(self, sql, *more, **named)

    monkeypatch.setattr(pymysql.connections.Connection, "query", watch)
    return sent


@pytest.fixture
async def store(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MariadbStore]:
    monkeypatch.setattr("pillarbox.stores.mariadb.reading._BLOCK", 4)
    await MariadbSchema(parse_store_url(mariadb_url), names=Names()).install()
    store = MariadbStore(mariadb_url)
    await store.open()
    yield store
    await store.close()


def publish(connection: Any, *keys: str) -> None:
    for key in keys:
        Outbox(routes="orders", source="/shop").publish(connection, {}, type="orders.placed", topic="o", key=key)


def put(url: str, *keys: str) -> None:
    with closing(connected(url)) as connection:
        publish(connection, *keys)
        connection.commit()


async def read(store: MariadbStore, cursor: Cursor | None, *, limit: int = 100, skip: str = HOT) -> ReadResult:
    if cursor is not None:
        cursor = cursor.skip_keys([skip])
    return await store.read("orders", partitions=[LANE, OTHER], cursor=cursor, limit=limit)


async def pass_by(store: MariadbStore, url: str) -> ReadResult:
    """Pass by many messages of a hot key; one of another key stands before them, and was read."""
    put(url, BESIDE)
    first = await read(store, None)
    put(url, *[HOT] * MANY)
    result = await read(store, first.cursor)
    assert list(result.messages) == []
    return result


def keys(result: ReadResult) -> list[str | None]:
    return [message.key for message in result.messages]


async def test_the_ids_of_a_hot_key_are_not_fetched_again(
    mariadb_url: str, store: MariadbStore, statements: list[str]
) -> None:
    cursor = (await pass_by(store, mariadb_url)).cursor
    put(mariadb_url, BESIDE)
    statements.clear()

    result = await read(store, cursor)

    assert keys(result) == [BESIDE]
    assert result.complete == {LANE, OTHER}
    ahead = [sql for sql in statements if "as first" in sql and f"`partition` = {LANE}" in sql]
    assert not [sql for sql in statements if "group_concat" in sql and "id <= " in sql and "in ('hot')" not in sql]
    above = ahead[0].split(f"`partition` = {LANE}")[1].split("id > ")[1].split()[0]
    assert int(above) > MANY // 2, "the lane is read above its blocks"


async def test_a_late_message_among_them_comes_before_what_follows_it(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the lane rests from its last check: nothing new is taken without one."""
    monkeypatch.setattr("pillarbox.stores.mariadb.reading._CHECK_REST", 1e9)
    put(mariadb_url, BESIDE)
    first = await read(store, None)
    put(mariadb_url, *[HOT] * (MANY // 2))
    with closing(connected(mariadb_url)) as slow:
        publish(slow, BESIDE, HOT)
        put(mariadb_url, *[HOT] * (MANY // 2))
        passed = await read(store, first.cursor)
        checked = await read(store, passed.cursor)
        slow.commit()
    put(mariadb_url, BESIDE)

    result = await read(store, checked.cursor)

    assert keys(result) == [BESIDE, HOT, BESIDE]
    assert keys(await read(store, result.cursor)) == []


async def test_a_message_that_changed_places_with_others_is_noticed(mariadb_url: str, store: MariadbStore) -> None:
    """The first and the last of four are settled, the middle ones come late: as many, and with the same sum."""
    before = await pass_by(store, mariadb_url)
    with closing(connected(mariadb_url)) as slow, closing(connected(mariadb_url)) as quick:
        publish(quick, HOT)
        publish(slow, HOT, HOT)
        publish(quick, HOT)
        quick.commit()
        put(mariadb_url, *[HOT] * MANY)
        result = await read(store, before.cursor)
        slow.commit()
    with closing(connected(mariadb_url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("select id from pillarbox_outbox order by id limit 4 offset %s", (MANY + 1,))
        first, *late, last = [row[0] for row in cursor.fetchall()]
        cursor.execute("delete from pillarbox_outbox where id in (%s, %s)", (first, last))
    put(mariadb_url, BESIDE)

    result = await read(store, result.cursor)

    assert [message.id for message in result.messages][:2] == late


async def test_settled_ones_leave_the_blocks(mariadb_url: str, store: MariadbStore) -> None:
    cursor = (await pass_by(store, mariadb_url)).cursor
    with closing(connected(mariadb_url, autocommit=True)) as connection, connection.cursor() as asking:
        asking.execute("delete from pillarbox_outbox")
    put(mariadb_url, BESIDE)

    result = await read(store, cursor)

    known: Any = result.cursor.snapshot
    assert keys(result) == [BESIDE]
    assert known[LANE].blocks == ()


async def test_a_long_check_does_not_hold_up_the_other_lanes(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a check the lane rests while others have something, and is read at once where they have nothing."""
    monkeypatch.setattr("pillarbox.stores.mariadb.reading._CHECK_REST", 1e9)
    cursor = (await pass_by(store, mariadb_url)).cursor
    put(mariadb_url, BESIDE)
    result = await read(store, cursor)
    put(mariadb_url, BESIDE, ELSEWHERE)

    others = await read(store, result.cursor)
    own = await read(store, others.cursor)

    assert keys(others) == [ELSEWHERE]
    assert others.complete == {OTHER}
    assert keys(own) == [BESIDE]


async def test_one_read_passes_by_so_many_and_the_next_goes_on(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.stores.mariadb.reading._MOST_PASSED", 10)
    monkeypatch.setattr("pillarbox.stores.mariadb.reading._LONGEST_STEP", 5)
    put(mariadb_url, BESIDE)
    cursor = (await read(store, None)).cursor
    put(mariadb_url, *[HOT] * MANY, BESIDE)
    reads, found = 0, list[Message]()
    while not found:
        result = await read(store, cursor, limit=2)
        assert result.cursor.low[LANE] > cursor.low[LANE]
        cursor, found, reads = result.cursor, list(result.messages), reads + 1
    assert [message.key for message in found] == [BESIDE]
    assert reads > 2


async def test_a_key_that_differs_in_a_space_is_not_skipped(mariadb_url: str, store: MariadbStore) -> None:
    """Texts with spaces at their end are equal in this collation."""
    spaced = next(
        f"k{n}" for n in range(10_000) if compute_partition(f"k{n}", NO_ID) == compute_partition(f"k{n} ", NO_ID)
    )
    lane = compute_partition(spaced, NO_ID)
    start = await store.read("orders", partitions=[lane], cursor=None, limit=10)
    put(mariadb_url, spaced, f"{spaced} ")
    result = await store.read("orders", partitions=[lane], cursor=start.cursor.skip_keys([spaced]), limit=10)
    assert keys(result) == [f"{spaced} "]


def test_a_block_knows_its_ids_from_others() -> None:
    block, other = IdBlock.build([100, 103]), IdBlock.build([101, 102])
    assert block.matches(2, block.total, block.checksum)
    assert (len(block.ids), block.total) == (len(other.ids), other.total)
    assert not block.matches(2, other.total, other.checksum)
    assert KnownIds().blocks == ()


async def block(store: MariadbStore, url: str, *keys: str, waits: str = "retry") -> None:
    put(url, *keys)
    with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("update pillarbox_outbox set waits = %s, available_at = id where waits is null", (waits,))


async def test_blocked_keys_are_listed_once_each_however_many_wait(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps that are smaller than what waits behind a key, and that grow where there are many keys."""
    monkeypatch.setattr("pillarbox.stores.mariadb.waiting._FIRST_STEP", 4)
    monkeypatch.setattr("pillarbox.stores.mariadb.waiting._LONGEST_STEP", 8)
    names = [*(f"key-{number}" for number in range(100)), "key-5 "]
    await block(store, mariadb_url, *names, *[HOT] * MANY, *["key-7"] * MANY)
    await block(store, mariadb_url, *names, waits="held")

    found = await store.blocked_keys("orders", partitions=range(64))

    assert sorted(one.key for one in found) == sorted([*names, HOT])
    assert {one.front.value for one in found} == {"retry"}


async def test_a_key_with_many_waiting_does_not_hide_the_others_of_its_lane(
    mariadb_url: str, store: MariadbStore
) -> None:
    await block(store, mariadb_url, *[HOT] * MANY, BESIDE, ELSEWHERE)
    wanted = [(OTHER, ELSEWHERE), (LANE, HOT), (LANE, BESIDE)]

    found = await store.read_keys("orders", wanted, key_limit=3, limit=100)

    assert [[message.key for message in one.messages] for one in found] == [[ELSEWHERE], [HOT] * 3, [BESIDE]]
    assert [one.complete for one in found] == [True, False, True]


async def test_a_destination_with_nothing_that_waits_costs_one_statement(
    mariadb_url: str, store: MariadbStore, statements: list[str]
) -> None:
    put(mariadb_url, *[BESIDE] * 3)
    statements.clear()
    assert await store.find_due("orders", partitions=range(64), limit=100) == []
    assert not [sql for sql in statements if "order by available_at" in sql]


async def test_deferred_and_retrying_messages_of_a_lane_come_in_one_order(
    mariadb_url: str, store: MariadbStore
) -> None:
    """The search goes on behind what it found: of the kind that is due later it must not have found more."""
    await block(store, mariadb_url, *[BESIDE] * 60)
    with closing(connected(mariadb_url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("update pillarbox_outbox set waits = 'deferred' order by id limit 30")

    found = await store.find_due("orders", partitions=range(64), limit=100)

    ids = [one.id for one in found]
    assert ids == sorted(ids)
    assert len(ids) == 60


@pytest.mark.parametrize(
    ("step", "keys", "following"), [(64, 64, 256), (1024, 1024, 1024), (64, 1, 2), (2, 1, 2), (2, 2, 8), (64, 20, 40)]
)
def test_a_step_is_as_long_as_its_keys_are_worth(step: int, keys: int, following: int) -> None:
    assert choose_step(step, keys=keys) == following
