"""A request to a page: who asks, of which store, and what the page answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import Response

from pillarbox.contracts.store import Store
from pillarbox.dashboard.access import Role, User, is_own_request
from pillarbox.dashboard.actions import FormError
from pillarbox.dashboard.sources import Sample, StoreSource
from pillarbox.operations.alerts import choose_store

if TYPE_CHECKING:
    from pillarbox.dashboard.app import Dashboard

__all__ = ["Answer", "Page", "Redirect", "View", "wants_json"]

_MAX_FORM: Final = 256 * 1024
_FORM_SECONDS: Final = 10.0


class Page(NamedTuple):
    """A page: a template with its context for people, a document for programs."""

    template: str
    title: str
    context: Mapping[str, Any]
    document: Mapping[str, Any]
    status: int = 200
    section: str = ""
    """The entry of the navigation that it belongs to."""


class Redirect(NamedTuple):
    """Go to another page, after a form was sent or a search found one thing."""

    path: str
    document: Mapping[str, Any] = {}


Answer = Page | Redirect | Response


def wants_json(request: Request) -> bool:
    """Return True if a program asks: by `?format=json`, or because it accepts JSON and no HTML."""
    chosen = request.query_params.get("format")
    if chosen is not None:
        return chosen == "json"
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


class View:
    """One request, after it was allowed."""

    def __init__(self, dashboard: Dashboard, request: Request, source: StoreSource, user: User) -> None:
        self.dashboard = dashboard
        self.request = request
        self.source = source
        self.user = user
        self.query: Mapping[str, str] = dict(request.query_params)
        self.form: Mapping[str, str] = {}

    @property
    def root(self) -> str:
        """Path that the dashboard is mounted at, without a slash at its end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def here(self) -> str:
        """Address of this page."""
        path, query = str(self.request.scope["path"]), self.request.url.query
        path = quote(path if path.startswith(self.root) else self.root + path)
        return f"{path}?{query}" if query else path

    def path(self, name: str) -> str:
        """Return the value of a part of the path."""
        return str(self.request.path_params[name])

    def url(self, path: str = "", query: str = "", *, store: str | None = None) -> str:
        """Return the address of a page of this store, below wherever the dashboard is mounted."""
        address = f"{self.root}/{quote(store or self.source.name)}/{path}"
        return f"{address}?{query}" if query else address

    def command(self, text: str) -> str:
        """Return a command line that means this store: without its name it may mean another one."""
        choice = self.source.choice
        return choose_store(text, choice) if choice else text

    async def open(self) -> Store:
        """Return the store, connected. A page that refreshes by itself shares its reads with the other viewers."""
        store = await self.source.open()
        return self.dashboard.get_shared_reads(self.source.name).wrap(store) if self.is_refresh else store

    @property
    def is_refresh(self) -> bool:
        """True if a script asks, to keep a page current, and nobody waits for news of his own doing."""
        return self.request.method == "GET" and "hx-request" in self.request.headers

    @property
    def wants_json(self) -> bool:
        return wants_json(self.request)

    @property
    def is_own(self) -> bool:
        """False if another site may have started this request."""
        return is_own_request(self.request.scope)

    async def sample(self, *, fresh: bool = False) -> Sample:
        return await self.dashboard.sampler.get(self.source.name, fresh=fresh)

    async def now(self) -> datetime:
        """Return the store's time."""
        store = await self.open()
        return await store.now()

    def may(self, role: Role) -> bool:
        return self.user.role >= role

    async def read_form(self) -> None:
        """Read the fields of a form that was sent, or of a JSON document with texts."""
        body = bytearray()
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                async for chunk in self.request.stream():
                    body += chunk
                    if len(body) > _MAX_FORM:
                        raise FormError(f"The form is larger than {_MAX_FORM} bytes.")
        except TimeoutError:
            raise FormError(f"The form did not come within {_FORM_SECONDS:g} s; send it again.") from None
        try:
            self.form = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=2_000))
        except (UnicodeDecodeError, ValueError):
            raise FormError("The form cannot be read: send application/x-www-form-urlencoded.") from None
