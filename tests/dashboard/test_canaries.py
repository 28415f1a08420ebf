"""What others wrote never becomes markup, and a secret is on no page."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import quote

from tests.dashboard.test_pages import list_paths
from tests.support.dashboard.client import Client
from tests.support.dashboard.seed import fill
from tests.support.dashboard.stores import OpenStore

Build = Callable[..., Client]
CANARY = "\"'><script>canary()</script><img src=x onerror=canary()>{{ 'se' ~ 'cond' }}\u202e"
SECRET = "hunter2-Canary-4711"


class Tags(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []
        self.images = 0
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "script":
            self.scripts.append(values.get("src"))
        self.images += tag == "img"
        self.handlers += [name for name in values if name.startswith("on")]
        self.hrefs += [values["href"] or ""] if "href" in values else []


async def test_text_of_others_is_text_on_every_page(opened: OpenStore, build_client: Build) -> None:
    filled = await fill(opened.store, opened.writer, text=CANARY)
    client = build_client(opened)
    groups = (await client.json("/orders/failures"))["failures"]
    paths = [
        *list_paths(filled),
        f"messages?key={quote(CANARY)}&error={quote(CANARY)}&topic={quote(CANARY)}",
        f"chains?id={quote(filled.correlation_id)}",
        f"activity?by={quote(CANARY)}&destination={quote(CANARY)}&action={quote(CANARY)}",
        f"inbox?consumer={quote('invoices' + CANARY)}&error={quote(CANARY)}",
        f"inbox?handled={quote(CANARY)}",
        f"messages/{quote(CANARY, safe='')}",
        f"destinations/{quote(CANARY, safe='')}",
        f"charts?window={quote(CANARY)}",
        f"messages?state={quote(CANARY)}",
        *(f"failures/group?destination={one['destination']}&fingerprint={quote(one['fingerprint'])}" for one in groups),
        f"failures/group?destination={quote(CANARY)}&fingerprint={quote(CANARY)}",
        f"redrive?error={quote(CANARY)}",
    ]

    seen = 0
    for path in paths:
        page = await client.get(f"/orders/{path}")
        if not page.headers["content-type"].startswith("text/html"):
            continue
        tags = Tags()
        tags.feed(page.text)
        assert all(source and "/-/static/" in source for source in tags.scripts), path
        assert not tags.handlers, path
        assert tags.images == 0, path
        assert not any(href.strip().lower().startswith(("javascript:", "data:")) for href in tags.hrefs), path
        assert "\u202e" not in page.text, path
        assert "second" not in page.text
        seen += "canary()" in page.text
    assert seen > 15  # otherwise nothing was tested


async def test_a_secret_is_on_no_page_and_in_no_document(opened: OpenStore, build_client: Build) -> None:
    filled = await fill(opened.store, opened.writer, secret=SECRET)
    client = build_client(opened)
    paths = [path for path in list_paths(filled) if "payload" not in path]

    for path in [*paths, "activity?format=csv&all=1", "failures/group?destination=billing&fingerprint=x"]:
        for kind in ("text/html", "application/json"):
            answer = await client.get(f"/orders/{path}", accept=kind)
            assert SECRET not in answer.text, (path, kind)
