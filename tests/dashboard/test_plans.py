"""No page walks through the outbox or the history: every statement of every page, explained by its database."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import asyncpg
import pytest

from pillarbox.contracts.store import Selection
from pillarbox.dashboard import Dashboard, listing
from pillarbox.dashboard.access import Role
from pillarbox.stores.mariadb import connection as mariadb
from pillarbox.stores.sqlite import connection as sqlite
from pillarbox.testing.samples import sample
from tests.dashboard.test_pages import list_paths
from tests.support.dashboard.client import Client, as_role
from tests.support.dashboard.seed import Filled, Relaying, fill
from tests.support.dashboard.stores import OpenStore, open_kind

ROWS = 4_000
"""Enough that a planner prefers an index wherever there is one."""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lists walk in windows that are small beside the tables, as they are in production."""
    monkeypatch.setattr(listing, "_WINDOW", 200)
    monkeypatch.setattr(listing, "LOOKED_AT", 600)


_BIG = re.compile(r"pillarbox_(outbox|history)(?!_\w*idx)")


async def ask_every_page(opened: OpenStore, filled: Filled) -> None:
    client = Client(Dashboard({"orders": opened.build()}, authorize=as_role(Role.OWNER)))
    try:
        for path in [*list_paths(filled), f"search?q={filled.messages['cause'].message_id}", "search?q=nothing"]:
            answer = await client.get(f"/orders/{path}")
            assert answer.status_code in (200, 303, 307), path
    finally:
        await client.dashboard.close()


async def fill_many(opened: OpenStore) -> Filled:
    """Fill the store, and put many fresh messages of one destination and many delivered ones of another into it."""
    filled = await fill(opened.store, opened.writer)
    for _ in range(ROWS // 500):
        await opened.writer.insert([sample(destination="busy", key=f"key-{n}") for n in range(500)])
    for _ in range(ROWS // 1_000):
        await opened.writer.insert([sample(destination="done", key=None) for _ in range(500)])
    done = Relaying(opened.store, "done")
    await done.start()
    found = await opened.store.find(Selection(destination="done"), limit=ROWS, payloads=False)
    for start in range(0, len(found), 500):
        await done.deliver("done", [one.id for one in found[start : start + 500]])
    return filled


class Recorder:
    """Notes statements with their values while it is switched on."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: dict[str, Any] = {}

    def note(self, sql: str, values: Any) -> None:
        if self.is_on and sql.lstrip().startswith(("select", "with", "-- ")) and _BIG.search(sql):
            self.seen.setdefault(sql, values)


# --- PostgreSQL ---


async def test_no_page_scans_a_table_of_postgresql(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    for name in ("fetch", "fetchrow", "fetchval"):
        original = getattr(asyncpg.Connection, name)

        def record(original: Any) -> Any:
            async def call(self: Any, query: str, *arguments: Any, **more: Any) -> Any:
                recorder.note(query, arguments)
                return await original(self, query, *arguments, **more)

            return call

        monkeypatch.setattr(asyncpg.Connection, name, record(original))
    async with open_kind("postgres", request) as opened:
        filled = await fill_many(opened)
        url, _, schema = opened.url.partition("?options=-csearch_path%3D")
        connection = await asyncpg.connect(url, server_settings={"search_path": schema})
        try:
            await connection.execute("analyze pillarbox_outbox; analyze pillarbox_history")
            recorder.is_on = True
            await ask_every_page(opened, filled)
            recorder.is_on = False
            assert len(recorder.seen) > 30
            scans = [found async for found in _list_scans(connection, recorder.seen)]
        finally:
            await connection.close()
    assert not scans, scans


async def _list_scans(connection: Any, seen: Mapping[str, Sequence[Any]]) -> AsyncIterator[str]:
    rows = dict(await connection.fetch("select relname::text, reltuples from pg_class where relkind = 'r'"))
    for sql, values in seen.items():
        plan = await connection.fetchval(f"explain (format json) {_without_comments(sql)}", *values)
        for node in _walk(json.loads(plan)[0]["Plan"]):
            relation = str(node.get("Relation Name", ""))
            # A partition that holds nothing is read as a whole: there is nothing in it.
            if node["Node Type"] == "Seq Scan" and _BIG.search(relation) and rows.get(relation, 0) > 100:
                yield f"{relation}: {_without_comments(sql)[-300:]}, {values}"


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


def _without_comments(sql: str) -> str:
    return re.sub(r"^--.*$", "", sql, flags=re.MULTILINE).strip()


# --- SQLite and MariaDB ---


@pytest.mark.parametrize(
    ("kind", "module", "explain"), [("sqlite", sqlite, "explain query plan"), ("mariadb", mariadb, "explain")]
)
async def test_no_page_scans_a_table_of_a_smaller_store(
    kind: str, module: Any, explain: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    original: Callable[..., Any] = module.Transaction._fetch
    scans: list[str] = []

    def fetch(self: Any, sql: str, values: Any) -> Any:
        if recorder.is_on and sql not in recorder.seen:
            recorder.note(sql, values)
            if sql in recorder.seen:
                plan = original(self, f"{explain} {_without_comments(sql)}", values)
                scans.extend(_find_scans(kind, plan, sql, values))
        return original(self, sql, values)

    monkeypatch.setattr(module.Transaction, "_fetch", fetch)
    async with open_kind(kind, request) as opened:
        filled = await fill_many(opened)
        recorder.is_on = True
        await ask_every_page(opened, filled)
    assert len(recorder.seen) > 30
    assert not scans, scans


def _find_scans(kind: str, plan: Sequence[Sequence[Any]], sql: str, values: Any) -> Iterator[str]:
    """List walks through a whole table. The first page of all messages of a state is one, and ends after its limit."""
    is_first_page = not any(str(name).startswith("selected_") for name in values or ())
    for row in plan:
        if kind == "sqlite":
            step = str(row[3])
            is_scan = step.startswith("SCAN pillarbox_") and "USING" not in step and _BIG.search(step) is not None
        else:
            table, access = str(row[2]), str(row[3])
            is_scan = _BIG.search(table) is not None and access in ("ALL", "index") and row[5] in (None, "PRIMARY")
            step = f"{table} {access}"
        if is_scan and not (is_first_page and "order by id" in sql):
            yield f"{step}: {_without_comments(sql)[-300:]}, {values}"
