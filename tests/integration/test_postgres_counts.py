"""What people ask of PostgreSQL costs the same on ten thousand rows as on ten million: indexes alone, bounded looks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pillarbox.contracts.store import Selection
from pillarbox.message import Names, State
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.queries import Parameters
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sql import Statements, build_conditions
from pillarbox.stores.statistics import TOPICS_LOOKED_UP
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.samples import sample_relay

_FILL = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time, waits, available_at, attempts)
    select gen_random_uuid(), 'billing', i % 64, 'event', 't', case i % 3 when 0 then 'eu' else 'us' end, 'k' || i,
           '', 'text/plain', '/', 'c', now(), nullif($2, ''), case $2 when '' then null when 'parked' then 'infinity'
           when 'deferred' then now() + interval '1 hour' else now() - interval '1 hour' end, 0
      from generate_series(1, $1::integer) i
"""
_CLOSED = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, key, payload,
                                   content_type, source, correlation_id, event_time, created_at, attempts, status_at,
                                   status)
    select -i, gen_random_uuid(), 'billing', 0, 'event', 't', 'eu', 'k', '', '', '/', 'c', now(), now(), 0, now(), $2
      from generate_series(1, $1::integer) i
"""
_LANE_INDEXES = {"pillarbox_outbox_place_idx", "pillarbox_outbox_blocked_idx", "pillarbox_outbox_due_idx"}
BY_ID = ("count_sending", "find_tried")
"""These look up messages whose ids they have; whoever else walks the primary key walks through everything."""


class Shop:
    """Tables that the server fills itself."""

    def __init__(self, connection: Any, names: Names, store: PostgresStore) -> None:
        self.connection = connection
        self.names = names
        self.store = store

    async def run(self, sql: str, *arguments: object) -> None:
        await self.connection.execute(self.names.qualify(sql), *arguments)

    async def put(self, count: int, waits: str = "") -> None:
        await self.run(_FILL, count, waits)

    async def counted(self, *, limit: int = 100_000) -> dict[tuple[State, bool, str | None], tuple[int, bool]]:
        counts = await self.store.counts(limit=limit)
        return {(one.state, one.due, one.topic): (one.count, one.more) for one in counts}


@pytest.fixture
async def shop(postgres_url: str, postgres_schema: str) -> AsyncIterator[Shop]:
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    connection: Any = await asyncpg.connect(postgres_url)
    store = PostgresStore(postgres_url, schema=postgres_schema, connections=1)
    await store.open()
    yield Shop(connection, names, store)
    await store.close()
    await connection.close()


@pytest.mark.parametrize(("waits", "due"), [("", True), ("retry", True), ("parked", True), ("deferred", False)])
async def test_a_backlog_is_counted_to_the_last_and_the_topics_of_the_first_are_told(
    shop: Shop, waits: str, due: bool
) -> None:
    await shop.put(TOPICS_LOOKED_UP + 500, waits)
    counted = await shop.counted()
    assert sum(count for count, _ in counted.values()) == TOPICS_LOOKED_UP + 500
    assert counted[State.PENDING, due, None] == (500, False)
    assert set(counted) == {(State.PENDING, due, topic) for topic in ("eu", "us", None)}


@pytest.mark.parametrize("waits", ["", "retry"])
async def test_what_is_in_hand_is_not_counted_twice(shop: Shop, waits: str) -> None:
    await shop.put(TOPICS_LOOKED_UP + 500, waits)
    claim = "insert into pillarbox_claim (relay_id, number, message_ids) select $1, 1, array_agg(id) from {} m"
    relay = sample_relay()
    await shop.store.register(relay, lease=timedelta(minutes=1))
    await shop.run(claim.format("(select id from pillarbox_outbox order by id desc limit 300)"), relay.relay_id)
    counted = await shop.counted()
    sums = {state: sum(count for (one, *_), (count, _) in counted.items() if one is state) for state in State}
    assert (sums[State.SENDING], sums[State.PENDING]) == (300, TOPICS_LOOKED_UP + 200)


async def test_a_count_that_ends_at_its_limit_says_so(shop: Shop) -> None:
    await shop.put(50)
    await shop.run(_CLOSED, 50, "failed")
    counted = await shop.counted(limit=20)
    assert sum(count for (state, *_), (count, _) in counted.items() if state is State.PENDING) == 20
    assert all(more for _, more in counted.values())
    assert counted[State.FAILED, True, "eu"] == (20, True)


async def test_failures_are_counted_to_the_last_and_the_topics_of_the_latest_are_told(shop: Shop) -> None:
    await shop.run(_CLOSED, TOPICS_LOOKED_UP + 10, "failed")
    counted = await shop.counted()
    assert counted == {
        (State.FAILED, True, "eu"): (TOPICS_LOOKED_UP, False), (State.FAILED, True, None): (10, False),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "arguments", "expected"),
    [
        ("count_fresh", (100_000, 1_000, None), {"Index Only Scan using pillarbox_outbox_place_idx"}),
        ("count_waiting", (100_000, 500, None), {"Index Scan using pillarbox_outbox_since_idx"}),
        ("count_ended", (100_000, 500), {"Index Only Scan using pillarbox_history_p0_ended_idx"}),
        ("count_sending", (100_000, None), {"Index Scan using pillarbox_outbox_pkey"}),
        ("oldest_due", (None,), {"pillarbox_outbox_place_idx", "pillarbox_outbox_since_idx"}),
        ("rollups", (datetime.now(UTC), 60), {"pillarbox_rollup_pkey"}),
        ("find_tried", (50, None), {"pillarbox_outbox_due_idx", "pillarbox_outbox_blocked_idx"}),
        ("lane_backlogs", ("billing", 1_000, None), _LANE_INDEXES),
        ("key_ids", ("billing", 7, "k7", 0, 50, 1_000), _LANE_INDEXES),
    ],
)
async def test_what_a_screen_asks_walks_no_table(
    shop: Shop, statement: str, arguments: tuple[object, ...], expected: set[str]
) -> None:
    for waits in ("", "", "", "retry", "parked", "deferred"):
        await shop.put(5_000, waits)
    await shop.run(_CLOSED, 20_000, "delivered")
    await shop.run(
        "insert into pillarbox_rollup (minute, destination, relay_id) "
        "select now() - i * interval '1 minute', 'billing', gen_random_uuid() from generate_series(1, 10000) i"
    )
    await shop.run("vacuum analyze pillarbox_rollup")
    await shop.run("vacuum analyze pillarbox_outbox")
    await shop.run("vacuum analyze pillarbox_history")
    sql = Statements("pillarbox.stores.postgres", shop.names)[statement]
    plan = "\n".join(row[0] for row in await shop.connection.fetch(f"explain {sql}", *arguments))
    assert all(walked in plan for walked in expected), plan
    assert "Seq Scan on pillarbox_outbox" not in plan
    assert "Sort Key: o." not in plan, plan  # what an index does not have in order is read whole, whatever the limit
    assert ("pillarbox_outbox_pkey" in plan) == (statement in BY_ID), plan
    assert "Seq Scan on pillarbox_history_p0 " not in plan  # the other partitions are empty


@pytest.mark.parametrize(("statement", "second"), [("find_pending", None), ("find_closed", "delivered")])
async def test_a_correlation_id_is_found_by_its_index(shop: Shop, statement: str, second: str | None) -> None:
    for table in ("outbox", "history"):
        await shop.run(_FILL, 5_000, "") if table == "outbox" else await shop.run(_CLOSED, 5_000, "delivered")
        await shop.run(f"update pillarbox_{table} set correlation_id = 'c-' || id")
        await shop.run(f"vacuum analyze pillarbox_{table}")
    parameters = Parameters((50, second))
    where = build_conditions(Selection(correlation_id="c-17"), parameters)
    sql = Statements("pillarbox.stores.postgres", shop.names).fill(statement, where)
    plan = "\n".join(row[0] for row in await shop.connection.fetch(f"explain {sql}", *parameters.values))
    assert "_corr_idx" in plan, plan
    assert not re.search("Seq Scan on pillarbox_(outbox|history_p0 )", plan)


async def test_a_table_that_was_never_analysed_has_no_estimate_of_its_rows(shop: Shop) -> None:
    await shop.put(500)
    rows = {one.name: one.rows for one in await shop.store.tables()}
    assert (rows["pillarbox_outbox"], rows["pillarbox_journal"]) == (None, 0)
    await shop.run("analyze pillarbox_outbox")
    assert {one.name: one.rows for one in await shop.store.tables()}["pillarbox_outbox"] == 500
