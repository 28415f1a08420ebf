"""The dashboard as an ASGI app: its routes, what each of them needs, and the answers around the pages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from pillarbox.errors import MissingExtra

try:
    import jinja2
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Mount, Router
    from starlette.routing import Route as StarletteRoute
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as error:
    raise MissingExtra("starlette and jinja2", extra="dashboard", needed_for="The dashboard") from error

from pillarbox.config import Config
from pillarbox.contracts.store import Store
from pillarbox.dashboard import (
    activity,
    changes,
    destinations,
    failures,
    inbox,
    messages,
    overview,
    system,
)
from pillarbox.dashboard.access import (
    Authorize,
    FormTokens,
    Role,
    Scope,
    User,
    describe_login,
    find_user,
    for_other_store,
    for_store,
    is_same_site,
)
from pillarbox.dashboard.charts import draw_sparkline
from pillarbox.dashboard.conditions import list_remedies
from pillarbox.dashboard.examinations import Examinations
from pillarbox.dashboard.formatting import (
    FILTERS,
    clean,
    describe_destination,
    describe_wait,
    hide_texts,
    name_relays,
    name_state,
)
from pillarbox.dashboard.jobs import Jobs
from pillarbox.dashboard.login import TOKEN, UrlLogin
from pillarbox.dashboard.shared_reads import SharedReads
from pillarbox.dashboard.sources import Sample, Sampler, StoreSource
from pillarbox.dashboard.view import Answer, Page, Redirect, View, wants_json
from pillarbox.durations import check_duration, format_age
from pillarbox.errors import (
    ConfigError,
    IllegalTransition,
    NoSuchMessage,
    PillarboxError,
    SchemaError,
    StoreForbidden,
    StoreRefused,
    StoreUnavailable,
)
from pillarbox.message import Message
from pillarbox.operations.documents import encode_json
from pillarbox.operations.log_limit import LogLimit
from pillarbox.redaction import redact_line, redact_url
from pillarbox.relay.addresses import check_store_name
from pillarbox.stores.factory import open_store
from pillarbox.stores.urls import parse_store_url

__all__ = ["ROUTES", "Dashboard", "Endpoint"]

log = logging.getLogger("pillarbox.dashboard")

_HERE: Final = Path(__file__).parent
_KEEP_ALIVE: Final = 15.0
_STREAM_LIFE: Final = 600.0
"""Seconds after which a stream ends. The browser opens another one, and is asked again who it is."""
_MOST_STREAMS: Final = 40
"""Streams at once: each holds a connection. Other pages ask every few seconds."""
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

Handler = Callable[[View], Awaitable[Answer]]


class Endpoint(NamedTuple):
    """One route: who may use it, and whether it can change anything."""

    method: str
    path: str
    role: Role
    handler: Handler
    changes: bool = False
    """It belongs to an action: with `read_only` it does not exist."""
    has_effect: bool = False
    """Another site must not cause this GET: it may be journalled under the user's name."""


