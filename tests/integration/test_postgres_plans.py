"""The hot statements walk the index that is meant, whatever the statistics say.

The tables are filled as badly as can be: every row of one transaction, nearly all of one key, most of them dead. With
plain planner settings some of these statements walk the primary key through every dead row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.connection import SESSION_SETTINGS
from pillarbox.stores.postgres.store import build_small_read
from pillarbox.stores.sql import Statements
from pillarbox.stores.urls import parse_store_url

_FILL = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time, waits, available_at)
    select gen_random_uuid(), 'orders', 7, 'event', 't', 't', 'hot', '', 'text/plain', '/', 'c', now(), w,
           case when w is not null then now() end
      from generate_series(1, 20000) i, lateral (select (array[null, null, 'parked', 'retry'])[1 + i % 4] as w) s
"""


@pytest.fixture
async def database(postgres_url: str, postgres_schema: str) -> AsyncIterator[tuple[Any, Names]]:
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    connection: Any = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(names.qualify("alter table pillarbox_outbox set (autovacuum_enabled = off)"))
        await connection.execute(names.qualify(_FILL))
        await connection.execute(names.qualify("analyze pillarbox_outbox"))
        await connection.execute(names.qualify("delete from pillarbox_outbox where id % 100 <> 0"))
        await connection.execute("; ".join(f"set {name} = '{value}'" for name, value in SESSION_SETTINGS))
        yield connection, names
    finally:
        await connection.close()


_RELAY = str(uuid4())
_LANE = "'{7}'::smallint[]"


@pytest.mark.parametrize(
    ("statement", "arguments", "expected", "never"),
    [
        (
            "read",
            f"'orders', {_LANE}, '{{0}}', 10, 10, '{{5,6}}', '7', 99, 100, '{{}}', 9999",
            {"place", "late"},
            {"pkey"},
        ),
        (
            "small_read",
            f"'orders', {_LANE}, '{{0}}', 10, 10, '{{5,6}}', '7', 99, 100, '{{}}', 9999",
            {"place", "late"},
            {"pkey"},
        ),
        (
            "read",
            f"'orders', {_LANE}, '{{0}}', 10, 10, '{{}}', '7', 99, 100, '{{hot}}', 9999",
            {"place", "late"},
            {"pkey"},
        ),
        (
            "peek",
            f"'{{orders}}', {_LANE}, '{{0}}', '{{5,6}}', '7', 99, 100, '{{orders}}', null",
            {"place", "late", "due", "blocked"},
            {"pkey"},
        ),
        ("find_due", f"'orders', {_LANE}, '{{null}}', '{{0}}', 10, null", {"due"}, {"pkey", "place", "late"}),
        ("read_due", "'{100,200}', 'orders', null", {"pkey"}, {"place", "late", "due", "blocked"}),
        (
            "read_keys",
            f"'orders', {_LANE}, '{{hot}}', 10, 10, 9999",
            {"blocked"},
            {"pkey", "place", "late", "due"},
        ),
        ("blocked_keys", f"'orders', {_LANE}", {"blocked"}, {"pkey", "place", "late", "due"}),
        ("next_due", f"'orders', {_LANE}", {"due"}, {"pkey", "place", "late", "blocked"}),
        (
            "settle",
            f"'{_RELAY}', 'orders', {_LANE}, '{{1}}', '{{100,200}}', '{{1}}', '{{}}', '{{}}', 'full', null, '{{}}', "
            "'{}'",
            {"pkey"},
            {"place", "late", "due", "blocked"},
        ),
    ],
)
async def test_a_hot_statement_walks_its_index(
    database: tuple[Any, Names], statement: str, arguments: str, expected: set[str], never: set[str]
) -> None:
    connection, names = database
    statements = Statements("pillarbox.stores.postgres", names)
    is_small = statement == "small_read"
    sql = build_small_read(statements["read"]) if is_small else statements[statement]
    await connection.execute(f"prepare hot as {sql}")
    plan = "\n".join(row[0] for row in await connection.fetch(f"explain execute hot({arguments})"))
    walked = {index for index in ("pkey", "place", "late", "due", "blocked") if f"pillarbox_outbox_{index}" in plan}
    assert expected <= walked, plan
    assert not walked & never, plan
    assert "Seq Scan on pillarbox_outbox" not in plan
    assert "Sort" not in plan, plan
    assert not is_small or "WindowAgg" not in plan, plan


_CLOSED = """
    insert into pillarbox_history (id, message_id, destination, partition, kind, type, topic, payload, content_type,
                                   source, correlation_id, event_time, created_at, attempts, status_at, status)
    select i, gen_random_uuid(), 'orders', 7, 'event', 't', 't', '', '', '/', 'c', now(), now(), 0, now(),
           case i % 100 when 0 then 'failed' else 'delivered' end
      from generate_series(1, 20000) i
"""


@pytest.mark.parametrize(
    ("call", "walked"),
    [
        ("history_window(0, 100, null, '0s', null)", {"pkey"}),
        ("purge_delivered('0s', 100, null, 0, 5000)", {"pkey"}),
        ("purge_ended('failed', '0s', 100, null, 'orders', '2026-01-01')", {"ended", "pkey"}),
    ],
)
@pytest.mark.parametrize("lookups", [False, True])
async def test_retention_walks_no_history(
    database: tuple[Any, Names], postgres_url: str, call: str, walked: set[str], lookups: bool
) -> None:
    connection, names = database
    await open_schema(parse_store_url(postgres_url), names=names).change_lookups(wanted=lookups)
    await connection.execute(names.qualify(_CLOSED))
    await connection.execute(names.qualify("analyze pillarbox_history"))
    statement = call.split("(", maxsplit=1)[0]
    await connection.execute(f"prepare {statement} as {Statements('pillarbox.stores.postgres', names)[statement]}")
    plan = "\n".join(row[0] for row in await connection.fetch(f"explain execute {call}"))
    found = {name for name in ("pkey", "ended", "status", "message", "corr") if f"pillarbox_history_p0_{name}" in plan}
    assert found == walked, plan
    assert "Seq Scan on pillarbox_history" not in plan
    assert "Sort  (" not in plan, plan  # partitions are merged in order
