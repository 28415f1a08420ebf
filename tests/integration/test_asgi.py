"""Beside a web service: a relay that delivers what its requests write, and requests whose messages know them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request

from pillarbox import Message, Outbox
from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.context import current
from pillarbox.integrations import asgi
from pillarbox.integrations.asgi import BackgroundRunner, ContextMiddleware, lifespan
from pillarbox.message import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url

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
        ({"x-correlation-id": ""}, None),
        ({}, None),
    ],
)
async def test_a_request_says_which_chain_it_belongs_to(headers: dict[str, str], expected: str | None) -> None:
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
    assert caplog.text.count("what runs beside the web service has failed, starting it again") == 3
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
