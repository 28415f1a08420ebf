"""Claims and settlements of an SQLite store as one statement: the same as statement by statement, or refused."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, FailedOutcome, Fence, RelayInfo, Settlement
from pillarbox.errors import Fenced, PillarboxError, StoreRefused
from pillarbox.message import Names, State, compute_partition
from pillarbox.stores.factory import open_schema
from pillarbox.stores.rules import Keep
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.sqlite.connection import Database, build_statements
from pillarbox.stores.sqlite.procedures import build_procedures
from pillarbox.stores.urls import parse_store_url

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
RELAY = UUID(int=7)
LEASE = timedelta(seconds=10)
TABLES = ("outbox", "history", "claim", "rollup", "journal", "lane")
INSERT = """
    insert into pillarbox_outbox (
        destination, kind, type, topic, payload, content_type, source, correlation_id,
        message_id, partition, key, event_time, created_at, available_at, waits, due_at, status_at)
    values ('orders', 'event', 'orders.placed', 'orders', x'7b7d', 'application/json', '/shop', 'c',
            ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables in it."""
    path = tmp_path_factory.mktemp("procedures") / "empty.db"
    asyncio.run(open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install())
    with connected(path) as connection:
        connection.execute("pragma journal_mode = delete")  # all of it in one file, which can be copied
    return path


@pytest.fixture
def path(empty: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty, tmp_path / "shop.db"))


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")
        yield connection


@asynccontextmanager
async def opened(path: Path, *, keep: Keep = "full") -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=FrozenClock(NOW), keep=keep, synchronous="normal")
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def own(store: SqliteStore, *, relay_id: UUID = RELAY) -> Fence:
    relay = RelayInfo(
        relay_id=relay_id, service="shop", host="h", pid=1, version="1", destinations=["orders"], reachable=[]
    )
    await store.register(relay, lease=LEASE)
    lanes, _ = await store.take(relay_id, "orders", partitions=range(64), lease=LEASE, claim_number=1)
    return Fence(relay_id, "orders", {lane.partition: lane.epoch for lane in lanes})


def put(path: Path, *rows: Mapping[str, Any]) -> dict[int, UUID]:
    """Write messages; return their ids and message ids."""
    with connected(path) as connection, connection:
        connection.execute("begin")
        return dict(_insert(connection, **row) for row in rows)


def _insert(
    connection: sqlite3.Connection,
    *,
    age: int = 0,
    event_age: int = 0,
    due_age: int | None = None,
    waits: str | None = None,
) -> tuple[int, UUID]:
    """Insert a message; ages are in microseconds."""
    message_id, now = uuid4(), int(NOW.timestamp() * 1_000_000)
    key = f"customer-{message_id}"
    available_at = None if waits is None else now - age
    due_at = None if due_age is None else now - due_age
    values = (
        str(message_id), compute_partition(key, message_id), key, now - event_age, now - age, available_at, waits,
        due_at, now - age,
    )  # fmt: skip
    id_ = connection.execute(INSERT, values).lastrowid
    assert id_ is not None
    return id_, message_id


def dump(path: Path) -> dict[str, list[Any]]:
    with connected(path) as connection:
        tables = {
            table: connection.execute(f"select * from pillarbox_{table} order by 1, 2, 3").fetchall()
            for table in TABLES
        }
    # Sums of seconds are rounded in another order.
    tables["rollup"] = [
        tuple(pytest.approx(value) if isinstance(value, float) else value for value in row) for row in tables["rollup"]
    ]
    return tables


@contextmanager
def statement_by_statement() -> Iterator[None]:
    """Refuse every procedure."""

    async def refuse(*_: object) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "write_at_once", refuse)
        yield


@contextmanager
def count_transactions() -> Iterator[list[str]]:
    """Yield the beginnings of transactions that are made of several statements."""
    begun: list[str] = []
    transaction = Database._transaction

    def watched(database: Database, used: Any, begin: str, *arguments: Any) -> object:
        begun.append(begin)
        return transaction(database, used, begin, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_transaction", watched)
        yield begun


# --- the usual case ----------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["full", "no-payload", "off"])
async def test_a_claim_and_its_deliveries_are_one_statement_each(path: Path, keep: Keep) -> None:
    sent = put(path, *[{}] * 10)
    async with opened(path, keep=keep) as store:
        fence = await own(store)
        with count_transactions() as begun:
            revisions = await store.claim(fence, Claim(1, list(sent)))
            assert await store.settle(fence, Settlement(delivered=list(sent), finished=[1], message_ids=sent)) == ()
    assert begun == []
    assert revisions == dict.fromkeys(range(64), 0)
    tables = dump(path)
    assert tables["outbox"] == tables["claim"] == []
    assert len(tables["history"]) == (0 if keep == "off" else 10)


async def test_procedures_leave_nothing_in_the_file(path: Path) -> None:
    def list_names() -> list[Any]:
        with connected(path) as connection:
            return connection.execute("select type, name from sqlite_master order by 1, 2").fetchall()

    before = list_names()
    async with opened(path) as store:
        await own(store)
        assert list_names() == before
    assert list_names() == before


async def test_a_claim_returns_the_revisions_of_its_lanes_alone(path: Path) -> None:
    ((id_, _),) = put(path, *[{}] * 1).items()
    with connected(path) as connection:
        connection.execute("insert into pillarbox_lane (destination, partition, revision) values ('orders', 5, 3)")
    async with opened(path) as store:
        fence = await own(store)
        assert await store.claim(fence.narrow([5, 6]), Claim(1, [id_])) == {5: 3, 6: 0}


# --- the same as statement by statement --------------------------------------------------------

AGES = st.sampled_from([-1_000_000, 0, 4_999, 5_000, 9_999, 10_000, 99_999, 2_400_000, 1_799_999_999, 1_800_000_000])
ROWS = st.lists(
    st.fixed_dictionaries(
        {"age": AGES, "event_age": AGES, "waits": st.sampled_from([None, "retry", "deferred"])},
        optional={"due_age": AGES},
    ),
    min_size=1,
    max_size=12,
)
OTHERS_CHANGES = {
    "nothing": "select 1",
    "other message": "update pillarbox_outbox set message_id = 'c0ffee00-0000-4000-8000-000000000000' where id = 1",
    "other spelling": "update pillarbox_outbox set message_id = upper(message_id) where id = 1",
    "no id at all": "update pillarbox_outbox set message_id = 'none' where id = 1",
    "other destination": "update pillarbox_outbox set destination = 'mail' where id = 1",
    "closed": "delete from pillarbox_outbox where id = 1",
    "in history": "insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic,"
    " content_type, source, correlation_id, event_time, created_at, attempts, status_at, status)"
    " values (1, 'm', 'orders', 0, 'event', 't', 't', 'c', 's', 'c', 0, 0, 0, 0, 'delivered')",
    "out of its claim": "update pillarbox_claim set message_ids = replace(message_ids, '[1,', '[')",
    "claim gone": "delete from pillarbox_claim where number = 1",
    "claim unreadable": "update pillarbox_claim set message_ids = 'x' where number = 1",
    "journal": "insert into pillarbox_journal (message_id, destination, action, at, by)"
    " select message_id, destination, 'tried', 1, 'relay' from pillarbox_outbox",
    "counted": "insert into pillarbox_rollup (minute, destination, relay_id, delivered, latency_max, under_5ms)"
    f" values ({int(NOW.timestamp()) // 60 * 60_000_000}, 'orders', '{RELAY}', 3, 1e9, 3)",
    "odd time": "update pillarbox_outbox set due_at = 'soon' where id = 1",
    "far time": "update pillarbox_outbox set due_at = -9223372036854775807 where id = 1",
}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=ROWS,
    data=st.data(),
    keep=st.sampled_from(["full", "no-payload", "off"]),
    change=st.sampled_from(sorted(OTHERS_CHANGES)),
)
def test_one_statement_changes_what_several_would(
    empty: Path, rows: Sequence[Mapping[str, Any]], data: st.DataObject, keep: Keep, change: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "one.db"), Path(folder, "several.db")
        shutil.copy(empty, first)
        sent = put(first, *rows)
        ids = list(sent)
        middle = data.draw(st.integers(0, len(ids)))
        claims = [Claim(1, ids[:middle]), Claim(2, ids[middle:])]
        delivered = data.draw(st.permutations(ids))[: data.draw(st.integers(1, len(ids)))]
        left = {claim.number: set(claim.message_ids) - set(delivered) for claim in claims}
        named = [claim.number for claim in claims if set(claim.message_ids) & set(delivered)]
        settlement = Settlement(
            delivered=delivered, message_ids={id_: sent[id_] for id_ in delivered},
            finished=[number for number in named if not left[number]], touched=[n for n in named if left[n]],
        )  # fmt: skip
        shutil.copy(first, second)
        asyncio.run(_settle(first, claims, settlement, change=change, keep=keep))
        with statement_by_statement():
            asyncio.run(_settle(second, claims, settlement, change=change, keep=keep))
        one, several = dump(first), dump(second)
        if change == "in history":  # a random id
            for tables in (one, several):
                tables["history"] = sorted(row[1:] for row in tables["history"])
        assert one == several


async def _settle(path: Path, claims: Sequence[Claim], settlement: Settlement, *, change: str, keep: Keep) -> None:
    async with opened(path, keep=keep) as store:
        fence = await own(store)
        for claim in claims:
            if claim.message_ids:
                await store.claim(fence, claim)
        with connected(path) as connection:
            connection.execute(OTHERS_CHANGES[change])
        await store.settle(fence, settlement)


# --- what is refused ---------------------------------------------------------------------------


async def _try_both(store: SqliteStore, fence: Fence, claim: Claim, settlement: Settlement) -> list[PillarboxError]:
    errors: list[PillarboxError] = []
    try:
        await store.claim(fence, claim)
    except PillarboxError as error:
        errors.append(error)
    try:
        await store.settle(fence, settlement)
    except PillarboxError as error:
        errors.append(error)
    return errors


async def test_a_relay_that_lost_a_lane_neither_claims_nor_settles(path: Path) -> None:
    sent = put(path, *[{}] * 3)
    async with opened(path) as store:
        fence = await own(store)
        await store.claim(fence, Claim(1, list(sent)))
        with connected(path) as connection:
            connection.execute("update pillarbox_lane set epoch = epoch + 1 where partition = 9")
        before = dump(path)
        settlement = Settlement(delivered=list(sent), finished=[1], message_ids=sent)
        errors = await _try_both(store, fence, Claim(2, list(sent)), settlement)
        assert [type(error) for error in errors] == [Fenced, Fenced]
        others = Fence(uuid4(), fence.destination, {p: e for p, e in fence.epochs.items() if p != 9})
        errors = await _try_both(store, others, Claim(2, list(sent)), settlement)
        assert [type(error) for error in errors] == [Fenced, Fenced]
    assert dump(path) == before


async def test_only_lanes_of_the_fence_are_reached(path: Path) -> None:
    sent = put(path, *[{}] * 20)
    async with opened(path) as store:
        fence = await own(store)
        await store.claim(fence, Claim(1, list(sent)))
        with connected(path) as connection:
            lanes = dict(connection.execute("select id, partition from pillarbox_outbox").fetchall())
        some = {*list(lanes.values())[:5], 63}
        settlement = Settlement(delivered=list(sent), finished=[1], message_ids=sent)
        await store.settle(fence.narrow(some), settlement)
    assert {row[0] for row in dump(path)["history"]} == {id_ for id_, lane in lanes.items() if lane in some}


async def test_what_a_trigger_of_others_refuses_is_refused_as_always(path: Path) -> None:
    sent = put(path, *[{}] * 3)
    with connected(path) as connection:
        connection.execute(
            "create trigger keep_it before delete on pillarbox_outbox when old.id = 2 "
            "begin select raise(abort, 'it stays'); end"
        )
    async with opened(path) as store:
        fence = await own(store)
        await store.claim(fence, Claim(1, list(sent)))
        before = dump(path)
        with pytest.raises(StoreRefused, match="it stays"):
            await store.settle(fence, Settlement(delivered=list(sent), finished=[1], message_ids=sent))
    assert dump(path) == before


@pytest.mark.parametrize("change", ["failures", "returned", "no claims", "not named"])
async def test_more_than_claimed_messages_delivered_takes_the_way_of_all_stores(path: Path, change: str) -> None:
    sent = put(path, *[{}] * 3)
    settlements = {
        "failures": Settlement(
            delivered=[1, 2], failures=[FailedOutcome(message_id=3, state=State.FAILED)], finished=[1], message_ids=sent
        ),
        "returned": Settlement(delivered=[1, 2], returned=[3], finished=[1], message_ids=sent),
        "no claims": Settlement(delivered=[1, 2], message_ids=sent),
        "not named": Settlement(delivered=[1, 2, 3], finished=[1], message_ids={1: sent[1]}),
    }
    async with opened(path) as store:
        fence = await own(store)
        await store.claim(fence, Claim(1, list(sent)))
        with count_transactions() as begun:
            unclaimed: Collection[int] = await store.settle(fence, settlements[change])
    assert list(unclaimed) == []
    assert begun == ["begin immediate"]


# --- the plans ---------------------------------------------------------------------------------

STEPS = {
    f"{number} {name}": step
    for name in ("claiming_trigger", "delivering_trigger")
    for number, step in enumerate(
        [
            text
            for definition in build_procedures(build_statements(Names()))
            if f'"pillarbox_{name.replace("trigger", "trg")}"' in definition
            for text in re.sub(r"(?s)^.*?\bbegin\b|\bend\s*$", "", definition).split(";")
            if text.strip()
        ],
        start=1,
    )
}


def test_the_steps_of_the_procedures_are_known() -> None:
    assert len(STEPS) == 12


@pytest.mark.parametrize("name", STEPS)
def test_no_step_of_a_procedure_walks_over_messages_or_sorts_them(path: Path, name: str) -> None:
    sql = re.sub(r"raise\(abort, '[^']*'\)", "1", re.sub(r"\bnew\.(\w+)", r":\1", STEPS[name]))
    values = dict.fromkeys(re.findall(r":(\w+)", sql), "[]")
    with connected(path) as connection:
        steps = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    tables = r"pillarbox_\w+|[lc]\b"
    assert [step for step in steps if re.match(rf"SCAN ({tables})", step)] == []
    assert [step for step in steps if "TEMP B-TREE" in step and "DISTINCT" not in step] == []
    found = [step for step in steps if step.startswith("SEARCH pillarbox_outbox")]
    assert all("USING INTEGER PRIMARY KEY (rowid=?)" in step for step in found)
