"""The probes as an ASGI app: mounted in a web service, served by itself, asked by many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.store import Registry
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Names
from pillarbox.operations import health as health_module
from pillarbox.operations.health import HealthApp, Probes
from pillarbox.operations.prometheus import PrometheusTelemetry
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.stores.urls import parse_store_url

PATIENCE: Final = 40.0


class Asked(SqliteStore):
    """Counts how often the registry is asked for."""

    asked = 0

    async def registry(self, *, lease: timedelta) -> Registry:
        self.asked += 1
        return await super().registry(lease=lease)


class Service:
    """A relay inside a web service, and the app to mount."""

    def __init__(self, file: Path) -> None:
        self.metrics = PrometheusTelemetry()
        self.transport = MemoryTransport()
        destination = Destination(lambda: self.transport, DestinationSettings(name="billing"))
        settings = RelaySettings(lease=timedelta(seconds=2), watch_interval=timedelta(milliseconds=100))
        self.relay = Relay(SqliteStore(file), [destination], settings=settings, telemetry=self.metrics)
        self.store = Asked(file)
        self.health = HealthApp(Probes(self.store, lambda: self.relay.health), collectors=[self.metrics])


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    file = tmp_path / "shop.db"
    await open_schema(parse_store_url(f"sqlite:///{file}"), names=Names()).install()
    made = Service(file)
    yield made
    await made.health.close()


def asking(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.example")


async def until(client: httpx.AsyncClient, path: str, code: int) -> httpx.Response:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.get(path)
            if answer.status_code == code:
                return answer
            await asyncio.sleep(0.05)


def in_starlette(health: HealthApp) -> Any:
    own = Route("/livez", lambda _: PlainTextResponse("the shop's own"))
    return Starlette(routes=[Mount("/pillarbox", app=health), own])


def in_plain_asgi(health: HealthApp) -> Any:
    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["path"].startswith("/pillarbox"):
            await health({**scope, "root_path": "/pillarbox"}, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"the shop's own"})

    return app


@pytest.mark.parametrize("mounted", [in_starlette, in_plain_asgi])
async def test_it_can_be_mounted_beside_a_services_own_pages(service: Service, mounted: Any) -> None:
    async with asking(mounted(service.health)) as client:
        starting = await client.get("/pillarbox/readyz")
        assert (starting.status_code, starting.json()) == (503, {"status": "failed", "reasons": ["it is starting"]})
        async with service.relay:
            ready = await until(client, "/pillarbox/readyz", 200)
            assert ready.json() == {"status": "ok", "reasons": []}
            assert ready.headers["cache-control"] == "no-store"
            assert (await client.get("/pillarbox/livez")).status_code == 200
            families = text_string_to_metric_families((await client.get("/pillarbox/metrics")).text)
            found = {sample.name: sample.value for family in families for sample in family.samples}
            assert found["outbox_relays"] == 1
        assert (await until(client, "/pillarbox/readyz", 503)).json()["reasons"] == ["it is stopping"]
        assert (await client.get("/livez")).text == "the shop's own"


async def test_only_what_there_is_can_be_asked_and_only_by_asking(service: Service) -> None:
    async with asking(service.health) as client:
        assert (await client.get("/else")).status_code == 404
        assert (await client.post("/livez")).status_code == 405
        head = await client.head("/readyz")
        assert (head.status_code, head.content) == (503, b"")
        assert int(head.headers["content-length"]) > 0


async def test_however_many_ask_the_tables_are_asked_once(service: Service) -> None:
    async with asking(service.health) as client:
        answers = await asyncio.gather(*(client.get(f"/{path}") for path in ("livez", "readyz") * 20))
    assert {answer.status_code for answer in answers} == {200, 503}
    assert service.store.asked == 1


async def test_whoever_asks_again_soon_gets_the_same_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "_FRESH_FOR", 3600.0)
    async with asking(service.health) as client:
        for path in ("livez", "readyz", "livez"):
            await client.get(f"/{path}")
    assert service.store.asked == 1


async def test_served_by_itself_it_lets_its_store_go_at_the_end(service: Service) -> None:
    events: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    said: list[str] = []

    async def send(event: MutableMapping[str, Any]) -> None:
        said.append(event["type"])

    serving = asyncio.create_task(service.health({"type": "lifespan"}, events.get, send))
    events.put_nowait({"type": "lifespan.startup"})
    async with asking(service.health) as client:
        await client.get("/livez")
    await service.store.now()
    events.put_nowait({"type": "lifespan.shutdown"})
    await serving
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(StoreUnavailable):
        await service.store.now()


async def test_a_websocket_is_turned_away(service: Service) -> None:
    said: list[MutableMapping[str, Any]] = []

    async def send(event: MutableMapping[str, Any]) -> None:
        said.append(event)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "websocket.connect"}

    await service.health({"type": "websocket", "path": "/livez"}, receive, send)
    assert said == [{"type": "websocket.close"}]
