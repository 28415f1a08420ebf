"""Live updates: one look at the store for all who watch, and a store that is down leaves the last good numbers."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Count
from pillarbox.dashboard import Dashboard, Role, app
from pillarbox.errors import StoreUnavailable
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.dashboard.client import Client, as_role
from tests.support.dashboard.seed import fill
from tests.support.dashboard.story import MemoryWriter


class CountedStore(MemoryStore):
    """Counts the looks at it, and can be down."""

    looks = 0
    is_down = False

    async def counts(self, *, limit: int = 100_000) -> Any:
        self.looks += 1
        found: list[Count] = list(await super().counts(limit=limit))
        return found

    async def registry(self, *, lease: timedelta) -> Any:
        if self.is_down:
            raise StoreUnavailable("The database at db.example is away: connection refused. Try again later.")
        return await super().registry(lease=lease)


async def read_event(events: Any) -> dict[str, Any]:
    while True:
        text: str = await asyncio.wait_for(anext(events), 30)
        if text.startswith("event: sample"):
            document: dict[str, Any] = json.loads(text.partition("data: ")[2])
            return document


async def test_fifty_watchers_cost_as_many_looks_as_one() -> None:
    store = CountedStore()
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.VIEWER), interval=timedelta(milliseconds=50))
    streams = [dashboard._list_events("orders") for _ in range(50)]
    try:
        for stream in streams:
            await read_event(stream)
        await asyncio.gather(*(read_event(stream) for stream in streams))
        before = store.looks
        await MemoryWriter(store).insert([sample()])
        pulses = await asyncio.gather(*(read_event(stream) for stream in streams))
    finally:
        for stream in streams:
            await stream.aclose()
        await dashboard.close()

    assert len({one["version"] for one in pulses}) == 1
    assert store.looks - before < 50
    assert dashboard.sampler.reads == store.looks


async def test_those_who_ask_at_once_share_one_look() -> None:
    store = CountedStore()
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.VIEWER))

    await asyncio.gather(*(dashboard.sampler.get("orders", fresh=True) for _ in range(50)))
    await dashboard.close()

    assert store.looks == 1


async def test_nothing_is_read_while_nobody_watches() -> None:
    store = CountedStore()
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.VIEWER), interval=timedelta(milliseconds=10))
    stream = dashboard._list_events("orders")
    await read_event(stream)
    await stream.aclose()

    assert not dashboard.sampler._loops
    await dashboard.close()


async def test_streams_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = Dashboard(
        {"orders": MemoryStore()}, authorize=as_role(Role.VIEWER), interval=timedelta(milliseconds=10)
    )
    client = Client(dashboard)
    monkeypatch.setattr(app, "_STREAM_LIFE", 0.0)
    streams = [dashboard._list_events("orders") for _ in range(app._MOST_STREAMS)]
    for stream in streams:
        await read_event(stream)

    assert (await client.get("/orders/live")).status_code == 503
    assert (await client.get("/orders/pulse")).status_code == 200
    for stream in streams:
        assert [text async for text in stream] == []
    assert (await client.get("/orders/live")).status_code == 200
    await dashboard.close()


async def test_a_heartbeat_alone_is_no_news() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    await fill(store, MemoryWriter(store))
    client = Client(Dashboard({"orders": store}, authorize=as_role(Role.OWNER), interval=timedelta(0)))
    clock.advance(timedelta(seconds=5))
    first = await client.json("/orders/pulse")

    relay = (await store.registry(lease=timedelta(seconds=10))).relays[0]
    await store.renew(relay.relay_id, lease=timedelta(seconds=10), reachable=relay.reachable)
    assert (await client.json("/orders/pulse"))["version"] == first["version"]
    await store.resume("audit", by="ann")
    assert (await client.json("/orders/pulse"))["version"] != first["version"]


async def test_what_cannot_be_read_takes_no_page_away(caplog: pytest.LogCaptureFixture) -> None:
    class OddStore(CountedStore):
        async def inbox_counts(self, *, limit: int = 100_000) -> Any:
            raise TypeError("'<' not supported between instances of 'bytes' and 'str'")

    store = OddStore()
    await fill(store, MemoryWriter(store))
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.OWNER), interval=timedelta(0))
    client = Client(dashboard)

    for path in ("", "messages", "failures", "system", "pulse"):
        answer = await client.get(f"/orders/{path}")
        assert answer.status_code == 200, path
        assert "Its status cannot be read; the log of the dashboard says why." in answer.text, path
    await dashboard.close()
    assert "the status of the store orders cannot be read" in caplog.text
    assert "TypeError" in caplog.text


async def test_a_store_that_is_down_leaves_the_last_good_numbers_with_their_time() -> None:
    store = CountedStore()
    await fill(store, MemoryWriter(store))
    client = Client(Dashboard({"orders": store}, authorize=as_role(Role.OWNER), interval=timedelta(0)))
    assert ">3<" in (await client.get("/orders/")).text
    store.is_down = True

    page = await client.get("/orders/")
    assert page.status_code == 200
    assert "The store does not answer." in page.text
    assert "These are the last good numbers" in page.text
    assert ">3<" in page.text
    down = await client.get("/orders/relays")
    assert (down.status_code, "connection refused" in down.text) == (503, True)
    store.is_down = False
    assert "The store does not answer." not in (await client.get("/orders/")).text


async def test_a_store_that_was_never_there_is_asked_again() -> None:
    store = CountedStore()
    store.is_down = True
    client = Client(Dashboard({"orders": store}, authorize=as_role(Role.OWNER), interval=timedelta(0)))

    assert "Nothing is known yet" in (await client.get("/orders/")).text
    store.is_down = False
    assert "First steps" in (await client.get("/orders/")).text


class AskedStore(MemoryStore):
    """Notes every question that is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not asyncio.iscoroutinefunction(found):
            return found

        async def ask(*arguments: Any, **named: Any) -> Any:
            self.asked.append(name)
            return await found(*arguments, **named)

        return ask


