"""Who may do what. The roles stand here by hand: a change of them in the table of routes fails."""

from __future__ import annotations

import base64
from collections.abc import Callable

import httpx
import pytest

from pillarbox.contracts.store import InboxSelection
from pillarbox.dashboard import (
    Dashboard,
    Role,
    User,
    basic_auth,
    bearer_token,
    first_of,
    local_user,
    proxy_header,
)
from pillarbox.dashboard.access import Scope, check_bind, find_user
from pillarbox.dashboard.app import ROUTES, Endpoint
from pillarbox.dashboard.settings import DashboardSettings, build_authorize
from pillarbox.errors import ConfigError
from pillarbox.stores.memory import MemoryStore
from tests.support.dashboard.client import Client, as_role
from tests.support.dashboard.seed import fill
from tests.support.dashboard.story import MemoryWriter

VIEWER, READER, OPERATOR, OWNER = Role
PLACES = {"{name}": "billing", "{job}": "none"}
NOT_ALLOWED = (403,)
PAGES = {
    "GET /{store}/": VIEWER,
    "GET /{store}/charts": VIEWER,
    "GET /{store}/messages": VIEWER,
    "GET /{store}/messages/{name}": VIEWER,
    "GET /{store}/messages/{name}/payload": READER,
    "GET /{store}/search": VIEWER,
    "GET /{store}/failures": VIEWER,
    "GET /{store}/failures/group": VIEWER,
    "GET /{store}/destinations": VIEWER,
    "GET /{store}/destinations/{name}": VIEWER,
    "GET /{store}/chains": VIEWER,
    "GET /{store}/inbox": VIEWER,
    "GET /{store}/inbox/message": VIEWER,
    "GET /{store}/inbox/payload": READER,
    "GET /{store}/relays": VIEWER,
    "GET /{store}/activity": VIEWER,
    "GET /{store}/system": VIEWER,
    "GET /{store}/jobs/{job}": VIEWER,
}
"""What a read-only dashboard has too."""
ACTIONS = {
    "POST /{store}/failures/note": OPERATOR,
    "GET /{store}/destinations/{name}/pause": OPERATOR,
    "POST /{store}/destinations/{name}/pause": OPERATOR,
    "POST /{store}/destinations/{name}/resume": OPERATOR,
    "POST /{store}/destinations/{name}/probe": OPERATOR,
    "GET /{store}/inbox/redrive": OPERATOR,
    "POST /{store}/inbox/redrive": OPERATOR,
    "GET /{store}/inbox/discard": OWNER,
    "POST /{store}/inbox/discard": OWNER,
    "GET /{store}/redrive": OPERATOR,
    "POST /{store}/redrive": OPERATOR,
    "POST /{store}/probe": OPERATOR,
    "GET /{store}/defer": OPERATOR,
    "POST /{store}/defer": OPERATOR,
    "GET /{store}/replay": OWNER,
    "POST /{store}/replay": OWNER,
    "GET /{store}/discard": OWNER,
    "POST /{store}/discard": OWNER,
    "POST /{store}/jobs/{job}/cancel": OPERATOR,
}
ROLES = PAGES | ACTIONS


def fill_path(route: Endpoint) -> str:
    return fill_place(route.path)


def fill_place(path: str) -> str:
    path = path.replace("{store}", "orders")
    for place, value in PLACES.items():
        path = path.replace(place, value)
    return path


def describe(route: Endpoint) -> str:
    return f"{route.method} {route.path}"


@pytest.fixture
async def store() -> MemoryStore:
    found = MemoryStore()
    await fill(found, MemoryWriter(found))
    return found


@pytest.mark.parametrize("route", ROUTES, ids=describe)
@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.label)
async def test_a_route_answers_its_role_and_those_above_alone(role: Role, route: Endpoint, store: MemoryStore) -> None:
    client = Client(Dashboard({"orders": store}, authorize=as_role(role)))
    path = fill_path(route)
    before = [await store.journal(limit=1_000), await store.pauses()]

    if route.method == "GET":
        answer = await client.get(path)
    else:
        answer = await client.post(path, {})
    await client.dashboard.close()

    needed = ROLES[describe(route)]
    assert (answer.status_code in NOT_ALLOWED) == (role < needed), answer.text
    if role < needed:
        assert [await store.journal(limit=1_000), await store.pauses()] == before


def test_every_route_has_a_role_that_was_chosen_here() -> None:
    assert {describe(route): route.role for route in ROUTES} == ROLES
    assert {describe(route) for route in ROUTES if route.changes} == set(ACTIONS)


