"""What the SQLite store promises beyond the contract: its file, its thread, its plans."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, Cursor, FailedOutcome, Fence, RelayInfo, Selection, Settlement
from pillarbox.contracts.writer import Insert
from pillarbox.errors import (
    ConfigError,
    PillarboxError,
    SchemaMissing,
    SchemaNewer,
    SchemaOutdated,
    StoreError,
    StoreUnavailable,
)
from pillarbox.message import Kind, Message, Names, State, Waits, compute_partition, new_message_id
from pillarbox.stores.migrations import load_migrations
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.sqlite.connection import Database, build_statements
from pillarbox.stores.sqlite.procedures import build_procedures
from pillarbox.stores.sync_sql.batch import select_batch
from pillarbox.stores.sync_sql.rows import from_microseconds, to_microseconds
from pillarbox.writers.sqlite import SqliteWriter
from tests.support.next_version import build_release

LEASE = timedelta(seconds=10)
EVERY_LANE = range(64)
PROCEDURES = {"claiming_view", "claiming_trigger", "delivering_view", "delivering_trigger"}
"""Definitions. The plans of what stands in them are in test_sqlite_procedures.py."""
STATEMENTS = sorted(build_statements(Names()).keys() - PROCEDURES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the tables in it."""
    path = tmp_path / "shop.db"
    install(path)
    return path


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime.now(UTC))


@pytest.fixture
async def store(path: Path, clock: FrozenClock) -> AsyncIterator[SqliteStore]:
    async with opened(SqliteStore(path, clock=clock)) as store:
        yield store