async def ask_tabs(dashboard: Dashboard, paths: list[str], *, tabs: int) -> list[str]:
    """Let so many tabs with each of these pages refresh at once; return what the store was asked."""
    store: AskedStore = dashboard.sources["orders"].store  # type: ignore[assignment]
    client = Client(dashboard)
    await dashboard.sampler.get("orders", fresh=True)
    store.asked.clear()
    answers = await asyncio.gather(
        *(client.get(f"/orders/{path}", **{"hx-request": "true"}) for path in paths for _ in range(tabs))
    )
    assert {one.status_code for one in answers} == {200}
    return sorted(store.asked)


async def test_fifty_tabs_that_refresh_ask_the_store_what_one_asks() -> None:
    paths = ["", "charts?format=json", "messages", "messages?type=x", "failures", "destinations/billing", "inbox",
             "relays", "activity", "system"]  # fmt: skip
    asked = []
    for tabs in (1, 50):
        store = AskedStore()
        await fill(store, MemoryWriter(store))
        dashboard = Dashboard({"orders": store}, authorize=as_role(Role.VIEWER), interval=timedelta(hours=1))
        asked.append(await ask_tabs(dashboard, paths, tabs=tabs))
        await dashboard.close()
    assert asked[0] == asked[1]
    assert asked[0]


async def test_whoever_loads_a_page_sees_what_is_there_now() -> None:
    store = MemoryStore()
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.VIEWER), interval=timedelta(hours=1))
    client = Client(dashboard)
    path = "/orders/messages?state=pending&format=json"

    assert (await client.get(path, **{"hx-request": "true"})).json()["messages"] == []
    await MemoryWriter(store).insert([sample()])
    assert (await client.get(path, **{"hx-request": "true"})).json()["messages"] == []
    assert len((await client.get(path)).json()["messages"]) == 1
    await dashboard.close()


async def test_payloads_are_not_kept_for_others() -> None:
    store = AskedStore()
    filled = await fill(store, MemoryWriter(store))
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.READER), interval=timedelta(hours=1))
    client = Client(dashboard)
    path = f"/orders/messages/{filled.messages['cause'].id}/payload"

    await dashboard.sampler.get("orders")
    for _ in range(2):
        store.asked.clear()
        assert (await client.get(path, **{"hx-request": "true"})).status_code == 200
        assert "find" in store.asked
    await dashboard.close()
