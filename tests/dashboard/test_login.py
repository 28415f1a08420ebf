"""The login by an address with a token, failed logins, GETs that another site starts, and answers without a login."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path

import httpx
import pytest

from pillarbox.cli.dashboard import open_browser
from pillarbox.contracts.store import InboxSelection
from pillarbox.dashboard import Dashboard, Role, basic_auth
from pillarbox.dashboard.access import Authorize, Scope, find_user
from pillarbox.dashboard.app import ROUTES, Endpoint
from pillarbox.dashboard.login import UrlLogin
from pillarbox.stores.memory import MemoryStore
from tests.dashboard.test_access import describe, fill_path
from tests.support.dashboard.client import as_role
from tests.support.dashboard.seed import fill
from tests.support.dashboard.story import MemoryWriter

SECRETS = ("orders", "billing", "connection refused", "csrf")
FOREIGN = (
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"referer": "https://evil.example/"},
    {"accept-language": "en"},
    {"origin": "null"},
)
OWN: tuple[dict[str, str], ...] = (
       {}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"hx-request": "true"},
       {"referer": "http://127.0.0.1/orders/", "accept-language": "en"})  # fmt: skip


@pytest.fixture
async def store() -> MemoryStore:
    found = MemoryStore()
    await fill(found, MemoryWriter(found))
    return found


def ask(store: MemoryStore, authorize: Authorize, **options: bool) -> httpx.AsyncClient:
    app = Dashboard({"orders": store}, authorize=authorize, **options)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1")


EVERYTHING = [(route.method, fill_path(route)) for route in ROUTES] + [
    ("GET", path) for path in ("/", "/orders", "/orders/live", "/orders/pulse", "/nothing", "/nothing/at/all",
                               "/nothing/messages", "/nothing/live", "/orders/nothing", "/-/nothing")
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), EVERYTHING)
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?format=json"])
async def test_without_the_token_nothing_is_answered_on_any_route(
    method: str, path: str, query: str, store: MemoryStore
) -> None:
    login = UrlLogin("ann")
    async with ask(store, login) as http:
        cookies = ("", "pillarbox_0=", "pillarbox_None=x", "pillarbox_80=" + "0" * 64)
        for cookie in cookies:
            answer = await http.request(method, path + query, headers={"cookie": cookie})
            assert answer.status_code == 401
            assert not [secret for secret in SECRETS if secret in answer.text + str(answer.headers)]
            assert "set-cookie" not in answer.headers


async def test_the_address_with_the_token_is_exchanged_for_a_cookie(store: MemoryStore) -> None:
    login = UrlLogin("ann")
    async with ask(store, login) as http:
        address = login.add_token("http://127.0.0.1/orders/messages")
        token = address.partition("token=")[2]
        answer = await http.get(f"{address}&state=failed&q=a%26b")

        assert (answer.status_code, answer.headers["location"]) == (303, "/orders/messages?state=failed&q=a%26b")
        cookie = answer.headers["set-cookie"]
        assert re.fullmatch(r"pillarbox_\w+=[0-9a-f]{64}; Path=/; HttpOnly; SameSite=Strict", cookie)
        assert token not in str(answer.headers) + answer.text
        page = await http.get("/orders/messages")
        assert (page.status_code, "ann" in page.text, token in page.text) == (200, True, False)
        http.cookies.clear()
        assert (await http.get("/orders/", headers={"authorization": f"Bearer {token}"})).status_code == 200
        assert (await http.get("/orders/", headers={"authorization": f"Bearer {token}x"})).status_code == 401


async def test_a_page_that_a_file_or_a_site_opened_goes_on_by_itself(store: MemoryStore) -> None:
    login = UrlLogin("ann")
    async with ask(store, login) as http:
        address = login.add_token("http://127.0.0.1//evil.example/%22%3E")
        answer = await http.get(address, headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 200
    assert 'content="0;url=/evil.example/%22%3E"' in answer.text
    assert "set-cookie" in answer.headers


@pytest.mark.parametrize(("host", "client"), [("evil.example", "127.0.0.1"), ("127.0.0.1", "10.0.0.7")])
async def test_the_token_works_on_this_machine_and_by_its_names_alone(
    host: str, client: str, store: MemoryStore
) -> None:
    login = UrlLogin("ann")
    app = Dashboard({"orders": store}, authorize=login)
    transport = httpx.ASGITransport(app=app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        answer = await http.get(login.add_token(f"http://{host}/orders/"))

    assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


async def test_another_start_has_another_token(store: MemoryStore) -> None:
    first, second = UrlLogin("ann"), UrlLogin("ann")
    async with ask(store, second) as http:
        assert (await http.get(first.add_token("http://127.0.0.1/orders/"))).status_code == 401


def test_the_browser_gets_the_token_by_a_file_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import ExitStack

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with ExitStack() as stack:
        open_browser("http://127.0.0.1:1/?token=abc", into=stack)
        page = Path(opened[0].removeprefix("file://"))
        assert "token" not in opened[0]
        assert 'content="0;url=http://127.0.0.1:1/?token=abc"' in page.read_text()
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.exists()


# --- failed logins ---


def encode(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def test_failed_logins_are_logged_without_what_was_typed(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with ask(store, basic_auth({"ann": ("correct horse", Role.OWNER)})) as http:
        assert (await http.get("/orders/")).status_code == 401
        assert caplog.messages == []
        for headers in (encode("ann", "hunter2"), encode("hunter2", "x"), {"authorization": "Bearer hunter2"}):
            assert (await http.get("/orders/", headers=headers)).status_code == 401
        assert caplog.messages == [
            f"a login of {who} from 127.0.0.1 failed" for who in ("the user ann", "an unknown user", "a token")
        ]
        for _ in range(50):
            await http.get("/orders/live", headers=encode("ann", "hunter2"))
        assert len(caplog.messages) == 10
    assert "hunter2" not in caplog.text


async def test_a_wrong_token_in_the_address_is_logged_without_it(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with ask(store, UrlLogin("ann")) as http:
        assert (await http.get("/?token=hunter2")).status_code == 401
    assert caplog.messages == ["a login of a token in the address from 127.0.0.1 failed"]


@pytest.mark.parametrize("given", ["Basic \xff\xff", "Basic %%%", "Bearer \xff", "\xff", "Basic"])
async def test_a_login_that_cannot_be_read_is_refused(given: str, store: MemoryStore) -> None:
    for authorize in (basic_auth({"ann": ("correct horse", Role.OWNER)}), UrlLogin("ann")):
        async with ask(store, authorize) as http:
            answer = await http.get("/orders/", headers={b"authorization": given.encode("latin-1")})
            assert answer.status_code == 401


async def test_missing_files_and_wrong_methods_are_answered_in_a_sentence(store: MemoryStore) -> None:
    async with ask(store, as_role(Role.OWNER)) as http:
        for method, path, status in (
            ("GET", "/-/static/nothing.css", 404), ("POST", "/-/static/theme.js", 405),
            ("GET", "/-/static/../app.py", 404),
            ("DELETE", "/orders/", 405), ("GET", "/-/static/" + "x" * 5_000, 404),
        ):  # fmt: skip
            assert (await http.request(method, path)).status_code == status


# --- GETs of other sites ---

WITH_EFFECTS = ("/orders/messages/{id}/payload", "/orders/inbox/payload?{inbox}", "/orders/system?doctor=1",
                "/orders/destinations/billing?doctor=1")  # fmt: skip


@pytest.mark.parametrize("path", WITH_EFFECTS)
async def test_another_site_causes_no_payload_view_and_no_doctor(path: str, store: MemoryStore) -> None:
    failure = (await store.inbox_failures(InboxSelection(), limit=100))[0]
    inbox = f"consumer={failure.consumer}&message_id={failure.message_id}&source={failure.source}"
    path = path.format(id=1, inbox=inbox)
    before = await store.journal(limit=1_000)
    async with ask(store, as_role(Role.OWNER), journal_payloads=True) as http:
        for headers in FOREIGN:
            answer = await http.get(path, headers=headers)
            assert (answer.status_code, "Another site" in answer.text) == (403, True), headers
        assert await store.journal(limit=1_000) == before
        for headers in OWN:
            assert (await http.get(path, headers=headers)).status_code == 200, headers
        if "payload" in path:
            assert len(await store.journal(limit=1_000)) == len(before) + len(OWN)


def test_every_get_that_is_journalled_is_marked() -> None:
    def is_payload(route: Endpoint) -> bool:
        return route.path.endswith("/payload")

    assert [describe(one) for one in ROUTES if one.has_effect] == [describe(one) for one in ROUTES if is_payload(one)]


@pytest.mark.parametrize(("client", "host"), [("10.0.0.7", "127.0.0.1"), ("127.0.0.1", "evil.example")])
async def test_the_right_token_from_another_machine_or_for_another_name_is_nobodys(client: str, host: str) -> None:
    login = UrlLogin("ann")
    token = login.add_token("").partition("=")[2]

    def scope(client: str, host: str) -> Scope:
        headers = [(b"host", host.encode()), (b"authorization", f"Bearer {token}".encode())]
        query = f"token={token}".encode()
        return {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": (client, 1),
                "query_string": query}  # fmt: skip

    assert await find_user(login, scope("127.0.0.1", "127.0.0.1:8471")) is not None
    assert login.exchange(scope("127.0.0.1", "127.0.0.1:8471")) is not None
    assert await find_user(login, scope(client, host)) is None
    assert login.exchange(scope(client, host)) is None
