"""`pillarbox relay --processes`, the real program: several relays that start, stop and answer as one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pillarbox import Outbox, Relay
from pillarbox.cli._supervisor import Supervisor
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.cli.program import RunResult, pillarbox
from tests.support.cli.relay_process import RelayProcess, start_relay
from tests.support.http_endpoint import Endpoint, free_port

KEYS = 40
TWO = ("--processes", "2", "--lease", "1s")


class Depot:
    """A store with our tables, and the settings of a program that uses it."""

    def __init__(self, folder: Path, url: str, connect: Callable[[], Any], schema: str | None) -> None:
        self.folder = folder
        self.url = url
        self.settings = {} if schema is None else {"PILLARBOX_SCHEMA": schema}
        self._connect = connect
        self._names = Names(schema)
        self._published = 0

    def publish(self, count: int, *, to: str = "hooks") -> None:
        outbox = Outbox(routes=to, source="/shop", schema=self._names.schema)
        with closing(self._connect()) as connection:
            for number in range(self._published, self._published + count):
                outbox.publish(connection, {"n": number}, type="orders.placed", key=f"k{number % KEYS}")
            connection.commit()
        self._published += count

    def rows(self, sql: str) -> Sequence[Any]:
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(self._names.qualify(sql))
            return list(cursor.fetchall())

    def count(self, sql: str) -> int:
        ((number,),) = self.rows(f"select count(*) from {sql}")
        return int(number)

    def run(self, *arguments: str) -> RunResult:
        return pillarbox(*arguments, "--store", self.url, cwd=self.folder, **self.settings)

    async def find_pids(self) -> dict[str, int]:
        """Return the processes that are alive in the registry, by their place: `{"1/2": 4711}`."""
        ran = await asyncio.to_thread(self.run, "relays", "-o", "json")
        return {one["labels"]["process"]: one["pid"] for one in json.loads(ran.out)["relays"]}

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_true():  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.05)


@pytest.fixture
async def depot(tmp_path: Path) -> Depot:
    file = tmp_path / "shop.db"
    await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
    return Depot(tmp_path, "sqlite:///shop.db", lambda: sqlite3.connect(file), None)


@pytest.fixture(params=["sqlite", "postgres"])
async def any_depot(request: pytest.FixtureRequest, tmp_path: Path) -> Depot:
    if request.param == "sqlite":
        file = tmp_path / "shop.db"
        await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
        return Depot(tmp_path, "sqlite:///shop.db", lambda: sqlite3.connect(file), None)
    url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
    await open_schema(parse_store_url(url), names=Names(schema)).install()
    return Depot(tmp_path, url, lambda: psycopg.connect(url), schema)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    made.moves.set()
    await made.stop()


def hooks(endpoint: Endpoint) -> tuple[str, str]:
    return "--to", f"hooks={endpoint.url}?allow_private=true"


async def wait_for_both(relay: RelayProcess) -> None:
    """Wait until both processes have their share of the lanes."""
    await relay.wait_for_line("[2/2] took 32 lanes of hooks")


def has_ended(pid: int) -> bool:
    """Return whether nothing runs under that id. What only waits to be reaped does not run."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return shown.stdout.strip()[:1] in ("", "Z")


def assert_left_clean(depot: Depot) -> None:
    assert depot.count("pillarbox_relay") == 0
    assert depot.count("pillarbox_claim") == 0
    assert depot.count("pillarbox_lane where relay_id is not null") == 0


def assert_all_in_order(endpoint: Endpoint, count: int) -> None:
    """Every message came, and of each key the first delivery of each in order."""
    numbers = list(dict.fromkeys(json.loads(arrival.body)["n"] for arrival in endpoint.taken))
    assert sorted(numbers) == list(range(count))
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key]
        assert of_key == sorted(of_key)


