"""A dashboard over two stores, and a user who may see one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pillarbox.config import Config
from pillarbox.contracts.store import Selection
from pillarbox.dashboard import Dashboard, Role, User
from pillarbox.dashboard.access import STORE, Scope
from pillarbox.dashboard.app import ROUTES, Endpoint
from pillarbox.dashboard.serve import build_dashboard
from pillarbox.stores.factory import open_schema
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.dashboard.test_access import describe, fill_path
from tests.support.dashboard.client import Client
from tests.support.dashboard.seed import fill
from tests.support.dashboard.story import MemoryWriter

HIDDEN = "vault"
TOPIC = "secret.topic"


def by_name(scope: Scope) -> User | None:
    return User("ann", Role.OWNER) if scope[STORE] == "orders" else None


def by_path(scope: Scope) -> User | None:
    return User("ann", Role.OWNER) if scope["path"].startswith("/orders/") else None


def all_but_one(scope: Scope) -> User | None:
    return None if scope[STORE] == HIDDEN else User("ann", Role.OWNER)


async def later(scope: Scope) -> User | None:
    await asyncio.sleep(0)
    return by_name(scope)


@pytest.fixture(params=[by_name, by_path, all_but_one, later], ids=lambda one: one.__name__)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    orders, vault = MemoryStore(), MemoryStore()
    await fill(orders, MemoryWriter(orders))
    await fill(vault, MemoryWriter(vault))
    chain = (await orders.find(Selection(), limit=1, payloads=False))[0].correlation_id
    await MemoryWriter(vault).insert([sample(topic=TOPIC, correlation_id=chain)])
    made = Client(Dashboard({HIDDEN: vault, "orders": orders}, authorize=request.param))
    yield made
    await made.dashboard.close()


async def find_chain(client: Client) -> str:
    store = client.dashboard.sources["orders"].store
    return str((await store.find(Selection(), limit=1, payloads=False))[0].correlation_id)


@pytest.mark.parametrize("route", ROUTES, ids=describe)
async def test_a_page_of_one_store_names_no_other(route: Endpoint, client: Client) -> None:
    path = fill_path(route)
    for accept in ("text/html", "application/json"):
        answer = await client.get(path, accept=accept) if route.method == "GET" else await client.post(path, {})
        assert HIDDEN not in answer.text
        assert TOPIC not in answer.text


@pytest.mark.parametrize("route", ROUTES, ids=describe)
async def test_a_hidden_store_is_answered_as_one_that_is_not_there(route: Endpoint, client: Client) -> None:
    answers = []
    for store in (HIDDEN, "valut"):
        path = fill_path(route).replace("/orders", f"/{store}", 1)
        answer = await client.get(path) if route.method == "GET" else await client.post(path, {})
        answers.append((answer.status_code, answer.text.replace(store, "X")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


@pytest.mark.parametrize("path", ["live", "pulse", "", "nothing"])
async def test_live_updates_of_a_hidden_store_are_not_there(path: str, client: Client) -> None:
    answers = [await client.get(f"/{store}/{path}") for store in (HIDDEN, "valut")]

    assert [one.status_code for one in answers] == [404, 404]
    assert answers[0].text.replace(HIDDEN, "") == answers[1].text.replace("valut", "")


async def test_a_chain_shows_the_hops_of_stores_that_may_be_seen(client: Client) -> None:
    path = f"/orders/chains?id={await find_chain(client)}"
    for query in ("", "&view=sequence", "&format=json"):
        answer = await client.get(path + query)
        assert answer.status_code == 200
        assert HIDDEN not in answer.text
        assert TOPIC not in answer.text


async def test_the_first_page_is_that_of_a_store_that_may_be_seen(client: Client) -> None:
    assert (await client.get("/")).headers["location"] == "/orders/"
    assert (await client.get("/orders")).headers["location"] == "/orders/"
    assert (await client.get(f"/{HIDDEN}")).status_code == 404


@pytest.mark.parametrize("path", ["system", "system?doctor=1", "relays", "destinations", "", "inbox", "activity"])
async def test_settings_and_findings_are_those_of_one_store(path: str, tmp_path: Path) -> None:
    names = ("orders", HIDDEN)
    file = tmp_path / "pillarbox.toml"
    file.write_text("".join(f'[stores.{name}]\nurl = "sqlite:///{tmp_path}/{name}.db"\n' for name in names))
    for name in names:
        await open_schema(f"sqlite:///{tmp_path}/{name}.db").install()
    dashboard = build_dashboard(Config.load(file), {}, host="127.0.0.1")
    dashboard._authorize = by_name
    client = Client(dashboard)
    try:
        for accept in ("text/html", "application/json"):
            answer = await client.get(f"/orders/{path}", accept=accept)
            assert (answer.status_code, HIDDEN in answer.text) == (200, False)
            assert path != "system" or "stores.orders.url" in answer.text
    finally:
        await dashboard.close()


async def test_an_owner_of_everything_sees_both() -> None:
    stores = {"orders": MemoryStore(), HIDDEN: MemoryStore()}
    client = Client(Dashboard(stores, authorize=lambda _: User("ann", Role.OWNER)))

    assert f'href="/{HIDDEN}/"' in (await client.get("/orders/")).text
    await client.dashboard.close()


async def test_a_form_with_the_id_of_a_job_of_another_store_shows_nothing_of_it() -> None:
    def decide(scope: Scope) -> User | None:
        return User("ann", Role.OWNER) if scope[STORE] in allowed else None

    allowed = {HIDDEN, "orders"}
    stores = {"orders": MemoryStore(), HIDDEN: MemoryStore()}
    for one in stores.values():
        await fill(one, MemoryWriter(one))
    client = Client(Dashboard(stores, authorize=decide))
    form = {"job": "0123456789abcdef", "destination": "billing", "reason": "the secret reason", "confirm": "1"}
    started = await client.post(f"/{HIDDEN}/redrive", form)
    assert started.status_code == 303
    allowed.remove(HIDDEN)

    assert (await client.get("/orders/jobs/0123456789abcdef")).status_code == 404
    assert (await client.post("/orders/jobs/0123456789abcdef/cancel", {})).status_code == 404
    for path, more in (("redrive", {"destination": "billing"}), ("probe", {"destination": "billing"}),
                       ("inbox/redrive", {"consumer": "invoices"})):  # fmt: skip
        answer = await client.post(
            f"/orders/{path}", {"job": "0123456789abcdef", "reason": "mine", **more}, accept="application/json"
        )
        assert "the secret reason" not in answer.text
        assert answer.json().get("store", "orders") == "orders"
    assert "the secret reason" not in (await client.get("/orders/activity")).text
    await client.dashboard.close()