ROUTES: Final[Sequence[Endpoint]] = (
    Endpoint("GET", "/{store}/", Role.VIEWER, overview.show_overview),
    Endpoint("GET", "/{store}/charts", Role.VIEWER, overview.show_charts),
    Endpoint("GET", "/{store}/messages", Role.VIEWER, messages.show_messages),
    Endpoint("GET", "/{store}/messages/{name}", Role.VIEWER, messages.show_message),
    Endpoint("GET", "/{store}/messages/{name}/payload", Role.READER, messages.show_payload, has_effect=True),
    Endpoint("GET", "/{store}/search", Role.VIEWER, messages.search),
    Endpoint("GET", "/{store}/failures", Role.VIEWER, failures.show_failures),
    Endpoint("GET", "/{store}/failures/group", Role.VIEWER, failures.show_group),
    Endpoint("POST", "/{store}/failures/note", Role.OPERATOR, failures.add_note, changes=True),
    Endpoint("GET", "/{store}/destinations", Role.VIEWER, destinations.show_destinations),
    Endpoint("GET", "/{store}/destinations/{name}", Role.VIEWER, destinations.show_destination),
    Endpoint("GET", "/{store}/destinations/{name}/pause", Role.OPERATOR, destinations.ask_pause, changes=True),
    Endpoint("POST", "/{store}/destinations/{name}/pause", Role.OPERATOR, destinations.pause, changes=True),
    Endpoint("POST", "/{store}/destinations/{name}/resume", Role.OPERATOR, destinations.resume, changes=True),
    Endpoint("POST", "/{store}/destinations/{name}/probe", Role.OPERATOR, destinations.probe, changes=True),
    Endpoint("GET", "/{store}/chains", Role.VIEWER, activity.show_chain),
    Endpoint("GET", "/{store}/inbox", Role.VIEWER, inbox.show_inbox),
    Endpoint("GET", "/{store}/inbox/message", Role.VIEWER, inbox.show_failure),
    Endpoint("GET", "/{store}/inbox/payload", Role.READER, inbox.show_payload, has_effect=True),
    Endpoint("GET", "/{store}/inbox/redrive", Role.OPERATOR, inbox.ask_redrive, changes=True),
    Endpoint("POST", "/{store}/inbox/redrive", Role.OPERATOR, inbox.redrive, changes=True),
    Endpoint("GET", "/{store}/inbox/discard", Role.OWNER, inbox.ask_discard, changes=True),
    Endpoint("POST", "/{store}/inbox/discard", Role.OWNER, inbox.discard, changes=True),
    Endpoint("GET", "/{store}/relays", Role.VIEWER, system.show_relays),
    Endpoint("GET", "/{store}/activity", Role.VIEWER, activity.show_activity),
    Endpoint("GET", "/{store}/system", Role.VIEWER, system.show_system),
    Endpoint("GET", "/{store}/redrive", Role.OPERATOR, changes.ask_redrive, changes=True),
    Endpoint("POST", "/{store}/redrive", Role.OPERATOR, changes.redrive, changes=True),
    Endpoint("POST", "/{store}/probe", Role.OPERATOR, changes.redrive_probe, changes=True),
    Endpoint("GET", "/{store}/defer", Role.OPERATOR, changes.ask_defer, changes=True),
    Endpoint("POST", "/{store}/defer", Role.OPERATOR, changes.defer, changes=True),
    Endpoint("GET", "/{store}/replay", Role.OWNER, changes.ask_replay, changes=True),
    Endpoint("POST", "/{store}/replay", Role.OWNER, changes.replay, changes=True),
    Endpoint("GET", "/{store}/discard", Role.OWNER, changes.ask_discard, changes=True),
    Endpoint("POST", "/{store}/discard", Role.OWNER, changes.discard, changes=True),
    Endpoint("GET", "/{store}/jobs/{job}", Role.VIEWER, changes.show_job),
    Endpoint("POST", "/{store}/jobs/{job}/cancel", Role.OPERATOR, changes.cancel, changes=True),
)
"""Every page and every action. The tests of access are generated from it."""

_NAVIGATION: Final = (
    ("overview", "Overview", "", "o"),
    ("messages", "Messages", "messages", "m"),
    ("failures", "Failures", "failures", "f"),
    ("destinations", "Destinations", "destinations", "d"),
    ("chains", "Chains", "chains", "c"),
    ("inbox", "Inbox", "inbox", "i"),
    ("relays", "Relays", "relays", "r"),
    ("activity", "Activity", "activity", "a"),
    ("system", "System", "system", "s"),
)