async def read(port: int, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        return await client.get(path)


def read_samples(page: str, name: str) -> dict[str, float]:
    """Return the values of a metric by the label `process`, over all destinations."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name:
                process = sample.labels.get("process", "")
                found[process] = found.get(process, 0.0) + sample.value
    return found


# --- delivering and stopping ---


async def test_two_processes_share_the_lanes_and_stop_as_one(any_depot: Depot, endpoint: Endpoint) -> None:
    port = await free_port()
    arguments = (*TWO, *hooks(endpoint), "--http", f"127.0.0.1:{port}")
    async with start_relay(any_depot, *arguments, **any_depot.settings) as relay:
        await wait_for_both(relay)
        any_depot.publish(200)
        await any_depot.wait_until(lambda: not any_depot.count("pillarbox_outbox"))
        pids = await any_depot.find_pids()
        live, ready, page = (await read(port, "/livez")), (await read(port, "/readyz")), await read(port, "/metrics")
        relay.signal(signal.SIGTERM)
        code = await relay.wait_until_ended()

    assert code == 0
    assert_all_in_order(endpoint, 200)
    assert_left_clean(any_depot)
    assert sorted(pids) == ["1/2", "2/2"]
    assert all(has_ended(pid) for pid in pids.values())
    assert (live.json(), ready.json()) == ({"status": "ok", "reasons": []}, {"status": "ok", "reasons": []})
    delivered = read_samples(page.text, "outbox_delivered_total")
    assert sorted(delivered) == ["1", "2"]
    assert sum(delivered.values()) == 200
    assert min(delivered.values()) > 0
    assert read_samples(page.text, "outbox_relays") == {"": 2}
    assert read_samples(page.text, "outbox_leases") == {"": 64}
    assert read_samples(page.text, "outbox_process_up") == {"1": 1, "2": 1}
    headings = re.findall(r"^# TYPE (\S+)", page.text, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert all(re.match(r"\S+Z (info|warning) +\[(supervisor|1/2|2/2)\] ", line) for line in relay.lines)


async def test_json_lines_name_their_process(depot: Depot, endpoint: Endpoint) -> None:
    (depot.folder / "pillarbox.toml").write_text("[relay]\nprocesses = 2\n")
    async with start_relay(depot, *hooks(endpoint), "--lease", "1s", "--log-format", "json") as relay:
        await relay.wait_for_line('"process": "2/2"')
        relay.signal(signal.SIGINT)
        assert await relay.wait_until_ended() == 0

    lines = [json.loads(line) for line in relay.lines]
    assert {line["process"] for line in lines} == {"supervisor", "1/2", "2/2"}
    assert len({line["pid"] for line in lines}) == 3
    assert {line["pid"] for line in lines if line["process"] == "supervisor"} == {relay.process.pid}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_the_second_signal_ends_all_at_once_and_loses_nothing(
    depot: Depot, endpoint: Endpoint, number: signal.Signals, code: int
) -> None:
    endpoint.moves.clear()
    async with start_relay(depot, *TWO, *hooks(endpoint)) as relay:
        await wait_for_both(relay)
        pids = await depot.find_pids()
        depot.publish(80)
        await depot.wait_until(lambda: bool(endpoint.arrivals))
        relay.signal(number)
        await relay.wait_for_line("finish")
        relay.signal(number)
        assert await relay.wait_until_ended() == code

    await depot.wait_until(lambda: all(map(has_ended, pids.values())))
    assert "the supervisor is gone" not in "".join(relay.lines)
    assert depot.count("pillarbox_outbox") == 80
    async with asyncio.timeout(60):
        # They did not leave, and with --once nobody waits for the end of their leases.
        while await depot.find_pids():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    endpoint.moves.set()
    async with start_relay(depot, *hooks(endpoint), "--lease", "1s", "--once") as relay:
        assert await relay.wait_until_ended() == 0
    assert_all_in_order(endpoint, 80)


async def test_a_signal_to_everything_at_once_is_still_the_first(depot: Depot, endpoint: Endpoint) -> None:
    """Some platforms signal each process of a service: the supervisor passing it on must not be a second signal."""
    endpoint.moves.clear()
    async with start_relay(depot, *TWO, *hooks(endpoint)) as relay:
        await wait_for_both(relay)
        pids = await depot.find_pids()
        depot.publish(KEYS)
        await depot.wait_until(lambda: depot.count("(select distinct relay_id from pillarbox_claim) as claims") == 2)
        relay.signal(signal.SIGTERM)
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        await relay.wait_for_line("finish")
        endpoint.moves.set()
        assert await relay.wait_until_ended() == 0

    assert depot.count("pillarbox_history where status = 'delivered'") == len(endpoint.taken)
    assert_left_clean(depot)


async def test_a_signal_while_the_first_process_starts_ends_all(depot: Depot, endpoint: Endpoint) -> None:
    async with start_relay(depot, *TWO, *hooks(endpoint), "--http", "127.0.0.1:0") as relay:
        await relay.wait_for_line("probes and metrics are served")
        relay.signal(signal.SIGTERM)
        assert await relay.wait_until_ended() == 0
    assert_left_clean(depot)


async def test_a_process_that_is_only_about_to_start_is_stopped_too(depot: Depot) -> None:
    store = f"sqlite:///{depot.folder / 'shop.db'}"
    (process,) = Supervisor(["relay", "--store", store, "--to", "memory:"], count=1).processes
    process.stop("SIGTERM")
    try:
        async with asyncio.timeout(60):
            assert await process.run() == 0
    finally:
        process.kill()


# --- processes that die ---


async def test_a_killed_process_is_started_again_and_nothing_is_lost(any_depot: Depot, endpoint: Endpoint) -> None:
    port = await free_port()
    arguments = (*TWO, *hooks(endpoint), "--http", f"127.0.0.1:{port}", "--window", "20")
    async with start_relay(any_depot, *arguments, **any_depot.settings) as relay:
        await wait_for_both(relay)
        before = await any_depot.find_pids()
        endpoint.moves.clear()
        any_depot.publish(200)
        await any_depot.wait_until(
            lambda: any_depot.count("(select distinct relay_id from pillarbox_claim) as claims") == 2
        )
        os.kill(before["2/2"], signal.SIGKILL)
        line = await relay.wait_for_line("it is started again")
        unready = await read(port, "/readyz")
        live = await read(port, "/livez")
        endpoint.moves.set()
        await relay.wait_for_line("[2/2] took")
        any_depot.publish(200)
        await any_depot.wait_until(lambda: not any_depot.count("pillarbox_outbox"))
        await any_depot.wait_until(lambda: any_depot.count("pillarbox_lane where relay_id is not null") == 128)
        after = await any_depot.find_pids()
        page = await read(port, "/metrics")
        relay.signal(signal.SIGTERM)
        assert await relay.wait_until_ended() == 0

    assert " error " in line
    assert "process 2/2 was killed by SIGKILL" in line
    assert unready.status_code == 503
    assert "process 2/2: it " in unready.json()["reasons"][0]
    assert live.status_code == 200
    assert (after["1/2"], after["2/2"] == before["2/2"]) == (before["1/2"], False)
    assert read_samples(page.text, "outbox_process_restarts_total") == {"1": 0, "2": 1}
    assert_all_in_order(endpoint, 400)


async def test_a_process_that_was_stopped_by_itself_is_started_again(depot: Depot, endpoint: Endpoint) -> None:
    async with start_relay(depot, *TWO, *hooks(endpoint)) as relay:
        await wait_for_both(relay)
        os.kill((await depot.find_pids())["1/2"], signal.SIGTERM)
        assert "process 1/2 ended with 0" in await relay.wait_for_line("it is started again")
        await relay.wait_for_line("[1/2] took")
        relay.signal(signal.SIGTERM)
        assert await relay.wait_until_ended() == 0


async def test_a_killed_supervisor_leaves_no_process_behind(depot: Depot, endpoint: Endpoint) -> None:
    async with start_relay(depot, *TWO, *hooks(endpoint)) as relay:
        await wait_for_both(relay)
        pids = await depot.find_pids()
        relay.signal(signal.SIGKILL)
        assert await relay.wait_until_ended() == -signal.SIGKILL
        await depot.wait_until(lambda: all(map(has_ended, pids.values())))

    assert "the supervisor is gone: finishing" in "".join(relay.lines)
    assert_left_clean(depot)


_BLOCKING = """
import sys, time
from pillarbox.brokers.handlers import Handlers
handlers = Handlers()
@handlers.on('*')
async def block(event):
    print('blocked', file=sys.stderr, flush=True)
    time.sleep(600)
"""


async def test_a_process_that_hangs_is_not_alive_and_ends_with_its_supervisor(depot: Depot) -> None:
    (depot.folder / "blocking.py").write_text(_BLOCKING)
    port = await free_port()
    arguments = (*TWO, "--to", "hooks=handlers:blocking:handlers", "--send-timeout", "1s")
    async with start_relay(depot, *arguments, "--http", f"127.0.0.1:{port}") as relay:
        await wait_for_both(relay)
        pids = await depot.find_pids()
        assert (await read(port, "/livez")).status_code == 200
        depot.publish(1)
        await relay.wait_for_line("blocked")
        async with asyncio.timeout(60):
            while (live := await read(port, "/livez")).status_code == 200:
                pass
        relay.signal(signal.SIGKILL)
        await depot.wait_until(lambda: all(map(has_ended, pids.values())))

    assert live.status_code == 503
    assert re.match(r"process [12]/2: (its loop has not turned|it is not alive)", live.json()["reasons"][0])


# --- what a person must mend ---


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("--processes", "0"), 2, "must be from 1 to 64"),
        (("--processes", "65"), 2, "must be from 1 to 64"),
        (("--processes", "auto"), 2, "--processes must be a"),
        (("--processes", "2", "--once"), 2, "--once runs in one process"),
        (("--processes", "2", "--window", "0"), 2, "window of destination"),
        (("--processes", "2", "--to", "pigeon://coop"), 2, "No installed transport is called 'pigeon'"),
        (("--processes", "2", "--prefix", "other_"), 4, "run `pillarbox schema install`"),
    ],
)
async def test_what_must_be_mended_is_said_once(
    depot: Depot, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    to = () if "--to" in arguments else ("--to", "memory:")
    ran = await asyncio.to_thread(depot.run, "relay", *to, *arguments)

    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.sentence


async def test_a_store_that_cannot_be_reached_at_the_start_is_said_once(tmp_path: Path) -> None:
    url = f"postgresql://app@127.0.0.1:{await free_port()}/shop"
    arguments = ("relay", "--store", url, "--to", "memory:", "--processes", "2")
    ran = await asyncio.to_thread(lambda: pillarbox(*arguments, cwd=tmp_path))

    assert ran.code == 3
    assert "cannot be reached" in ran.sentence


async def test_a_process_that_cannot_start_again_ends_all_with_its_code(depot: Depot, endpoint: Endpoint) -> None:
    file = depot.folder / "pillarbox.toml"
    file.write_text("[relay]\nprocesses = 2\n")
    async with start_relay(depot, *hooks(endpoint), "--lease", "1s") as relay:
        await wait_for_both(relay)
        pids = await depot.find_pids()
        file.write_text("[relay]\nleash = '1s'\n")
        os.kill(pids["2/2"], signal.SIGKILL)
        code = await relay.wait_until_ended()

    errors = [line for line in relay.lines if line.startswith("Error: ")]
    assert code == 2
    assert len(errors) == 1
    assert "leash" in errors[0]
    assert "process 2/2 ended with 2: all others are stopped" in "".join(relay.lines)
    assert "[1/2] process 2/2 cannot be started: finishing" in "".join(relay.lines)
    assert has_ended(pids["1/2"])


# --- beside other code ---


async def test_a_relay_inside_another_program_stays_in_its_process(depot: Depot) -> None:
    file = depot.folder / "pillarbox.toml"
    url = f"sqlite:///{depot.folder / 'shop.db'}"
    file.write_text(f"[store]\nurl = '{url}'\n[relay]\nprocesses = 4\n[destinations.hooks]\nurl = 'memory:'\n")
    depot.publish(3)
    await Relay.from_config(str(file)).run(once=True)
    assert depot.count("pillarbox_history where status = 'delivered'") == 3
