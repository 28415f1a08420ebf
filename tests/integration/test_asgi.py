"""Beside a web service: a relay that delivers what its requests write, and requests whose messages know them."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sqlite3
import sys
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from pillarbox import Message, Outbox
from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from pillarbox.context import current
from pillarbox.errors import SchemaMissing, StoreUnavailable
from pillarbox.integrations import asgi
from pillarbox.integrations.asgi import BackgroundRunner, ContextMiddleware, lifespan
from pillarbox.message import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from tests.support.processes import end_process

_PATIENCE = 60
"""Seconds: for a machine that does other work."""


@pytest.fixture
async def store(tmp_sqlite: Path) -> Path:
    await open_schema(parse_store_url(f"sqlite:///{tmp_sqlite}"), names=Names()).install()
    return tmp_sqlite


class Arrivals:
    """What the relay's in-process handler got, and in which thread."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.threads: set[int] = set()
        self.came = threading.Event()
        self.handlers = Handlers()

        @self.handlers.on("orders.placed")
        async def arrived(_: object, message: Message) -> None:
            self.messages.append(message)
            self.threads.add(threading.get_ident())
            self.came.set()

    def relay(self, path: Path) -> Relay:
        destination = Destination(lambda: HandlersTransport(self.handlers), DestinationSettings(name="local"))
        settings = RelaySettings(poll_interval=timedelta(milliseconds=50))
        return Relay(SqliteStore(path), [destination], settings=settings)


def asking(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


def place(outbox: Outbox, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        outbox.publish(connection, {"order": 1}, type="orders.placed")


async def test_a_service_delivers_what_its_requests_write(store: Path) -> None:
    arrivals, outbox = Arrivals(), Outbox(routes="local", source="/shop")
    app = FastAPI(lifespan=lifespan(lambda: arrivals.relay(store)))
    app.add_middleware(ContextMiddleware)

    @app.post("/orders")
    def order() -> None:
        place(outbox, store)

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with app.router.lifespan_context(app), asking(app) as client:
        await client.post("/orders", headers={"x-correlation-id": "request-7", "traceparent": trace})
        assert await asyncio.to_thread(arrivals.came.wait, _PATIENCE)
    (message,) = arrivals.messages
    assert message.correlation_id == "request-7"
    assert message.headers["traceparent"] == trace
    assert arrivals.threads.isdisjoint({threading.get_ident()})
    assert not any(thread.name == "pillarbox-beside" for thread in threading.enumerate())


async def test_a_loop_that_is_kept_busy_does_not_hold_the_relay_up(store: Path) -> None:
    arrivals, outbox = Arrivals(), Outbox(routes="local", source="/shop")
    async with BackgroundRunner(lambda: arrivals.relay(store)) as runner:
        assert runner.is_running
        place(outbox, store)
        assert arrivals.came.wait(_PATIENCE)  # this loop stands still meanwhile
    assert not runner.is_running


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-correlation-id": "a", "x-request-id": "b"}, "a"),
        ({"x-request-id": "b"}, "b"),
        ({"x-correlation-id": "x" * 10_000, "x-request-id": "b"}, "b"),
        ({"x-correlation-id": b"\xe4" * 600, "x-request-id": "b"}, "b"),
        ({"x-correlation-id": ""}, None),
        ({}, None),
    ],
)
async def test_a_request_says_which_chain_it_belongs_to(headers: dict[str, Any], expected: str | None) -> None:
    app = FastAPI()
    app.add_middleware(ContextMiddleware)

    @app.get("/")
    async def ask(_: Request) -> str | None:
        return current().correlation_id

    async with asking(app) as client:
        assert (await client.get("/", headers=headers)).json() == expected
    assert current().correlation_id is None


