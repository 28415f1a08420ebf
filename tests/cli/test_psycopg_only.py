"""All that runs on PostgreSQL runs where asyncpg is not installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from pillarbox import Outbox
from tests.support.cli.demo import ORDERS, check_result
from tests.support.cli.program import RunResult, forbid_imports, pillarbox
from tests.support.http_endpoint import Endpoint

SOME_WARNING = 6
"""What the server at hand is set to is its owner's business."""


@pytest.fixture
def modules(tmp_path: Path) -> str:
    folder = tmp_path / "modules"
    folder.mkdir()
    return forbid_imports(folder, "asyncpg")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    await made.stop()


def publish(url: str, schema: str, *, count: int) -> None:
    outbox = Outbox(routes="hooks", source="/shop", schema=schema)
    with psycopg.connect(url) as tx:
        for number in range(count):
            outbox.publish(tx, {"n": number}, type="orders.placed", key="k", headers={"a": "b"})


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
async def test_from_the_tables_to_the_delivery(
    modules: str, endpoint: Endpoint, postgres_url: str, postgres_schema: str, scheme: str
) -> None:
    store = ("--store", postgres_url.replace("postgresql", scheme, 1), "--schema", postgres_schema)
    hooks = ("--to", f"hooks={endpoint.url}?allow_private=true")

    async def run(*command: str) -> RunResult:
        return await asyncio.to_thread(pillarbox, *command, *store, PYTHONPATH=modules)

    assert (await run("schema", "install")).code == 0
    assert (await run("schema", "verify")).code == 0
    assert (await run("doctor", *hooks)).code in {0, SOME_WARNING}
    publish(postgres_url, postgres_schema, count=20)
    relay = await run("relay", "--once", *hooks)
    status = await run("status", "-o", "json")
    replayed = await run("messages", "replay", "--topic", "orders.placed", "--yes")
    again = await run("relay", "--once", *hooks)

    assert (relay.code, status.code, replayed.code, again.code) == (0, 0, 0, 0), (relay, status, replayed, again)
    numbers = [json.loads(arrival.body)["n"] for arrival in endpoint.taken]
    assert (numbers[:20], sorted(numbers[20:])) == (list(range(20)), list(range(20)))
    assert {arrival.headers["a"] for arrival in endpoint.taken} == {"b"}
    assert "asyncpg" not in relay.err + status.err


def test_the_demo(modules: str, postgres_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    store = postgres_url.replace("postgresql", "postgresql+psycopg", 1)

    ran = pillarbox(
        "demo", "--orders", str(ORDERS), "--seed", "5", "--json", "--store", store,
        cwd=folder, TMPDIR=str(folder), PYTHONPATH=modules,
    )  # fmt: skip

    check_result(ran)
    assert list(folder.iterdir()) == []
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select 1 from pg_namespace where nspname like 'pillarbox_demo%'").fetchall() == []