@pytest.mark.parametrize("name", ACTIONS)
async def test_a_read_only_dashboard_has_no_action_for_an_owner_either(name: str, store: MemoryStore) -> None:
    client = Client(Dashboard({"orders": store}, authorize=as_role(Role.OWNER), read_only=True))
    before = [
        await store.journal(limit=1_000),
        await store.pauses(),
        await store.inbox_failures(InboxSelection(), limit=100),
    ]
    method, _, path = name.partition(" ")
    path = fill_place(path) + "?consumer=invoices&destination=billing"
    form = {"consumer": "invoices", "destination": "billing", "reason": "x", "confirm": "1"}

    answer = await client.get(path) if method == "GET" else await client.post(path, form)
    await client.dashboard.close()

    assert answer.status_code in (404, 405) or (method == "GET" and path.startswith("/orders/destinations/"))
    after = [
        await store.journal(limit=1_000),
        await store.pauses(),
        await store.inbox_failures(InboxSelection(), limit=100),
    ]
    assert after == before


@pytest.mark.parametrize("route", [one for one in ROUTES if one.method == "POST"], ids=describe)
@pytest.mark.parametrize("token", ["", "0" * 64, "other user"])
async def test_a_form_without_the_token_of_its_user_changes_nothing(
    token: str, route: Endpoint, store: MemoryStore
) -> None:
    dashboard = Dashboard({"orders": store}, authorize=as_role(Role.OWNER))
    client = Client(dashboard)
    if token == "other user":
        token = dashboard._tokens.issue(User("bob", Role.OWNER))
    before = [await store.journal(limit=1_000), await store.pauses()]
    form = {
        "destination": "billing",
        "reason": "x",
        "ids": "1",
        "note": "n",
        "fingerprint": "f",
        "consumer": "invoices",
    }

    answer = await client.post(fill_path(route), form, token=token)
    await dashboard.close()

    assert answer.status_code == 403
    assert [await store.journal(limit=1_000), await store.pauses()] == before


@pytest.mark.parametrize("route", [one for one in ROUTES if one.method == "POST"], ids=describe)
async def test_a_form_of_another_site_changes_nothing(route: Endpoint, store: MemoryStore) -> None:
    client = Client(Dashboard({"orders": store}, authorize=as_role(Role.OWNER)))

    for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "null"}):
        answer = await client.post(fill_path(route), {"reason": "x", "destination": "billing"}, **headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True)


@pytest.mark.parametrize("route", ROUTES, ids=describe)
async def test_nobody_gets_nothing(route: Endpoint, store: MemoryStore) -> None:
    client = Client(Dashboard({"orders": store}, authorize=basic_auth({"ann": ("correct horse", Role.OWNER)})))

    answer = await client.get(fill_path(route)) if route.method == "GET" else await client.post(fill_path(route), {})

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert "billing" not in answer.text


async def test_live_updates_and_unknown_pages_need_a_login_too(store: MemoryStore) -> None:
    client = Client(Dashboard({"orders": store}, authorize=lambda _: None))

    for path in ("/orders/live", "/orders/pulse", "/orders/nothing", "/nothing/at/all"):
        assert (await client.get(path)).status_code == 401


# --- who asks ---


def scope(client: str = "127.0.0.1", **headers: str) -> Scope:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "headers": named, "client": (client, 1)}


def encode_basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def test_a_token_is_compared_as_a_whole() -> None:
    authorize = bearer_token("s3cret-token", role=Role.READER)

    assert await find_user(authorize, scope(authorization="Bearer s3cret-token")) == User("token", Role.READER)
    for wrong in ("Bearer s3cret", "Bearer ", "s3cret-token", "Basic s3cret-token", "Bearer s3cret-token2"):
        assert await find_user(authorize, scope(authorization=wrong)) is None
    assert await find_user(authorize, scope()) is None
    with pytest.raises(ConfigError, match="fewer than 8"):
        bearer_token("short")


async def test_names_have_their_passwords_and_roles() -> None:
    authorize = basic_auth({"ann": ("correct horse", Role.OWNER), "bob": ("battery staple", Role.VIEWER)})

    assert await find_user(authorize, scope(authorization=encode_basic("bob", "battery staple"))) == User(
        "bob", Role.VIEWER
    )
    for name, password in (("ann", "battery staple"), ("eve", "correct horse"), ("", ""), ("ann", "")):
        assert await find_user(authorize, scope(authorization=encode_basic(name, password))) is None
    for nonsense in ("Basic %%%", "Basic \xff\xff", "Basic", "Basic /w==", "Basic YW5u"):
        given = {"type": "http", "headers": [(b"authorization", nonsense.encode("latin-1"))], "client": None}
        assert await find_user(authorize, given) is None