class Failing:
    """Ends with an error, at once or when told."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()

    async def run(self) -> None:
        await self.fails.wait()
        raise LookupError("as told")

    def stop(self) -> None:
        self.fails.set()


class Patient:
    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.has_ended = False

    async def run(self) -> None:
        await self.stopped.wait()
        self.has_ended = True

    def stop(self) -> None:
        self.stopped.set()


async def test_one_that_fails_is_started_again_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_FIRST_WAIT", 0.01)
    made: list[Failing | Patient] = []
    patient: list[Patient] = []

    def make_failing() -> Failing | Patient:
        if len(made) < 3:
            failing = Failing()
            failing.fails.set()
            made.append(failing)
        else:
            made.append(Patient())
        return made[-1]

    def make_patient() -> Patient:
        patient.append(Patient())
        return patient[0]

    async with BackgroundRunner(make_failing, make_patient) as runner:
        async with asyncio.timeout(_PATIENCE):
            while not (len(made) == 4 and runner.is_running):  # noqa: ASYNC110 - it happens in a thread
                await asyncio.sleep(0.01)
        assert not patient[0].stopped.is_set()
    assert caplog.text.count("has failed, starting it again in 0.0 s: LookupError: as told") == 3
    assert caplog.text.count("Traceback") == 1  # the place of a bug is worth knowing, once
    assert len(patient) == 1
    assert patient[0].has_ended
    assert isinstance(made[3], Patient)
    assert made[3].has_ended


async def test_one_that_is_down_at_the_end_raises_its_error_there() -> None:
    def make_failing() -> Failing:
        failing = Failing()
        failing.fails.set()
        return failing

    runner = BackgroundRunner(make_failing)
    await runner.__aenter__()
    async with asyncio.timeout(_PATIENCE):
        while runner.is_running:  # noqa: ASYNC110 - it fails in a thread
            await asyncio.sleep(0.001)
    with pytest.raises(LookupError, match="as told"):
        await runner.__aexit__(None, None, None)


async def test_one_that_cannot_be_made_keeps_the_service_from_starting() -> None:
    def make() -> Patient:
        raise LookupError("no such configuration")

    with pytest.raises(LookupError, match="no such configuration"):
        async with BackgroundRunner(make):
            pytest.fail("it started")


# --- what the log says ---


SECRET = "geheim"
NOWHERE = {"broker": "http://127.0.0.1:9/?allow_private=true"}


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def bare_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that can be reached and has no tables."""
    match request.param:
        case "sqlite":
            path = tmp_path / "bare.db"
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("create table other (id integer)")
            return f"sqlite:///{path}"
        case "postgresql":
            url: str = request.getfixturevalue("postgres_url")
            return f"{url}{'&' if '?' in url else '?'}schema=bare_{secrets.token_hex(4)}"
        case _:
            return str(request.getfixturevalue("mariadb_url"))


def own_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("pillarbox")]


async def test_missing_tables_stop_the_start_with_one_line(bare_store: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SchemaMissing, match="pillarbox schema install") as raised:
        async with BackgroundRunner(lambda: Relay(bare_store, NOWHERE)):
            pytest.fail("it started")

    (line,) = own_lines(caplog)
    assert re.match(r"the relay from (sqlite|postgresql|mysql)://.* to broker does not start: SchemaMissing: ", line)
    assert "schema install" in line
    assert "\n" not in line
    assert len(raised.traceback) <= 2, "frames of the relay's thread help nobody"
    assert not any(thread.name == "pillarbox-beside" for thread in threading.enumerate())


async def test_one_that_cannot_start_stops_the_others_gracefully(bare_store: str) -> None:
    patient: list[Patient] = []

    def make_patient() -> Patient:
        patient.append(Patient())
        return patient[0]

    with pytest.raises(SchemaMissing):
        async with BackgroundRunner(make_patient, lambda: Relay(bare_store, NOWHERE)):
            pytest.fail("it started")
    assert patient[0].has_ended


async def test_a_consumer_without_an_inbox_stops_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sqlite3.connect(tmp_path / "bare.db").close()

    def consumer() -> Consumer:
        made = Consumer("billing", receiver=MemoryReceiver(MemoryQueue()), database=tmp_path / "bare.db")
        made.on("*")(lambda event, tx: None)
        return made

    with pytest.raises(SchemaMissing, match="The consumer billing finds no inbox"):
        async with BackgroundRunner(consumer):
            pytest.fail("it started")
    (line,) = own_lines(caplog)
    assert line.startswith("the consumer billing does not start: ")


