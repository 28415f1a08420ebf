"""The dashboard inside Django: `path("pillarbox/", include("pillarbox.integrations.django.dashboard"))`.

It runs in a thread with a loop of its own, so it works the same under WSGI and ASGI, whichever threads and loops serve
the requests. Pages are updated by asking every few seconds: a view that streams would hold a thread for each reader.

The user is Django's. By default a superuser is an owner, and other staff view; `AUTHORIZE` in the setting
PILLARBOX_DASHBOARD may name a function that decides, from the request to a `User` or None. Its other keys are `NAME`,
`READ_ONLY`, `ENVIRONMENT` and `JOURNAL_PAYLOADS`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, MutableMapping
from functools import cache
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt

from pillarbox.dashboard import Dashboard, Role, User
from pillarbox.dashboard.sources import StoreSource
from pillarbox.integrations.django.conf import build_store_url, get_names
from pillarbox.redaction import redact_url
from pillarbox.stores.factory import open_store

__all__ = ["DashboardThread", "build_view", "staff_user", "urlpatterns"]

_TIMEOUT: Final = 60.0
_DROPPED: Final = frozenset({"content-length", "connection", "transfer-encoding"})


def staff_user(request: HttpRequest) -> User | None:
    """Return the owner for a superuser, a viewer for other staff, and nobody for others."""
    user = request.user
    if not (user.is_authenticated and user.is_active and user.is_staff):
        return None
    return User(user.get_username(), Role.OWNER if user.is_superuser else Role.VIEWER)


class DashboardThread:
    """Answers requests in a thread with a loop of its own. The stores' connections belong to that loop."""

    def __init__(self, build: Callable[[], Dashboard]) -> None:
        self._build = build
        self._dashboard: Dashboard | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pillarbox-dashboard", daemon=True)
        self._thread.start()

    def answer(self, scope: MutableMapping[str, Any], body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Answer one request: status, headers and body."""
        answer = asyncio.run_coroutine_threadsafe(self._answer(scope, body), self._loop)
        try:
            return answer.result(_TIMEOUT)
        except TimeoutError:
            answer.cancel()
            return 503, [("content-type", "text/plain; charset=utf-8")], b"The dashboard did not answer in time.\n"

    def close(self) -> None:
        """Close the stores, and end the thread."""
        if self._dashboard is not None:
            asyncio.run_coroutine_threadsafe(self._dashboard.close(), self._loop).result(_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()

    async def _answer(self, scope: MutableMapping[str, Any], body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        if self._dashboard is None:
            self._dashboard = self._build()
        sent: list[MutableMapping[str, Any]] = []
        events = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            return events.pop() if events else {"type": "http.disconnect"}

        async def send(event: MutableMapping[str, Any]) -> None:
            sent.append(event)

        await self._dashboard(scope, receive, send)
        start = sent[0]
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return start["status"], headers, b"".join(event.get("body", b"") for event in sent[1:])


def build_view(build: Callable[[], Dashboard]) -> Callable[..., HttpResponse]:
    """Build the view that passes requests on to a dashboard. It checks forms by its own token."""
    thread = cache(lambda: DashboardThread(build))

    def view(request: HttpRequest, rest: str = "") -> HttpResponse:
        if rest.endswith("/live"):  # a stream would hold this thread: the page asks instead
            return HttpResponse(status=404)
        status, headers, body = thread().answer(_build_scope(request, rest), request.body)
        response = HttpResponse(body, status=status)
        for name, value in headers:
            if name.lower() not in _DROPPED:
                response[name] = value
        return response

    exempt: Callable[..., HttpResponse] = csrf_exempt(view)
    return exempt


def _build_scope(request: HttpRequest, rest: str) -> MutableMapping[str, Any]:
    full = request.path
    root = full[: len(full) - len(rest)].rstrip("/") if full.endswith(rest) else ""
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in request.headers.items()
    ]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
        "scheme": request.scheme, "path": full, "raw_path": full.encode(), "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"), "headers": headers,
        "client": (request.META.get("REMOTE_ADDR", ""), 0), "server": (request.get_host(), None),
        "pillarbox.user": _find_user(request),
    }  # fmt: skip


def _find_user(request: HttpRequest) -> User | None:
    chosen = _read_options().get("AUTHORIZE", staff_user)
    decide: Callable[[HttpRequest], User | None] = import_string(chosen) if isinstance(chosen, str) else chosen
    return decide(request)


def _read_options() -> Mapping[str, Any]:
    from django.conf import settings

    options: Mapping[str, Any] = getattr(settings, "PILLARBOX_DASHBOARD", {})
    return options


def _build_dashboard() -> Dashboard:
    options = _read_options()
    url = build_store_url()
    source = StoreSource(str(options.get("NAME", "main")), open_store(url, names=get_names()), label=redact_url(url))
    return Dashboard(
        {source.name: source},
        authorize=lambda scope: scope.get("pillarbox.user"),
        read_only=bool(options.get("READ_ONLY", False)),
        environment=str(options.get("ENVIRONMENT", "")),
        journal_payloads=bool(options.get("JOURNAL_PAYLOADS", False)),
        secret=_read_secret(),
    )


def _read_secret() -> str:
    from django.conf import settings

    # Processes of one site answer for each other: a form of one is sent to another.
    return f"pillarbox-dashboard:{settings.SECRET_KEY}"


_view = build_view(_build_dashboard)
urlpatterns = [path("", _view), path("<path:rest>", _view)]