async def test_a_header_is_trusted_from_proxies_alone() -> None:
    authorize = proxy_header("x-user", peers=["10.0.0.0/8"], roles={"ann": Role.OPERATOR})

    assert await find_user(authorize, scope("10.1.2.3", x_user="ann")) == User("ann", Role.OPERATOR)
    assert await find_user(authorize, scope("10.1.2.3", x_user="bob")) == User("bob", Role.VIEWER)
    assert await find_user(authorize, scope("192.168.0.1", x_user="ann")) is None
    assert await find_user(authorize, scope("10.1.2.3")) is None
    twice = scope("10.1.2.3", x_user="ann")
    twice["headers"].append((b"x-user", b"root"))
    assert await find_user(authorize, twice) is None
    with pytest.raises(ConfigError, match="give peers"):
        proxy_header("x-user", peers=[])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8471", "127.0.0.1.evil.example", "", "10.0.0.1", "/x", "@x"]
)
async def test_a_page_of_another_name_that_points_here_is_refused(host: str) -> None:
    assert await find_user(local_user("ann"), scope(host=host)) is None


@pytest.mark.parametrize("host", ["localhost", "localhost:8471", "127.0.0.1:1", "[::1]:8471"])
async def test_whoever_asks_from_this_machine_is_its_user(host: str) -> None:
    assert await find_user(local_user("ann"), scope(host=host)) == User("ann", Role.OWNER)
    assert await find_user(local_user("ann"), scope("10.0.0.7", host=host)) is None


async def test_the_first_that_knows_the_user_decides() -> None:
    authorize = first_of(bearer_token("s3cret-token"), basic_auth({"ann": ("correct horse", Role.OWNER)}))

    assert await find_user(authorize, scope(authorization=encode_basic("ann", "correct horse"))) == User(
        "ann", Role.OWNER
    )
    assert getattr(authorize, "challenge", "").startswith("Basic")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 300])
async def test_a_name_that_no_journal_holds_is_nobody(name: str) -> None:
    assert await find_user(lambda _: User(name, Role.OWNER), scope()) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.com"])  # noqa: S104 - they are refused
def test_other_machines_are_kept_out_without_a_login(host: str) -> None:
    with pytest.raises(ConfigError, match="without a login"):
        check_bind(host, is_protected=False)
    check_bind(host, is_protected=True)
    check_bind("127.0.0.1", is_protected=False)


async def test_users_of_the_configuration_have_their_passwords_elsewhere() -> None:
    settings = DashboardSettings(users=["ann:operator:env:ANN"], token="env:TOKEN", token_role="viewer")
    authorize = build_authorize(settings, environ={"ANN": "correct horse", "TOKEN": "s3cret-token"})

    assert authorize is not None
    assert await find_user(authorize, scope(authorization=encode_basic("ann", "correct horse"))) == User(
        "ann", Role.OPERATOR
    )
    assert await find_user(authorize, scope(authorization="Bearer s3cret-token")) == User("token", Role.VIEWER)
    assert build_authorize(DashboardSettings(), environ={}) is None
    with pytest.raises(ConfigError, match="ANN, which is not set"):
        build_authorize(settings, environ={"TOKEN": "s3cret-token"})


async def test_a_proxy_of_the_configuration_names_users_with_its_own_role() -> None:
    """The role of programs with the token is another setting."""
    settings = DashboardSettings(
        proxy_header="x-user", proxy_peers=["10.0.0.0/8"], proxy_role="reader", token="env:TOKEN", token_role="owner"
    )
    authorize = build_authorize(settings, environ={"TOKEN": "s3cret-token"})

    assert authorize is not None
    assert await find_user(authorize, scope("10.1.2.3", x_user="ann")) == User("ann", Role.READER)
    assert await find_user(authorize, scope("192.168.0.1", x_user="ann")) is None
    assert await find_user(authorize, scope(authorization="Bearer s3cret-token")) == User("token", Role.OWNER)


BAD_SETTINGS: list[Callable[[], DashboardSettings]] = [
    lambda: DashboardSettings(users=["ann:operator:hunter2-hunter2"]),
    lambda: DashboardSettings(users=["ann"]),
    lambda: DashboardSettings(token="hunter2-hunter2"),
    lambda: DashboardSettings(secret="hunter2-hunter2"),
    lambda: DashboardSettings(token_role="king"),
    lambda: DashboardSettings(proxy_peers=["everywhere"]),
    lambda: DashboardSettings(root_path="pillarbox"),
    lambda: DashboardSettings(url="ops.example"),
    lambda: DashboardSettings(url="https://ann:hunter2@ops.example"),
    lambda: DashboardSettings(url="https://ops.example/?token=hunter2"),
    lambda: DashboardSettings(url="javascript://ops.example"),
]


@pytest.mark.parametrize("build", BAD_SETTINGS)
def test_settings_that_cannot_be_meant_are_refused_without_showing_secrets(
    build: Callable[[], DashboardSettings],
) -> None:
    with pytest.raises(ConfigError) as error:
        build()
    assert "hunter2" not in str(error.value)


async def test_a_form_too_large_is_refused(store: MemoryStore) -> None:
    app = Dashboard({"orders": store}, authorize=as_role(Role.OWNER))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as http:
        answer = await http.post("/orders/redrive", content=b"a=" + b"x" * 300_000)
    assert (answer.status_code, "larger than" in answer.text) == (403, True)
