"""`relay`, `status`, `check` and `doctor` over several stores, of which one is away: each has its line."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from signal import SIGKILL
from threading import Event

import pytest

from pillarbox import Outbox
from pillarbox.relay.archive import read_archive
from pillarbox.stores.factory import open_schema
from tests.support.cli.program import RunResult, pillarbox
from tests.support.cli.relay_process import RelayProcess, start_relay
from tests.support.http_endpoint import Endpoint
from tests.support.relay_behaviour.scene import until

PASSWORD = "c4nary-s3cret"
GOOD = ("billing", "orders")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    made.moves.set()
    await made.stop()


@dataclass
class ShopPlace:
    folder: Path
    url: str


class Tenants:
    """Two files, and with `away` a server that nobody reaches."""

    def __init__(self, folder: Path, endpoint: Endpoint) -> None:
        self.folder = folder
        self._endpoint = endpoint

    async def install(self) -> None:
        for name in GOOD:
            await open_schema(f"sqlite:///{self.folder}/{name}.db").install()
        self.configure()

    def configure(self, *, away: bool = True) -> None:
        text = "".join(f'[stores.{name}]\nurl = "sqlite:///{self.folder}/{name}.db"\n' for name in GOOD)
        text += f'[stores.away]\nurl = "postgresql://somebody:{PASSWORD}@127.0.0.1:1/nothing"\n' if away else ""
        text += f'[destinations.hooks]\nurl = "{self._endpoint.url}?allow_private=true"\n'
        (self.folder / "pillarbox.toml").write_text(text)

    def publish(self, name: str, count: int, *, start: int = 0, keys: int = 1_000) -> None:
        """Publish numbers in one transaction, the keys in turn."""
        outbox = Outbox(routes="hooks", source=f"/{name}")
        with closing(sqlite3.connect(self.folder / f"{name}.db", timeout=60)) as connection, connection:
            for number in range(start, start + count):
                outbox.publish(connection, {"from": name, "n": number}, type="counted", key=f"{number % keys}")

    def start_relay(self) -> AbstractAsyncContextManager[RelayProcess]:
        stores = [f"{name}=sqlite:///{self.folder}/{name}.db" for name in (*GOOD, "away")]
        more = [option for store in stores[1:] for option in ("--store", store)]
        return start_relay(ShopPlace(self.folder, stores[0]), *more, "--lease", "1s", "--log-level", "error")

    async def run(self, *arguments: str) -> RunResult:
        """Run the program; whatever it says, it says no password and shows no traceback."""
        ran = await asyncio.to_thread(pillarbox, *arguments, cwd=self.folder)
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


async def test_once_ends_with_1_when_messages_of_one_of_them_wait_for_what_is_down(
    tenants: Tenants, endpoint: Endpoint
) -> None:
    tenants.configure(away=False)
    tenants.publish("orders", 3)
    await endpoint.stop()
    ran = await tenants.run("relay", "--once")
    assert (ran.code, "3 messages wait for what is down or paused: hooks" in ran.err) == (1, True), ran.err


async def test_once_ends_with_3_when_a_row_of_the_directory_is_no_tenant(tenants: Tenants, endpoint: Endpoint) -> None:
    directory = f"sqlite:///{tenants.folder}/orders.db"
    query = "select 'orders' union select 'no/name'"
    (tenants.folder / "pillarbox.toml").write_text(
        f'[tenants]\nstore = "sqlite:///{tenants.folder}/{{tenant}}.db"\ndirectory = "{directory}"\n'
        f'query = "{query}"\n[destinations.hooks]\nurl = "{endpoint.url}?allow_private=true"\n'
    )
    tenants.publish("orders", 3)
    ran = await tenants.run("relay", "--once")
    assert (ran.code, len(endpoint.taken)) == (3, 3)
    assert "'no/name' is no name of a tenant" in ran.err


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


KEYS = 4


async def test_killed_relays_lose_nothing_of_any_store_and_keep_its_order(tenants: Tenants, endpoint: Endpoint) -> None:
    """One of two is killed under load and replaced, three times. A third store is missing all the while."""
    stop = Event()

    def write(name: str) -> int:
        for batch in count():
            tenants.publish(name, 5, start=5 * batch, keys=KEYS)
            if stop.wait(0.02):
                return 5 * (batch + 1)
        raise AssertionError("a count does not end")

    async with AsyncExitStack() as started, asyncio.TaskGroup() as group:
        writers = {name: group.create_task(asyncio.to_thread(write, name)) for name in GOOD}
        try:
            relays = [await started.enter_async_context(tenants.start_relay()) for _ in range(2)]
            for _ in range(3):
                await until_taken(endpoint, len(endpoint.taken) + 60)
                relays.pop(0).signal(SIGKILL)
                relays.append(await started.enter_async_context(tenants.start_relay()))
        finally:
            stop.set()
        committed = {name: await writers[name] for name in GOOD}
        await until(lambda: len(list_arrived(endpoint)) == sum(committed.values()), within=60)
        assert [relay.process.returncode for relay in relays] == [None, None]
    for name, total in committed.items():
        for key in range(KEYS):
            numbers = [number for store, number in list_arrived(endpoint) if store == name and number % KEYS == key]
            assert numbers == [*range(key, total, KEYS)]


async def until_taken(endpoint: Endpoint, total: int) -> None:
    await until(lambda: len(endpoint.taken) >= total, within=60)


def list_arrived(endpoint: Endpoint) -> list[tuple[str, int]]:
    """List the stores and numbers that arrived, in the order in which each came first."""
    bodies = (json.loads(one.body) for one in endpoint.taken)
    return list(dict.fromkeys((body["from"], body["n"]) for body in bodies))


async def test_purge_ends_with_3_if_a_store_was_away_and_archives_each_in_its_own_folder(tenants: Tenants) -> None:
    for name in GOOD:
        tenants.publish(name, 2)
    assert (await tenants.run("relay", "--once")).code == 3
    for name in GOOD:
        with closing(sqlite3.connect(tenants.folder / f"{name}.db", timeout=60)) as connection, connection:
            connection.execute("update pillarbox_history set status_at = 0")
    ran = await tenants.run("purge", "--yes", "--archive", str(tenants.folder / "archive"))
    assert ran.code == 3
    assert sorted(path.name for path in (tenants.folder / "archive").iterdir()) == sorted(GOOD)
    for name in GOOD:
        assert f"{name}: 2 matched, 2 removed" in ran.out
        assert {one.source for one in read_archive(tenants.folder / "archive" / name)} == {f"/{name}"}
    assert (await tenants.run("purge", "--dry-run")).code == 3
    tenants.configure(away=False)
    assert (await tenants.run("purge", "--yes")).code == 0


def test_stores_are_chosen_by_name_and_a_wrong_name_gets_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "pillarbox.toml"
    config.write_text('[store]\nurl = "sqlite:///one.db"\n[stores.orders]\nurl = "sqlite:///two.db"\n')
    for name, file in (("main", "one.db"), ("orders", "two.db")):
        assert file in pillarbox("failures", "--store", name, cwd=tmp_path).sentence
        assert file in pillarbox("failures", cwd=tmp_path, PILLARBOX_STORE=name).sentence
    wrong = pillarbox("failures", "--store", "ordres", cwd=tmp_path)
    assert (wrong.code, wrong.sentence) == (2, "There is no store ordres: the nearest known is orders.")


def test_two_stores_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text(
        '[store]\nurl = "sqlite:///one.db"\n[stores.main]\nurl = "sqlite:///two.db"\n'
    )
    ran = pillarbox("status", cwd=tmp_path)
    assert ran.code == 2
    assert "[store] and [stores.main] are two stores of one name, main: rename [stores.main]." in ran.sentence


async def test_a_store_that_is_chosen_of_several_has_the_folder_of_its_archive_that_it_has_among_them(
    tenants: Tenants,
) -> None:
    """Of two tenants that are purged or served one after the other, messages must not come into one folder."""
    archive = tenants.folder / "archive"
    with (tenants.folder / "pillarbox.toml").open("a") as file:
        file.write(f'[relay.retention]\ndelivered = "1d"\narchive = "{archive}"\n')
    for name, command in zip(GOOD, (["purge", "--yes"], ["relay", "--once"]), strict=True):
        tenants.publish(name, 2)
        assert (await tenants.run("relay", "--once", "--store", name)).code == 0
        with closing(sqlite3.connect(tenants.folder / f"{name}.db", timeout=60)) as connection, connection:
            connection.execute("update pillarbox_history set status_at = 0")
        assert (await tenants.run(*command, "--store", name)).code == 0
        assert {one.source for one in read_archive(archive / name)} == {f"/{name}"}
    assert sorted(path.name for path in archive.iterdir()) == sorted(GOOD)
