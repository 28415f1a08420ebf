"""The dashboard below any path: in another ASGI app, behind a proxy, beside a relay's probes; and what it ships."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pillarbox.cli.dashboard import parse_stores
from pillarbox.config import Config
from pillarbox.dashboard import Dashboard, Role, StoreSource
from pillarbox.dashboard.login import UrlLogin
from pillarbox.dashboard.serve import BackgroundServer, ProbesAndDashboard, build_dashboard
from pillarbox.errors import ConfigError
from pillarbox.stores.factory import open_schema
from pillarbox.stores.memory import MemoryStore
from tests.support.dashboard.client import Client, as_role
from tests.support.dashboard.seed import fill
from tests.support.dashboard.story import MemoryWriter

PACKAGE = Path(__file__).parents[2] / "src" / "pillarbox" / "dashboard"
LINK = re.compile(r'(?:href|src|action|hx-get|data-root|data-charts|data-href)="([^"]*)"')


@pytest.fixture
async def store() -> MemoryStore:
    found = MemoryStore()
    await fill(found, MemoryWriter(found))
    return found


@pytest.mark.parametrize("root", ["/pillarbox", "/a/b"])
async def test_every_link_stays_below_the_path_that_it_is_mounted_at(root: str, store: MemoryStore) -> None:
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.OWNER))
    client = Client(Starlette(routes=[Mount(root, dashboard)]), dashboard=dashboard)

    home = await client.get(f"{root}/")
    assert home.headers["location"] == f"{root}/orders/"
    for path in (
        "",
        "messages?state=failed",
        "failures",
        "destinations/billing",
        "relays",
        "activity",
        "system",
        "inbox",
    ):
        page = await client.get(f"{root}/orders/{path}")
        assert page.status_code == 200, path
        links = LINK.findall(page.text)
        assert len(links) > 10
        assert all(link.startswith((f"{root}/", "?", "#")) for link in links), (path, links)
    for name in ("dashboard.css", "dashboard.js", "vendor/htmx.min.js"):
        assert (await client.get(f"{root}/-/static/{name}")).status_code == 200
    posted = await client.post(f"{root}/orders/destinations/billing/pause", {"reason": "they move"})
    assert posted.headers["location"] == f"{root}/orders/destinations/billing"


async def test_a_proxy_may_remove_the_path(store: MemoryStore) -> None:
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.OWNER))
    transport = httpx.ASGITransport(app=dashboard, root_path="/ops")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        page = await http.get("/orders/messages")

    assert page.status_code == 200
    assert all(link.startswith(("/ops/", "?", "#")) for link in LINK.findall(page.text))


async def test_several_stores_have_their_names_in_the_address(store: MemoryStore) -> None:
    client = Client(Dashboard({"orders": store, "billing": MemoryStore()}, authorize=as_role(Role.OWNER)))

    assert "No message is in this store" in (await client.get("/billing/")).text
    assert 'href="/billing/"' in (await client.get("/orders/")).text
    assert (await client.get("/nowhere/")).status_code == 404


@pytest.mark.parametrize("name", ["", "-", "a/b", "a b", "ö"])
def test_a_name_that_cannot_stand_in_an_address_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a name for a store"):
        Dashboard({name: MemoryStore()}, authorize=as_role(Role.OWNER))


async def test_it_runs_in_a_thread_beside_the_probes_of_a_relay(tmp_sqlite: Path) -> None:
    await open_schema(f"sqlite:///{tmp_sqlite}").install()
    config = Config.load(environ={"PILLARBOX_STORE": f"sqlite:///{tmp_sqlite}"})

    class Probes:
        async def __call__(self, scope: object, receive: object, send: object) -> None:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse("alive")(scope, receive, send)  # type: ignore[arg-type]

        async def close(self) -> None: ...

    login = UrlLogin("ann")
    server = BackgroundServer(
        lambda: ProbesAndDashboard(Probes(), build_dashboard(config, {}, host="127.0.0.1", login=login)),
        host="127.0.0.1",
        port=0,
    )
    server.start()
    try:
        async with httpx.AsyncClient(base_url=server.address, timeout=30) as http:
            assert (await http.get("/livez")).text == "alive"
            assert (await http.get("/main/")).status_code == 401
            await http.get(login.add_token(server.address))
            page = await http.get("/main/")
            assert (page.status_code, "No message is in this store" in page.text) == (200, True)
            assert (await http.get("/main/", headers={"host": "evil.example"})).status_code == 401
    finally:
        server.stop()


def test_other_machines_need_a_login() -> None:
    config = Config.load(environ={"PILLARBOX_STORE": "sqlite:///not-opened.db"})

    with pytest.raises(ConfigError, match="without a login"):
        build_dashboard(config, {}, host="0.0.0.0")  # noqa: S104 - it is refused
    protected = Config.load(
        environ={
            "PILLARBOX_STORE": "sqlite:///not-opened.db",
            "PILLARBOX_DASHBOARD_TOKEN": "env:T",
            "T": "long-enough-token",
        }
    )
    build_dashboard(protected, {}, host="0.0.0.0")  # noqa: S104 - a token protects it


@pytest.mark.parametrize("name", ["2026shop", "_shop", "7", "a.b-c_d", "x" * 63])
def test_a_store_may_have_the_name_that_a_tenant_may_have(name: str) -> None:
    assert list(Dashboard({name: MemoryStore()}, authorize=as_role(Role.OWNER)).sources) == [name]
    assert parse_stores([f"{name}=sqlite:///a.db"]) == {name: "sqlite:///a.db"}


async def test_one_bad_tenant_does_not_hide_its_neighbours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["2026shop", "_hidden", "bad/name", "x" * 64, "", "main.shop", "books"]
    with closing(sqlite3.connect(tmp_path / "directory.db")) as connection, connection:
        connection.execute("create table tenant (name text)")
        connection.executemany("insert into tenant values (?)", [(name,) for name in names])
    file = tmp_path / "pillarbox.toml"
    file.write_text(
        f'[tenants]\nstore = "sqlite:///{tmp_path}/{{tenant}}.db"\ndirectory = "sqlite:///{tmp_path}/directory.db"\n'
        'query = "select name from tenant"\n'
    )
    for name in ("2026shop", "_hidden", "books"):
        await open_schema(f"sqlite:///{tmp_path}/{name}.db").install()

    dashboard = build_dashboard(Config.load(file), {}, host="127.0.0.1", login=(login := UrlLogin("ann")))
    transport = httpx.ASGITransport(app=dashboard)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        await http.get(login.add_token("http://127.0.0.1/"))
        pages = {name: (await http.get(f"/{name}/")).status_code for name in dashboard.sources}
    await dashboard.close()

    assert pages == {"2026shop": 200, "_hidden": 200, "books": 200}
    assert len([text for text in caplog.messages if text.startswith("a tenant is not shown: ")]) == 4


async def test_commands_name_the_store_that_they_mean(tmp_path: Path) -> None:
    for name in ("orders", "billing"):
        await open_schema(f"sqlite:///{tmp_path}/{name}.db").install()
    one, many = tmp_path / "one.toml", tmp_path / "many.toml"
    one.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/orders.db"\n')
    many.write_text("".join(f'[stores.{x}]\nurl = "sqlite:///{tmp_path}/{x}.db"\n' for x in ("orders", "billing")))
    given = f"sqlite:///{tmp_path}/billing.db"

    async def read(config: Config, stores: dict[str, str], path: str) -> str:
        dashboard = build_dashboard(config, stores, host="127.0.0.1", login=(login := UrlLogin("ann")))
        transport = httpx.ASGITransport(app=dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await http.get(login.add_token("http://127.0.0.1/"))
            page = (await http.get(path)).text
        await dashboard.close()
        return page

    chosen = 'data-copy="pillarbox messages list --store {} --state failed"'
    alone = await read(Config.load(one), {}, "/main/messages?state=failed")
    assert 'data-copy="pillarbox messages list --state failed"' in alone
    assert chosen.format("billing") in await read(Config.load(many), {}, "/billing/messages?state=failed")
    assert chosen.format(given) in await read(Config.load(one), {"b": given}, "/b/messages?state=failed")
    for path, command in (
        ("system", "pillarbox doctor --store billing"),
        ("inbox?message_id=--yes", "pillarbox inbox show --store billing -- --yes"),
        ("", "pillarbox relay --store billing --to billing=amqp://localhost"),
    ):
        assert command in await read(Config.load(many), {}, f"/billing/{path}"), path


def test_a_source_reads_its_thresholds_from_the_configuration() -> None:
    config = Config.load(environ={"PILLARBOX_STORE": "sqlite:///not-opened.db", "PILLARBOX_ALERTS_FAILED": "7"})

    assert StoreSource("main", MemoryStore(), config=config).thresholds.failed == 7


def test_vendored_files_are_those_of_the_registry() -> None:
    recorded = json.loads((PACKAGE / "static" / "vendor" / "vendor.json").read_text())

    files = {path.name for path in (PACKAGE / "static" / "vendor").iterdir()} - {"vendor.json"}
    assert files == {name for package in recorded.values() for name in package["files"]}
    for package in recorded.values():
        assert package["integrity"].startswith("sha512-")
        for name, checksum in package["files"].items():
            content = (PACKAGE / "static" / "vendor" / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == checksum, name


def test_own_files_load_nothing_from_elsewhere() -> None:
    for path in [*PACKAGE.glob("static/*"), *PACKAGE.glob("templates/*")]:
        if path.is_file():
            # A command that is shown loads nothing.
            text = re.sub(r"<code>[^<]*</code>", "", path.read_text().replace("http://www.w3.org/2000/svg", ""))
            assert not re.search(r"https?://|@import|//cdn", text), path


async def test_a_destination_shows_what_the_doctor_finds_there(tmp_path: Path) -> None:
    file = tmp_path / "pillarbox.toml"
    file.write_text('[store]\nurl = "sqlite:///unused.db"\n[destinations.billing]\nurl = "http://127.0.0.1:9/hooks"\n')
    source = StoreSource("orders", MemoryStore(), config=Config.load(file))
    client = Client(Dashboard({"orders": source}, authorize=as_role(Role.VIEWER)))
    try:
        document = await client.json("/orders/destinations/billing?doctor=1")
        page = (await client.get("/orders/destinations/billing")).text
    finally:
        await client.dashboard.close()

    assert document["findings"]
    assert "Look again" in page
    assert document["findings"][0]["code"] in page