@asynccontextmanager
async def opened(store: SqliteStore) -> AsyncIterator[SqliteStore]:
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def install(path: Path, *, names: Names | None = None) -> None:
    names = names or Names()
    with connected(path) as connection:
        for migration in load_migrations("sqlite"):
            connection.executescript(names.qualify(migration.up))
            connection.execute(names.qualify("insert into pillarbox_schema (version) values (?)"), [migration.version])


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def message(*, key: str | None = "customer-1", destination: str = "orders", topic: str = "orders") -> Message:
    message_id = new_message_id()
    return Message(
        0, message_id, destination, compute_partition(key, message_id), Kind.EVENT, "orders.placed", topic, key, b"{}",
        "application/json", {}, "/shop", None, str(message_id), None, datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def write(path: Path, *messages: Message) -> None:
    with connected(path) as connection:
        connection.execute("begin immediate")
        SqliteWriter(connection).insert(Insert(names=Names(), messages=messages))
        connection.execute("commit")


async def put(store: SqliteStore, path: Path, *messages: Message) -> Sequence[Message]:
    write(path, *messages)
    return await store.find(Selection(message_ids=[message.message_id for message in messages]), limit=1_000)


async def own(store: SqliteStore, *, destination: str = "orders", partitions: Sequence[int] = EVERY_LANE) -> Fence:
    relay = RelayInfo(
        relay_id=uuid4(), service="shop", host="h", pid=1, version="1", destinations=[destination], reachable=[]
    )
    await store.register(relay, lease=LEASE)
    lanes, _ = await store.take(relay.relay_id, destination, partitions=partitions, lease=LEASE, claim_number=1)
    return Fence(relay.relay_id, destination, {lane.partition: lane.epoch for lane in lanes})


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pillarbox-sqlite")]


# --- the plans ---------------------------------------------------------------------------------

WALKS_BY_ID = {"find_pending", "find_delivered"}
"""People ask these; they go through the messages in id order and stop at their limit."""
LOOKS_AT_ALL = {"count_selected", "restore_known"}
"""Count exactly, before a person changes many messages; look for a thousand messages of an archive at a time."""
DUE, BLOCKED, HELD = (
    f"SCAN pillarbox_outbox USING INDEX pillarbox_outbox_{name}_idx" for name in ("due", "blocked", "held")
)
WAITING = "SCAN pillarbox_outbox USING COVERING INDEX pillarbox_outbox_since_idx"
WALKS_OVER_THE_FEW = {
    "find_held": [BLOCKED], "find_tried": [DUE, BLOCKED], "count_failed": [HELD], "find_waiting": [WAITING],
}  # fmt: skip
"""These go through an index that holds troubled messages alone."""
COUNTS = {"count_fresh", "count_waiting", "count_ended"}
"""These look at so many messages of a destination, or of a way to end."""
SORTS = dict.fromkeys(COUNTS, 1)
SORTS |= {
    "inbox_counts": 1,
    "journal_messages": 1,
    "tries": 1,
    "find_ended": 1,
    "find_held": 1,
    "journal_latest": 1,
    "journal_message": 2,
}
SORTS |= {"claims_old": 1, "oldest_due": 1, "open_destinations": 1}
SORTS |= {"blocking": 1, "failed_detail": 1, "held_detail": 1, "inbox_records": 1, "journal_general": 1, "rollups": 1}
SORTS |= {"tables": 1, "failed_keys": 1, "held_keys": 1, "inbox_activity": 1, "key_ids": 3}
"""How many sorts a statement may need: of rows that its limit, or the few there are, already bounds."""


def plan(path: Path, name: str) -> list[str]:
    sql = build_statements(Names())[name]
    values = dict.fromkeys(re.findall(r":(\w+)", sql), "[]")
    with connected(path) as connection:
        connection.create_function("casefolded", 1, str.casefold)
        for procedure in build_procedures(build_statements(Names())):
            connection.execute(procedure)
        return [row[3] for row in connection.execute(f"explain query plan {sql}", values)]


@pytest.mark.parametrize("name", ["find_pending", "find_delivered", "find_ended"])
def test_a_correlation_id_is_found_by_its_index(path: Path, name: str) -> None:
    sql = build_statements(Names()).fill(name, "correlation_id = :correlation")
    values = dict.fromkeys(re.findall(r":(\w+)", sql), "[]")
    with connected(path) as connection:
        steps = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    assert any("_corr_idx (correlation_id=?)" in step for step in steps), steps


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_walks_over_the_messages(path: Path, name: str) -> None:
    steps = plan(path, name)
    walks = [step for step in steps if re.match(r"SCAN (pillarbox_outbox|pillarbox_history|[odmhc]\b)", step)]
    if name in LOOKS_AT_ALL:
        return
    if name in WALKS_BY_ID:
        assert walks in (["SCAN pillarbox_outbox"], ["SCAN pillarbox_history"])
    else:
        assert [step for step in walks if step not in WALKS_OVER_THE_FEW.get(name, ())] == []
    assert sum("TEMP B-TREE" in step for step in steps) <= SORTS.get(name, 0)


@pytest.mark.parametrize(
    ("name", "index", "seeks"),
    [
        ("read_ahead", "fresh_idx", "destination=? AND partition=? AND id>?"),
        ("find_due", "due_idx", "destination=? AND partition=? AND available_at>? AND available_at<?"),
        ("next_due", "due_idx", "destination=? AND partition=?"),
        ("find_blocked", "blocked_idx", "destination=? AND partition=? AND key=?"),
        ("find_blocked_of_keys", "blocked_idx", "destination=? AND partition=? AND key=?"),
        ("blocked_keys", "blocked_idx", "destination=? AND partition=? AND key>?"),
    ],
)
def test_a_hot_statement_seeks_in_its_index(path: Path, name: str, index: str, seeks: str) -> None:
    assert any(f"pillarbox_outbox_{index} ({seeks})" in step for step in plan(path, name))


@pytest.mark.parametrize(
    "name",
    [
        "read",
        "read_due",
        "keep_delivered",
        "close_delivered",
        "park",
        "failure_wait",
        "failure_close",
        "claimed_messages",
    ],
)
def test_messages_in_hand_are_found_by_their_ids(path: Path, name: str) -> None:
    assert "SEARCH pillarbox_outbox USING INTEGER PRIMARY KEY (rowid=?)" in plan(path, name)


# --- reading -----------------------------------------------------------------------------------


@given(
    lanes=st.lists(st.lists(st.integers(1, 500), max_size=12, unique=True).map(sorted), max_size=8),
    room=st.integers(1, 60),
)
def test_a_read_takes_the_beginning_of_each_lane_and_then_the_oldest(lanes: list[list[int]], room: int) -> None:
    share = max(1, room // (len(lanes) or 1))
    numbered = [[id_ * 8 + place for id_ in ids] for place, ids in enumerate(lanes)]
    chosen = select_batch(numbered, floor=max(1, share // 2), limit=room)
    assert len(chosen) == min(room, sum(map(len, lanes)))
    floors = {id_ for ids in numbered for id_ in ids[: max(1, share // 2)]}
    left = {id_ for ids in numbered for id_ in ids} - set(chosen)
    assert all(id_ < min(left, default=id_ + 1) for id_ in chosen if id_ not in floors)
    for ids in numbered:
        mine = [id_ for id_ in chosen if id_ in ids]
        assert mine == ids[: len(mine)]
        if room >= len(lanes):
            assert len(mine) >= min(len(ids), max(1, share // 2))


async def test_one_lane_with_all_the_backlog_fills_a_read(store: SqliteStore, path: Path) -> None:
    written = await put(store, path, *(message(key="hot") for _ in range(500)))
    reading = await store.read("orders", partitions=EVERY_LANE, cursor=None, limit=400)
    assert list(reading.messages) == list(written[:400])


async def test_an_old_backlog_in_one_lane_leaves_room_for_the_others(store: SqliteStore, path: Path) -> None:
    await put(store, path, *(message(key="hot") for _ in range(900)))
    others = await put(store, path, *(message(key=f"key-{number}") for number in range(20)))
    reading = await store.read("orders", partitions=EVERY_LANE, cursor=None, limit=640)
    assert {other.id for other in others} <= {read.id for read in reading.messages}


async def test_a_cursor_of_an_older_connection_starts_over(store: SqliteStore, path: Path) -> None:
    written = await put(store, path, message(), message())
    reading = await store.read("orders", partitions=EVERY_LANE, cursor=None, limit=10)
    await store.close()
    await store.open()
    again = await store.read("orders", partitions=EVERY_LANE, cursor=reading.cursor, limit=10)
    assert list(again.messages) == list(written)


async def test_nothing_is_missed_while_others_write(store: SqliteStore, path: Path) -> None:
    """The mark alone is enough: four threads write in transactions of all sizes, one cursor sees everything once."""

    def writing(thread: int) -> None:
        for size in (1, 7, 2, 30, 1, 90, 3, 15) * 4:
            write(path, *(message(key=f"{thread}-{number}") for number in range(size)))

    read: list[Message] = []
    cursor: Cursor | None = None
    writers = [asyncio.create_task(asyncio.to_thread(writing, thread)) for thread in range(4)]
    while True:
        finished = all(writer.done() for writer in writers)
        reading = await store.read("orders", partitions=EVERY_LANE, cursor=cursor, limit=50)
        read += reading.messages
        cursor = reading.cursor
        if finished and not reading.messages:
            break
    await asyncio.gather(*writers)
    assert sorted(one.id for one in read) == list(range(1, 4 * 4 * 149 + 1))
    for partition in EVERY_LANE:
        lane = [one.id for one in read if one.partition == partition]
        assert lane == sorted(lane)


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_time_comes_back_to_the_microsecond(at: datetime) -> None:
    assert from_microseconds(to_microseconds(at)) == at


# --- settling ----------------------------------------------------------------------------------


def retry(of: Message, *, error: str = "HTTP 503") -> FailedOutcome:
    return FailedOutcome(
        message_id=of.id, state=State.PENDING, waits=Waits.RETRY, attempts=1, error=error, delay=timedelta(seconds=30)
    )


async def test_a_repeated_trouble_is_told_once(store: SqliteStore, path: Path, clock: FrozenClock) -> None:
    (one,) = await put(store, path, message())
    fence = await own(store)
    settlement = Settlement(failures=[retry(one)])
    await store.settle(fence, settlement)
    (before,) = await store.find(Selection(ids=[one.id]), limit=1)
    clock.advance(timedelta(seconds=1))
    await store.settle(fence, settlement)
    assert await store.find(Selection(ids=[one.id]), limit=1) == [before]
    assert [line.action for line in await store.journal()] == ["attempt_failed"]


async def test_the_same_trouble_on_the_next_attempt_is_news(store: SqliteStore, path: Path, clock: FrozenClock) -> None:
    (one,) = await put(store, path, message())
    fence = await own(store)
    await store.settle(fence, Settlement(failures=[retry(one)]))
    clock.advance(timedelta(seconds=30))
    await store.settle(fence, Settlement(failures=[retry(one)]))
    (after,) = await store.find(Selection(ids=[one.id]), limit=1)
    assert after.available_at == clock.now() + timedelta(seconds=30)
    assert len(await store.journal()) == 2


async def test_an_error_that_is_no_text_is_recorded_all_the_same(store: SqliteStore, path: Path) -> None:
    (one,) = await put(store, path, message())
    await store.settle(await own(store), Settlement(failures=[retry(one, error="bad byte \udcff")]))
    (after,) = await store.find(Selection(ids=[one.id]), limit=1)
    assert after.last_error == "bad byte ?"


async def test_nothing_ends_outside_the_lanes_that_were_proved(store: SqliteStore, path: Path) -> None:
    near, far = await put(store, path, message(key="a"), message(key="b"))
    fence = (await own(store)).narrow([near.partition])
    failures = [FailedOutcome(message_id=one.id, state=State.FAILED) for one in (near, far)]
    await store.settle(fence, Settlement(failures=failures))
    assert [one.state for one in await store.find(Selection(), limit=2)] == [State.FAILED, State.PENDING]
    assert [line.message_id for line in await store.journal()] == [near.message_id]


async def test_where_nothing_is_kept_the_journal_goes_too(store: SqliteStore, path: Path) -> None:
    one, other = await put(store, path, message(), message())
    fence = await own(store)
    await store.settle(fence, Settlement(failures=[retry(one), retry(other)]))
    async with opened(SqliteStore(path, keep="off")) as forgetful:
        await forgetful.settle(fence, Settlement(delivered=[one.id]))
        assert await forgetful.find(Selection(ids=[one.id]), limit=1) == []
        assert [line.message_id for line in await forgetful.journal()] == [other.message_id]


async def test_a_take_whose_answer_was_lost_can_be_repeated(store: SqliteStore, path: Path, clock: FrozenClock) -> None:
    near, far = await put(store, path, message(key="a"), message(key="b"))
    assert near.partition != far.partition
    dead = await own(store)
    await store.claim(dead, Claim(1, [near.id, far.id]))
    clock.advance(LEASE)
    heir = await own(store, partitions=[near.partition, far.partition])
    lanes, inherited = await store.take(
        heir.relay_id, "orders", partitions=[near.partition], lease=LEASE, claim_number=1
    )
    assert [lane.epoch for lane in lanes] == [heir.epochs[near.partition] + 1]
    assert [part.claim for part in inherited] == [Claim(1, [near.id], 1)]
    assert [one.id for one in await store.find(Selection(states=[State.SENDING]), limit=2)] == [near.id]


async def test_a_late_release_does_not_touch_a_lane_that_was_taken_again(store: SqliteStore) -> None:
    fence = await own(store, partitions=[7])
    await store.take(fence.relay_id, "orders", partitions=[7], lease=LEASE, claim_number=1)
    await store.release(fence)
    assert (await store.registry(lease=LEASE)).owners == {"orders": {7: fence.relay_id}}


# --- counting ----------------------------------------------------------------------------------


async def test_a_large_backlog_hides_no_other_destination(store: SqliteStore, path: Path) -> None:
    await put(store, path, *(message(destination="away") for _ in range(30)), message(destination="orders"))
    counts = {count.destination: count.count for count in await store.counts(limit=10)}
    assert counts == {"away": 10, "orders": 1}


async def test_failures_are_counted_among_any_number_of_deliveries(store: SqliteStore, path: Path) -> None:
    messages = await put(store, path, *(message() for _ in range(30)))
    fence = await own(store)
    await store.settle(fence, Settlement(delivered=[one.id for one in messages[:-1]]))
    await store.settle(fence, Settlement(failures=[FailedOutcome(message_id=messages[-1].id, state=State.FAILED)]))
    counts = {count.state: count.count for count in await store.counts(limit=10)}
    assert counts == {State.FAILED: 1}


async def test_what_was_tried_before_is_found_wherever_it_waits(store: SqliteStore, path: Path) -> None:
    retrying, deferred, parked, held, fresh = await put(store, path, *(message() for _ in range(5)))
    failures = [
        FailedOutcome(message_id=one.id, state=State.PENDING, waits=waits, attempts=attempts, error="503")
        for one, waits, attempts in (
            (retrying, Waits.RETRY, 3),
            (deferred, Waits.DEFERRED, 3),
            (parked, Waits.PARKED, 3),
            (held, Waits.HELD, 3),
            (fresh, Waits.RETRY, 2),
        )
    ]
    await store.settle(await own(store), Settlement(failures=failures))
    found = await store.find(Selection(states=[State.PENDING], min_attempts=3), limit=10)
    assert [one.id for one in found] == [retrying.id, deferred.id, parked.id]
    found = await store.find(Selection(min_attempts=3), limit=10)
    assert [one.id for one in found] == [retrying.id, deferred.id, parked.id, held.id]


async def test_the_view_says_what_the_store_says(store: SqliteStore, path: Path) -> None:
    parked, delivered, failed, discarded, held, sending, _ = await put(store, path, *(message() for _ in range(7)))
    fence = await own(store)
    await store.claim(
        fence, Claim(1, [sending.id]), park={one.id: one.message_id for one in (parked, delivered, failed, discarded)}
    )
    ended = FailedOutcome(message_id=failed.id, state=State.FAILED)
    stopped = FailedOutcome(message_id=held.id, state=State.PENDING, waits=Waits.HELD)
    await store.settle(fence, Settlement(delivered=[delivered.id], failures=[ended, stopped]))
    await store.discard(Selection(ids=[discarded.id]), by="me", reason="why", limit=1)
    with connected(path) as connection:
        seen = connection.execute("select id, state, available_at from pillarbox_messages order by id").fetchall()
    assert seen == [(one.id, one.state, None) for one in await store.find(Selection(), limit=10)]
    assert [state for _, state, _ in seen] == [
        "pending", "delivered", "failed", "discarded", "failed", "sending", "pending",
    ]  # fmt: skip


async def test_letter_case_is_ignored_in_every_alphabet(store: SqliteStore, path: Path) -> None:
    (one,) = await put(store, path, message())
    await store.settle(await own(store), Settlement(failures=[retry(one, error="ÜBERLAST in ΑΘΉΝΑ")]))
    assert len(await store.find(Selection(error="überlast in αθήνα"), limit=1)) == 1
    assert await store.find(Selection(error="anders"), limit=1) == []


# --- the file ----------------------------------------------------------------------------------


async def refused(store: SqliteStore) -> PillarboxError:
    """The error that opening ends with; nothing may stay open behind it."""
    with pytest.raises(PillarboxError) as caught:
        await store.open()
    assert threads() == []
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.now()
    return caught.value


async def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    error = await refused(SqliteStore(tmp_path / "none.db"))
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"There is no SQLite file {tmp_path}/none.db: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("odd", ["a b.db", "50%25.db", "who?.db", "a#b.db"])
async def test_any_file_name_will_do(tmp_path: Path, odd: str) -> None:
    install(tmp_path / odd)
    async with opened(SqliteStore(str(tmp_path / odd))) as store:
        await store.pause("orders", by="me", reason="why")
    with connected(tmp_path / odd) as connection:
        assert connection.execute("select destination from pillarbox_destination").fetchall() == [("orders",)]


async def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    assert "is not a file" in str(await refused(SqliteStore(tmp_path)))


async def test_memory_is_another_store(tmp_path: Path) -> None:
    assert "use memory://" in str(await refused(SqliteStore(":memory:")))


async def test_something_else_is_not_a_database(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.write_text("This is a shopping list, and long enough to be a page of a database. " * 100)
    error = await refused(SqliteStore(path))
    assert isinstance(error, ConfigError)
    assert str(error) == f"{path} is not an SQLite database: correct the path."
    assert isinstance(error.__cause__, sqlite3.DatabaseError)


async def test_a_damaged_file_is_said_to_be_damaged(path: Path) -> None:
    write(path, *(message() for _ in range(100)))
    with connected(path) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    error = await refused(SqliteStore(path))
    assert type(error) is StoreError
    assert "damaged" in str(error)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that belongs to us, while the rights on files count for us: they do not for root."""
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()
    try:
        if user == 0:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


async def test_a_file_that_cannot_be_written_is_refused(unprivileged: Path) -> None:
    path = unprivileged / "shop.db"
    install(path)
    path.chmod(0o444)
    error = await refused(SqliteStore(path))
    assert isinstance(error, ConfigError)
    assert f"{path} cannot be written" in str(error)


async def test_a_folder_that_cannot_be_written_is_refused(unprivileged: Path) -> None:
    path = unprivileged / "shop.db"
    install(path)
    os.chmod(unprivileged, 0o500)
    error = await refused(SqliteStore(path))
    assert isinstance(error, StoreUnavailable)
    assert "check the rights on the file and its folder" in str(error)


async def test_a_locked_file_is_unavailable(store: SqliteStore, path: Path) -> None:
    with connected(path) as other:
        other.execute("begin immediate")
        async with opened(SqliteStore(path, busy_timeout=timedelta(milliseconds=1))) as impatient:
            with pytest.raises(StoreUnavailable, match="locked by another writer") as caught:
                await impatient.pause("orders", by="me", reason="why")
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
            assert await impatient.pauses() == []
            other.execute("rollback")
            await impatient.pause("orders", by="me", reason="why")
            assert len(await impatient.pauses()) == 1


async def test_the_first_store_to_open_a_file_waits_for_its_writer(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        writer.execute("create table business (id integer primary key)")
        store = SqliteStore(path, busy_timeout=timedelta(seconds=60))
        opening = asyncio.create_task(store.open())
        assert not (await asyncio.wait({opening}, timeout=0.2))[0]
        writer.execute("commit")
        await opening
        await store.close()


async def test_a_file_whose_writer_does_not_end_cannot_be_opened(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="stayed locked by another writer"):
            await SqliteStore(path, busy_timeout=timedelta(milliseconds=50)).open()


async def test_a_full_disk_is_unavailable_and_changes_nothing(path: Path, clock: FrozenClock) -> None:
    write(path, *(message() for _ in range(300)))
    async with opened(SqliteStore(path, clock=clock)) as store:
        fence = await own(store)
        ids = [one.id for one in await store.find(Selection(), limit=300)]
        await _limit_pages(store, 1)
        with pytest.raises(StoreUnavailable, match="full"):
            await store.settle(fence, Settlement(delivered=ids))
        assert {one.state for one in await store.find(Selection(), limit=300)} == {State.PENDING}
        await _limit_pages(store, 1_000_000)
        await store.settle(fence, Settlement(delivered=ids))
        assert {one.state for one in await store.find(Selection(), limit=300)} == {State.DELIVERED}


async def _limit_pages(store: SqliteStore, pages: int) -> None:
    """As a full disk does: SQLite takes no more pages than this, or than there are."""
    await store._database.call(lambda connection: connection.execute(f"pragma max_page_count = {pages}").fetchone())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("drop table pillarbox_schema", SchemaMissing),
        ("delete from pillarbox_schema", SchemaMissing),
        ("update pillarbox_schema set version = 1 - version", SchemaMissing),
        ("insert into pillarbox_schema (version) values (99)", SchemaNewer),
    ],
)
async def test_tables_that_do_not_fit_are_refused(path: Path, change: str, error: type[PillarboxError]) -> None:
    with connected(path) as connection:
        connection.execute(change)
    assert type(await refused(SqliteStore(path))) is error


async def test_older_tables_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.stores.sync_sql.store.load_release", lambda _: build_release(99))
    assert type(await refused(SqliteStore(path))) is SchemaOutdated


async def test_a_file_without_our_tables_says_how_to_make_them(tmp_path: Path) -> None:
    with connected(tmp_path / "shop.db") as connection:
        connection.execute("create table orders (id)")
    error = await refused(SqliteStore(tmp_path / "shop.db"))
    assert isinstance(error, SchemaMissing)
    assert "run `pillarbox schema install`" in str(error)


def test_options_are_checked(path: Path) -> None:
    with pytest.raises(ConfigError, match="no schemas"):
        SqliteStore(path, schema="shop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keep is 'some'"):
        SqliteStore(path, keep="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="synchronous is 'sometimes'"):
        SqliteStore(path, synchronous="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prefix"):
        SqliteStore(path, prefix='x"; drop table')


async def test_readers_and_the_writer_do_not_wait_for_each_other(store: SqliteStore, path: Path) -> None:
    with connected(path) as other:
        assert other.execute("pragma journal_mode").fetchone() == ("wal",)
        other.execute("begin immediate")
        SqliteWriter(other).insert(Insert(names=Names(), messages=[message()]))
        assert (await store.read("orders", partitions=EVERY_LANE, cursor=None, limit=10)).messages == []
        other.execute("commit")
    with connected(path) as other:
        other.execute("begin")
        assert other.execute("select count(*) from pillarbox_destination").fetchone() == (0,)
        await store.pause("orders", by="me", reason="why")
        assert other.execute("select count(*) from pillarbox_destination").fetchone() == (0,)


@pytest.mark.parametrize("odd", ["\x01", "\x00", "\u2028", '"', "\\", "ÿ", "\U0001f600", "1", "null", ""])
async def test_waiting_messages_are_found_by_any_key(store: SqliteStore, path: Path, odd: str) -> None:
    keys = ["customer-1", odd, f"{odd}x"]
    write(path, *(message(key=key) for key in ("customer-1", "customer-2", "customer-3")))
    with connected(path) as connection:
        for id_, key in enumerate(keys, start=1):
            connection.execute(
                "update pillarbox_outbox set waits = 'retry', available_at = 1, partition = 5, key = ? where id = ?",
                [key, id_],
            )
    wanted = [(5, key) for key in ("nobody", *keys)]
    found = await store.read_keys("orders", wanted, key_limit=10, limit=10)
    assert [[one.id for one in of_key.messages] for of_key in found] == [[], [1], [2], [3]]


async def test_a_claim_waits_for_another_writer(store: SqliteStore, path: Path) -> None:
    (one,) = await put(store, path, message())
    fence = await own(store)
    with connected(path) as other:
        other.execute("begin immediate")
        other.execute(
            "insert into pillarbox_journal (destination, action, at, by) values ('orders', 'paused', 1, 'me')"
        )
        claim = asyncio.create_task(store.claim(fence, Claim(1, [one.id])))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not claim.done()
        other.execute("commit")
        await claim
    settlement = Settlement(delivered=[one.id], finished=[1], message_ids={one.id: one.message_id})
    assert list(await store.settle(fence, settlement)) == []
    assert [found.state for found in await store.find(Selection(ids=[one.id]), limit=1)] == [State.DELIVERED]


@pytest.mark.parametrize(("synchronous", "durable"), [("full", 2), ("normal", 1)])
async def test_only_what_costs_no_more_than_a_repeat_does_not_wait_for_the_disk(
    path: Path, clock: FrozenClock, synchronous: str, durable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [message(), message()]
    write(path, *sent)
    levels: list[int] = []
    commit, write_at_once = Database._transaction, Database._write_at_once

    def watched(database: Database, used: Any, begin: str, *arguments: object) -> object:
        result = commit(database, used, begin, *arguments)  # type: ignore[arg-type,var-annotated]
        levels.append(used.get(None).execute("pragma synchronous").fetchone()[0])
        return result

    def watched_at_once(database: Database, *arguments: Any) -> object:
        result = write_at_once(database, *arguments)
        levels.append(database._writer.get(None).execute("pragma synchronous").fetchone()[0])
        return result

    monkeypatch.setattr(Database, "_transaction", watched)
    monkeypatch.setattr(Database, "_write_at_once", watched_at_once)
    async with opened(SqliteStore(path, clock=clock, synchronous=synchronous)) as store:  # type: ignore[arg-type]
        levels.clear()
        fence = await own(store)
        assert levels == [durable, 1, durable], "rows of lanes without an owner may be lost: the next take adds them"
        levels.clear()
        await store.claim(fence, Claim(1, [1]))
        await store.settle(fence, Settlement(delivered=[1], finished=[1], message_ids={1: sent[0].message_id}))
        await store.renew(fence.relay_id, lease=LEASE, reachable=[])
        assert levels == [1, 1, 1]
        levels.clear()
        await store.settle(fence, Settlement(failures=[FailedOutcome(message_id=2, state=State.FAILED)]))
        await store.redrive(Selection(ids=[2]), by="me", limit=1)
        await store.leave(fence.relay_id)
        assert levels == [durable, durable, durable]


# --- the thread --------------------------------------------------------------------------------


async def test_the_loop_goes_on_while_the_store_waits(store: SqliteStore, path: Path) -> None:
    """A store that blocked the loop would wait for a lock that only the loop can take away."""
    with connected(path) as other:
        other.execute("begin immediate")
        waiting = asyncio.create_task(store.pause("orders", by="me", reason="why"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        other.execute("rollback")
        await waiting
    assert [pause.destination for pause in await store.pauses()] == ["orders"]


async def test_a_cancelled_call_leaves_the_store_usable(store: SqliteStore, path: Path) -> None:
    with connected(path) as other:
        other.execute("begin immediate")
        waiting = [asyncio.create_task(store.pause(name, by="me", reason="why")) for name in ("first", "second")]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        other.execute("rollback")
    await store.pause("third", by="me", reason="why")
    assert "third" in [pause.destination for pause in await store.pauses()]
    assert all(task.cancelled() for task in waiting)


async def test_closing_lets_go_of_threads_and_file(path: Path) -> None:
    store = SqliteStore(path)
    await store.close()
    for _ in range(2):
        await store.open()
        await store.open()
        assert len(threads()) == 2
        await store.close()
        await store.close()
        assert threads() == []
        assert not _held(path)


async def test_a_cancelled_close_closes(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    with connected(path) as other:
        other.execute("begin immediate")
        busy = asyncio.create_task(store.pause("orders", by="me", reason="why"))
        await asyncio.sleep(0)
        closing_ = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        closing_.cancel()
        await asyncio.gather(closing_, return_exceptions=True)
        other.execute("rollback")
        await busy
    for thread in threading.enumerate():
        if thread.name.startswith("pillarbox-sqlite"):
            await asyncio.to_thread(thread.join)
    assert not _held(path)


def _held(path: Path) -> bool:
    """Whether this process has the file open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return any(link.exists() and link.readlink() == path for link in links)


async def test_a_failing_transaction_is_undone(store: SqliteStore, path: Path) -> None:
    def work(tx: object) -> None:
        tx.execute("pause", {"destination": "orders", "by": "me", "reason": "why"})  # type: ignore[attr-defined]
        raise RuntimeError("after a write")

    with pytest.raises(RuntimeError, match="after a write"):
        await store._database.write(work)
    assert await store.pauses() == []
    await store.pause("orders", by="me", reason="why")


async def test_the_log_is_copied_into_the_file_while_messages_are_written(path: Path, clock: FrozenClock) -> None:
    """The writer makes no checkpoints of its own, unless the log becomes very long. Others change the file."""
    async with opened(SqliteStore(path, clock=clock)) as store:
        fence = await own(store)
        before = os.stat(path).st_mtime_ns
        for number in range(1, 5_000):
            await store.claim(fence, Claim(number, [number]))
            if os.stat(path).st_mtime_ns != before:
                break
        else:
            pytest.fail("no checkpoint was made")


async def test_nothing_is_written_over_the_connection_that_reads(path: Path, clock: FrozenClock) -> None:
    async with opened(SqliteStore(path, clock=clock)) as store:
        with pytest.raises(StoreError, match="readonly"):
            await store._database.read(lambda tx: tx.execute("claims_forget"))
