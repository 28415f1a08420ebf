"""`relay`, `status`, `check` and `doctor` over several stores, of which one is away: each has its line."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from pillarbox import Outbox
from pillarbox.stores.factory import open_schema
from tests.support.cli.program import RunResult, pillarbox
from tests.support.http_endpoint import Endpoint

PASSWORD = "c4nary-s3cret"
GOOD = ("billing", "orders")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    made.moves.set()
    await made.stop()


class Tenants:
    """Two files, and with `away` a server that nobody reaches."""

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        self._folder = folder
        self._endpoint = endpoint

    async def install(self) -> None:
        for name in GOOD:
            await open_schema(f"sqlite:///{self._folder}/{name}.db").install()
        self.configure()

    def configure(self, *, away: bool = True) -> None:
        text = "".join(f'[stores.{name}]\nurl = "sqlite:///{self._folder}/{name}.db"\n' for name in GOOD)
        text += f'[stores.away]\nurl = "postgresql://somebody:{PASSWORD}@127.0.0.1:1/nothing"\n' if away else ""
        text += f'[destinations.hooks]\nurl = "{self._endpoint.url}?allow_private=true"\n'
        (self._folder / "pillarbox.toml").write_text(text)

    def publish(self, name: str, count: int) -> None:
        outbox = Outbox(routes="hooks", source=f"/{name}")
        with closing(sqlite3.connect(self._folder / f"{name}.db")) as connection, connection:
            for number in range(count):
                outbox.publish(connection, {"from": name, "n": number}, type="counted", key=f"{number}")

    async def run(self, *arguments: str) -> RunResult:
        """Run the program; whatever it says, it says no password and shows no traceback."""
        ran = await asyncio.to_thread(pillarbox, *arguments, cwd=self._folder)
        assert PASSWORD not in ran.out + ran.err
        assert "Traceback" not in ran.err
        return ran


@pytest.fixture
async def tenants(tmp_path: Path, endpoint: Endpoint) -> Tenants:
    made = Tenants(tmp_path, endpoint)
    await made.install()
    return made


def list_lines(text: str, *names: str) -> list[str]:
    """List the names at which lines begin, in order."""
    return [line.split()[0] for line in text.splitlines() if line.split() and line.split()[0] in names]


async def test_once_delivers_from_all_that_answer_and_ends_with_3_for_one_that_is_away(
    tenants: Tenants, endpoint: Endpoint
) -> None:
    for name in GOOD:
        tenants.publish(name, 5)
    ran = await tenants.run("relay", "--once")
    assert ran.code == 3
    arrived = sorted((body["from"], body["n"]) for body in (json.loads(one.body) for one in endpoint.taken))
    assert arrived == [(name, number) for name in GOOD for number in range(5)]
    (line,) = [line for line in ran.err.splitlines() if "[away]" in line and "cannot be reached" in line]
    assert "warning" in line or "error" in line


async def test_once_ends_with_0_when_all_were_served(tenants: Tenants, endpoint: Endpoint) -> None:
    tenants.configure(away=False)
    tenants.publish("orders", 3)
    assert (await tenants.run("relay", "--once")).code == 0
    assert len(endpoint.taken) == 3


async def test_status_has_a_line_for_each_and_the_exit_code_of_the_reason(tenants: Tenants) -> None:
    tenants.publish("orders", 7)
    ran = await tenants.run("status")
    assert ran.code == 3
    assert list_lines(ran.out, "away", *GOOD) == ["away", "billing", "orders"]
    (orders,) = [line for line in ran.out.splitlines() if line.startswith("orders ")]
    assert orders.split()[1] == "7"
    assert (ran.out + ran.err).count("away: PostgreSQL cannot be reached") == 1
    tenants.configure(away=False)
    assert (await tenants.run("status")).code == 0


async def test_check_names_the_store_of_each_alert_and_one_that_is_away_is_critical(tenants: Tenants) -> None:
    ran = await tenants.run("check")
    assert ran.code == 7
    alerts = [line for line in ran.out.splitlines() if line.startswith(("CRITICAL", "WARNING"))]
    assert [alert.split(":")[:2] for alert in alerts] == [
        ["CRITICAL", " away"],
        ["WARNING", " billing"],
        ["WARNING", " orders"],
    ]


async def test_doctor_checks_every_store_and_each_destination_once(tenants: Tenants) -> None:
    ran = await tenants.run("doctor")
    assert ran.code == 7
    titles = [line for line in ran.out.splitlines() if line.startswith(("store ", "destination "))]
    assert [" ".join(title.split()[:2]) for title in titles] == [
        "store away",
        "store billing",
        "store orders",
        "destination hooks",
    ]
    assert "store.unreachable" in ran.out


async def test_a_command_for_one_store_asks_which(tenants: Tenants) -> None:
    ran = await tenants.run("messages", "list")
    assert ran.code == 2
    assert "--store NAME" in ran.sentence
    assert (await tenants.run("messages", "list", "--store", "orders")).code == 0