class Dashboard:
    """ASGI app that shows stores to people. Mount it anywhere; it follows `root_path`.

    `stores` maps names to store URLs, or to stores that are not open yet: the dashboard opens and closes them.
    `authorize` says who asks, of each store by itself: see `pillarbox.dashboard.access`.
    With `read_only` the routes of actions do not exist. `journal_payloads` writes a line into the journal whenever
    somebody looks at a payload. `trace_url` is the address of a trace, with `{trace_id}` in it. `format_payload`
    replaces the text that a payload is shown as, for instance to decrypt it. Processes that answer for each other
    share a `secret`.
    """

    def __init__(
        self,
        stores: Mapping[str, str | Store | StoreSource],
        *,
        authorize: Authorize,
        config: Config | None = None,
        read_only: bool = False,
        environment: str = "",
        journal_payloads: bool = False,
        trace_url: str | None = None,
        format_payload: Callable[[Message], str] | None = None,
        secret: str | None = None,
        interval: timedelta = timedelta(seconds=2),
    ) -> None:
        if not stores:
            raise ConfigError("A dashboard needs at least one store: give NAME=URL.")
        check_duration(interval, "interval")
        self.sources = {name: _build_source(name, store, config) for name, store in stores.items()}
        self.sampler = Sampler(self.sources, interval=interval)
        self._shared: dict[str, SharedReads] = {}
        self._streams = 0
        self._lines = LogLimit(log)
        self.jobs = Jobs()
        self.examinations = Examinations()
        self.read_only = read_only
        self.environment = environment
        self.journal_payloads = journal_payloads
        self.trace_url = trace_url
        self.format_payload = format_payload
        self._authorize = authorize
        self._tokens = FormTokens(secret)
        self._templates = _build_templates()
        self.routes = [route for route in ROUTES if not (read_only and route.changes)]
        self._router = self._build_router()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._route(scope, receive, send)
        else:
            await send({"type": f"{scope['type']}.close"})

    async def _route(self, scope: Scope, receive: Any, send: Any) -> None:
        response = None if self.login is None else self.login.exchange(scope)
        if response is not None:
            response.headers.update(_HEADERS)
            await response(scope, receive, send)
            return
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:  # a missing file, a wrong method: no answer has begun
            refusal = self._refuse(Request(scope), error.status_code, str(error.detail))
            await refusal(scope, receive, send)

    @property
    def login(self) -> UrlLogin | None:
        """The login by an address with a token, where no other is configured."""
        return self._authorize if isinstance(self._authorize, UrlLogin) else None

    async def close(self) -> None:
        """Stop jobs and close the stores. An app that is mounted in another is not told of its end: call this."""
        await self.jobs.close()
        await self.examinations.close()
        await self.sampler.close()
        for source in self.sources.values():
            await source.close()

    def get_shared_reads(self, name: str) -> SharedReads:
        """Return the reads that viewers of a store share, for as long as a sample is."""
        if name not in self._shared:
            self._shared[name] = SharedReads(seconds=self.sampler.interval.total_seconds())
        return self._shared[name]

    async def _handle_lifespan(self, receive: Any, send: Any) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    # --- routes ---

    def _build_router(self) -> Router:
        routes: list[StarletteRoute | Mount] = [
            Mount("/-/static", _StaticFiles(directory=_HERE / "static"), name="static"),
            StarletteRoute("/", self._redirect_home, methods=["GET"]),
            StarletteRoute("/{store}/live", self._stream, methods=["GET"]),
            StarletteRoute("/{store}/pulse", self._pulse, methods=["GET"]),
        ]
        for route in self.routes:
            handler = partial(self._answer, route)
            # Starlette takes a partial for a class-based endpoint unless it sees a function.
            routes.append(StarletteRoute(route.path, _to_function(handler), methods=[route.method]))
        routes.append(StarletteRoute("/{store}", self._redirect_store, methods=["GET"]))
        return Router(routes, redirect_slashes=False, default=self._answer_unknown)

    async def _answer(self, route: Endpoint, request: Request) -> Response:
        found = await self._find(request)
        if isinstance(found, Response):
            return found
        source, user = found
        view = View(self, request, source, user)
        if user.role < route.role:
            return await self._show_error(
                view, 403, f"This needs the role {route.role.label}; {user.name} is {user.role.label}."
            )
        if (route.has_effect or view.query.get("doctor") == "1") and not view.is_own:
            return await self._show_error(view, 403, "Another site started this request. Open the page from this one.")
        if route.method == "POST" and (refusal := await self._check_form(view)) is not None:
            return await self._show_error(view, 403, refusal)
        try:
            return await self._render(view, await route.handler(view))
        except Exception as error:
            return await self._show_failure(view, error)

    async def _find(self, request: Request) -> tuple[StoreSource, User] | Response:
        """Return the store that a request names, and who asks.

        Whoever may see no store is asked to log in. A store that a user may not see is answered as one that is not
        there.
        """
        name = request.path_params["store"]
        user, source = await find_user(self._authorize, for_store(request.scope, name)), self.sources.get(name)
        if user is not None and source is not None:
            return source, user
        if user is not None or await self.list_visible(request.scope):
            return self._refuse(request, 404, f"There is no store {name} here.")
        return self._ask_for_login(request)

    async def list_visible(self, scope: Scope) -> list[StoreSource]:
        """List the stores of which the sender of a request may see something."""
        everything = list(self.sources.values())
        if getattr(self._authorize, "is_same_for_all_stores", False):
            known = await find_user(self._authorize, for_other_store(scope, everything[0].name))
            return [] if known is None else everything
        users = [await find_user(self._authorize, for_other_store(scope, one.name)) for one in everything]
        return [one for one, user in zip(everything, users, strict=True) if user is not None]

    def _ask_for_login(self, request: Request) -> Response:
        tried = describe_login(self._authorize, request.scope)
        if tried is None and self.login is not None and TOKEN in request.query_params:
            tried = "a token in the address"
        if tried is not None:
            client = request.client.host if request.client else "an unknown address"
            self._lines.write(logging.WARNING, "a login of %s from %s failed", tried, client)
        challenge = getattr(self._authorize, "challenge", None)
        headers = {"www-authenticate": challenge} if challenge else {}
        sentence = f"Who are you? This dashboard needs a login. {getattr(self._authorize, 'hint', '')}".rstrip()
        return self._refuse(request, 401, sentence, headers=headers)

    async def _check_form(self, view: View) -> str | None:
        """Return why a request that changes something is refused; None if it comes from a page of this dashboard."""
        if not is_same_site(view.request.scope):
            return "The request was started by another site. Nothing was changed."
        try:
            await view.read_form()
        except ConfigError as error:
            return str(error)
        token = view.request.headers.get("x-csrf-token") or view.form.get("csrf", "")
        if not self._tokens.check(view.user, token):
            return "The form is not from this dashboard, or the dashboard was started again. Load the page once more."
        return None

    async def _redirect_home(self, request: Request) -> Response:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        visible = await self.list_visible(request.scope)
        if not visible:
            return self._ask_for_login(request)
        return RedirectResponse(f"{root}/{visible[0].name}/", headers=_HEADERS)

    async def _redirect_store(self, request: Request) -> Response:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        name = request.path_params["store"]
        visible = [one.name for one in await self.list_visible(request.scope)]
        if name in visible:
            return RedirectResponse(f"{root}/{name}/", headers=_HEADERS)
        return self._refuse(request, 404, "There is no such page.") if visible else self._ask_for_login(request)

    async def _answer_unknown(self, scope: Scope, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        is_known = bool(await self.list_visible(scope))
        response = self._refuse(request, 404, "There is no such page.") if is_known else self._ask_for_login(request)
        await response(scope, receive, send)

    # --- live ---

    async def _stream(self, request: Request) -> Response:
        found = await self._find(request)
        if isinstance(found, Response):
            return found
        if self._streams >= _MOST_STREAMS:
            return self._refuse(request, 503, "Too many pages are kept current here: ask every few seconds.")
        headers = {**_HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(self._list_events(found[0].name), media_type="text/event-stream", headers=headers)

    async def _list_events(self, name: str) -> Any:
        self._streams += 1
        try:
            async for text in self._watch(name):
                yield text
        finally:
            self._streams -= 1

    async def _watch(self, name: str) -> Any:
        version, ends_at = None, time.monotonic() + _STREAM_LIFE
        yield f"event: sample\ndata: {encode_json(_to_pulse(await self.sampler.get(name)))}\n\n"
        async with self.sampler.watch(name) as looked:
            while time.monotonic() < ends_at:
                try:
                    await asyncio.wait_for(looked.wait(), _KEEP_ALIVE)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                looked.clear()
                pulse = _to_pulse(await self.sampler.get(name))
                if pulse["version"] != version:
                    version = pulse["version"]
                    yield f"event: sample\ndata: {encode_json(pulse)}\n\n"

    async def _pulse(self, request: Request) -> Response:
        found = await self._find(request)
        if isinstance(found, Response):
            return found
        return _to_json(_to_pulse(await self.sampler.get(found[0].name)))

    # --- answers ---

    async def _render(self, view: View, answer: Answer) -> Response:
        if isinstance(answer, Response):
            answer.headers.update({name: value for name, value in _HEADERS.items() if name not in answer.headers})
            return answer
        if isinstance(answer, Redirect):
            if view.wants_json:
                return _to_json({**answer.document, "location": answer.path})
            return RedirectResponse(answer.path, status_code=303, headers=_HEADERS)
        if view.wants_json:
            return _to_json(answer.document, status=answer.status)
        sample = await view.sample()
        visible = await self.list_visible(view.request.scope)
        context = {**self._build_frame(view, sample, answer, visible), **answer.context}
        text = await self._templates.get_template(answer.template).render_async(context)
        return HTMLResponse(text, status_code=answer.status, headers=_HEADERS)

    def _build_frame(self, view: View, sample: Sample, page: Page, visible: Sequence[StoreSource]) -> dict[str, Any]:
        now = sample.at
        return {
            "view": view,
            "title": page.title,
            "section": page.section,
            "navigation": _NAVIGATION,
            "stores": visible,
            "sample": sample,
            "pulse": _to_pulse(sample),
            "user": view.user,
            "role": view.user.role,
            "read_only": self.read_only,
            "environment": self.environment,
            "csrf": self._tokens.issue(view.user),
            "now": now,
            "static": f"{view.root}/-/static",
            "here": view.here,
            "json_query": urlencode({**view.query, "format": "json"}),
            "Role": Role,
            "name_relays": lambda text: name_relays(text, () if sample.status is None else sample.status.relays),
            "age": lambda at: "" if at is None or now is None else format_age(at, now),
            "until": lambda at: "" if at is None or now is None else format_age(now, at),
        }

    def _refuse(
        self, request: Request, status: int, sentence: str, *, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Answer without a page: whoever asks may not be known."""
        extra = {**_HEADERS, **(headers or {})}
        if wants_json(request):
            return _to_json({"error": clean(sentence)}, status=status, headers=extra)
        return PlainTextResponse(clean(sentence) + "\n", status_code=status, headers=extra)

    async def _show_failure(self, view: View, error: Exception) -> Response:
        match error:
            case StoreUnavailable():
                return await self._show_error(view, 503, str(error))
            case NoSuchMessage():
                return await self._show_error(view, 404, str(error))
            case IllegalTransition():
                return await self._show_error(view, 409, str(error))
            case SchemaError() | StoreForbidden():
                return await self._show_error(view, 503, str(error))
            case ConfigError() | StoreRefused():  # a NUL in a text, an id of too many digits
                return await self._show_error(view, 400, str(error))
            case PillarboxError():
                return await self._show_error(view, 500, str(error))
        self._lines.write(logging.ERROR, "a page of the dashboard failed", error=error)
        return await self._show_error(view, 500, "Something unexpected happened; the log of the dashboard has it.")

    async def _show_error(self, view: View, status: int, sentence: str) -> Response:
        sentence = redact_line(sentence, limit=1_000)
        page = Page("error.html", f"{status}", {"sentence": sentence, "status": status}, {"error": sentence}, status)
        return await self._render(view, page)


class _StaticFiles:
    """Files that come with the dashboard. One that is missing is answered here, whatever the app is mounted in."""

    def __init__(self, *, directory: Path) -> None:
        self._files = StaticFiles(directory=directory)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        try:
            await self._files(scope, receive, send)
        except HTTPException as error:
            text = "There is no such file here.\n" if error.status_code == 404 else f"{error.detail}\n"
            response = PlainTextResponse(text, status_code=error.status_code, headers=_HEADERS)
            await response(scope, receive, send)


def _to_function(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(request)

    return endpoint


def _to_json(document: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = encode_json(hide_texts(msgspec.to_builtins(document)), indent=True) + "\n"
    return Response(text, status_code=status, media_type="application/json", headers={**_HEADERS, **(headers or {})})


def _to_pulse(sample: Sample) -> dict[str, object]:
    """Return what every page shows of a store, whatever else it shows."""
    attention = sample.attention
    return {
        "version": sample.version,
        "failed_text": sample.failed_text,
        "inbox_text": sample.inbox_text,
        "skipped_text": sample.skipped_text,
        "well": sample.is_well,
        "error": sample.error,
        "at": sample.at,
        "alerts": len(sample.alerts),
        "attention": attention.count,
        "severity": None if attention.severity is None else attention.severity.value,
    }


def _build_source(name: str, store: str | Store | StoreSource, config: Config | None) -> StoreSource:
    check_store_name(name)
    if isinstance(store, StoreSource):
        return store
    if isinstance(store, str):
        url = parse_store_url(store)
        return StoreSource(name, open_store(url), label=redact_url(str(url)), config=config)
    return StoreSource(name, store, label=store.features.name, config=config)


def _build_templates() -> jinja2.Environment:
    """Build the environment of the templates. What they write is cleaned and escaped, unless a template made it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        enable_async=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(
        describe_destination=describe_destination,
        describe_wait=describe_wait,
        list_remedies=list_remedies,
        name_state=name_state,
        sparkline=draw_sparkline,
        format_age=format_age,
    )
    return environment


def _finalize(value: object) -> object:
    if value is None:
        return ""
    return clean(value) if type(value) is str else value