async def test_a_store_that_is_away_does_not_stop_the_start_and_takes_a_line_per_try(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_FIRST_WAIT", 0.01)
    url = f"postgresql://app:{SECRET}@127.0.0.1:1/shop"
    runner = BackgroundRunner(lambda: Relay(url, NOWHERE))

    async def wait_in_the_block() -> None:
        async with runner, asyncio.timeout(_PATIENCE):
            while len(own_lines(caplog)) < 3:  # noqa: ASYNC110 - it happens in a thread
                await asyncio.sleep(0.01)

    with pytest.raises(StoreUnavailable):
        await wait_in_the_block()
    lines = own_lines(caplog)
    assert all(line.startswith("the relay from postgresql://") for line in lines)
    assert all("has failed, starting it again in" in line and "\n" not in line for line in lines)
    assert SECRET not in caplog.text


async def test_the_log_says_that_relay_and_consumer_run_and_stop(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pillarbox")

    def consumer() -> Consumer:
        made = Consumer("billing", receiver=MemoryReceiver(MemoryQueue()), database=store)
        made.on("*")(lambda event, tx: None)
        return made

    async with BackgroundRunner(lambda: Arrivals().relay(store), consumer), asyncio.timeout(_PATIENCE):
        while "the consumer billing runs" not in own_lines(caplog):  # noqa: ASYNC110 - it happens in a thread
            await asyncio.sleep(0.01)
        assert [
            line for line in own_lines(caplog) if line.startswith(f"the relay from sqlite:///{store} to local runs as ")
        ]
    ends = {"the consumer billing has stopped", f"the relay from sqlite:///{store} to local has stopped"}
    assert ends <= set(own_lines(caplog))


UVICORN_APP = """
from fastapi import FastAPI
from pillarbox import Relay
from pillarbox.integrations.asgi import lifespan

def relay():
    return Relay("sqlite:///shop.db", {"broker": "http://127.0.0.1:9/?allow_private=true"})

app = FastAPI(lifespan=lifespan(relay))
"""


async def serve(folder: Path, *options: str, until: str, app: str = UVICORN_APP) -> list[str]:
    """Start uvicorn as a person does; return what it prints, up to a line with these words and its end."""
    (folder / "shop_app.py").write_text(app)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "shop_app:app", "--port", "0", *options, cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            async for line in process.stdout:
                lines.append(line.decode())
                if until in lines[-1]:
                    process.terminate()
    finally:
        await end_process(process)
    return lines


async def test_uvicorn_shows_that_a_relay_runs(tmp_path: Path) -> None:
    await open_schema(parse_store_url(f"sqlite:///{tmp_path / 'shop.db'}"), names=Names()).install()

    lines = await serve(tmp_path, until="Uvicorn running")

    (runs,) = [line for line in lines if "the relay from sqlite:///shop.db to broker runs as" in line]
    assert runs.startswith("INFO")
    assert lines.index(runs) < next(place for place, line in enumerate(lines) if "startup complete" in line)


async def test_uvicorn_without_tables_ends_with_the_reason_and_few_lines(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()

    lines = await serve(tmp_path, until="Application startup complete")

    assert "startup failed" in lines[-1]
    assert len(lines) < 20
    (line,) = [line for line in lines if "the relay from sqlite:///shop.db to broker does not start" in line]
    assert line.startswith("ERROR")
    assert "pillarbox schema install" in line


MANY_APP = """
from fastapi import FastAPI
from pillarbox import Relays
from pillarbox.integrations.asgi import lifespan

def relays():
    stores = {"orders": "sqlite:///orders.db", "billing": "sqlite:///billing.db"}
    return Relays(stores, {"broker": "http://127.0.0.1:9/?allow_private=true"})

app = FastAPI(lifespan=lifespan(relays))
"""


async def test_relays_of_many_stores_name_the_store_in_each_line(tmp_path: Path) -> None:
    await open_schema(parse_store_url(f"sqlite:///{tmp_path / 'orders.db'}"), names=Names()).install()

    lines = await serve(tmp_path, until="Uvicorn running", app=MANY_APP)

    complete = next(place for place, line in enumerate(lines) if "startup complete" in line)
    before = "".join(lines[:complete])
    assert "INFO      [orders] the relay from sqlite:///orders.db to broker runs as " in before
    assert "WARNING   [billing] serving the store billing failed, trying again: There is no SQLite file" in before
    assert "INFO      the relay of 2 stores to broker has stopped\n" in lines


async def test_a_service_with_logging_of_its_own_sees_each_line_once(tmp_path: Path) -> None:
    await open_schema(parse_store_url(f"sqlite:///{tmp_path / 'shop.db'}"), names=Names()).install()
    config = {
        "version": 1, "disable_existing_loggers": False, "formatters": {"plain": {"format": "MINE %(message)s"}},
        "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "root": {"handlers": ["out"], "level": "INFO"},
    }  # fmt: skip
    (tmp_path / "logging.json").write_text(json.dumps(config))

    lines = await serve(tmp_path, "--log-config", "logging.json", until="Uvicorn running")

    (runs,) = [line for line in lines if "the relay from sqlite:///shop.db to broker runs as" in line]
    assert runs.startswith("MINE")
