"""Serves a dashboard: until stopped, or in a thread beside a relay."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pillarbox.config import Config
from pillarbox.contracts.store import Store
from pillarbox.dashboard.access import check_bind
from pillarbox.dashboard.settings import build_authorize, read_dashboard_section
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.operations.web_server import WebApp, WebLimits, WebServer
from pillarbox.redaction import Secret, redact_line, redact_url
from pillarbox.relay.addresses import MAIN, Found, check_store_name
from pillarbox.relay.configuration import read_store, read_stores
from pillarbox.settings import ConfigOrigin, ConfigValue
from pillarbox.stores.factory import open_store
from pillarbox.stores.sharing import SharedConnections

try:
    from pillarbox.dashboard.app import Dashboard
    from pillarbox.dashboard.login import UrlLogin
    from pillarbox.dashboard.sources import StoreSource
except ModuleNotFoundError as error:
    raise MissingExtra("starlette and jinja2", extra="dashboard", needed_for="The dashboard") from error

__all__ = ["BackgroundServer", "build_dashboard", "serve_dashboard"]

log = logging.getLogger("pillarbox.dashboard")

_WHAT: Final = "The dashboard"
_LIMITS: Final = WebLimits(connections=128)
_PROBES: Final = ("/livez", "/readyz", "/metrics")


def build_dashboard(
    config: Config, stores: Mapping[str, str], *, host: str, login: UrlLogin | None = None
) -> Dashboard:
    """Build the dashboard that a configuration describes, over these store URLs, or over its own store.

    Where no login is configured, it is the `login` by an address with a token; a new one if none is given.
    `ConfigError` for an address that other machines reach, if nobody checks who asks.
    """
    settings = read_dashboard_section(config)
    authorize = build_authorize(settings, environ=config.environ)
    check_bind(host, is_protected=authorize is not None)
    secret = None
    if settings.secret is not None:
        secret = Secret(settings.secret).read(option="dashboard.secret", environ=config.environ)
    return Dashboard(
        {name: _open_source(name, _with_store(config, url)) for name, url in stores.items()}
        or _open_configured(config),
        authorize=authorize or login or UrlLogin(_find_user()),
        read_only=settings.read_only,
        environment=settings.environment,
        journal_payloads=settings.journal_payloads,
        trace_url=settings.trace_url,
        secret=secret,
    )


def _open_configured(config: Config) -> dict[str, StoreSource]:
    """Open the stores of the configuration: the one of `[store]`, or all of them, over connections that they share.

    Tenants are asked for once: whoever comes later is shown after the next start.
    """
    configured = read_stores(config)
    if not configured.are_many:
        return {MAIN: _open_source(MAIN, config)}
    found, shared = _run_in_thread(configured.find), SharedConnections()
    for sentence in found.refused:
        log.warning("a tenant is not shown: %s", sentence)
    sources: dict[str, StoreSource] = {}
    for name, address in found.stores.items():
        try:
            store = open_store(address.url, names=address.names, shared=shared)
            label = redact_url(str(address))
            sources[check_store_name(name)] = StoreSource(
                name, store, label=label, config=_with_store(config, name), choice=name
            )
        except ConfigError as error:
            if name in configured.named:
                raise
            log.warning("the tenant %s is not shown: %s", name, redact_line(str(error)))
    if not sources:
        raise ConfigError("The query for tenants returned none that can be shown: the dashboard has no store.")
    return sources


def _run_in_thread(ask: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
    """Await a question from synchronous code, which may run in a loop itself."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()


def _open_source(name: str, config: Config) -> StoreSource:
    url, names = read_store(config)
    store: Store = open_store(url, names=names)
    label = redact_url(str(url))
    is_chosen = ("store", "url") in config.flags  # and not by the file or a variable, which commands read too
    return StoreSource(name, store, label=label, config=config, choice=label if is_chosen else "")


def _with_store(config: Config, url: str) -> Config:
    flags = {**config.flags, ("store", "url"): ConfigValue(url, ConfigOrigin("flag", "--store"))}
    return Config(file=config.file, file_name=config.file_name, found=config.found, environ=config.environ, flags=flags)


def _find_user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return socket.gethostname()


def serve_dashboard(
    app: Dashboard, *, host: str, port: int, root_path: str = "", on_start: Callable[[str], None] = lambda _: None
) -> None:
    """Serve until SIGINT or SIGTERM. `on_start` gets the address."""
    WebServer(lambda: app, host=host, port=port, what=_WHAT, root_path=root_path, limits=_LIMITS).run(on_start=on_start)


class BackgroundServer:
    """Serves an app in a thread with a loop of its own. The app is built there: its connections belong to that loop."""

    def __init__(self, build_app: Callable[[], WebApp], *, host: str, port: int, root_path: str = "") -> None:
        self._server = WebServer(build_app, host=host, port=port, what=_WHAT, root_path=root_path, limits=_LIMITS)

    @property
    def address(self) -> str:
        """Where it listens, once it is started."""
        return self._server.address

    def start(self) -> None:
        """Listen; the error of building the app, or `ConfigError` if the address is taken."""
        self._server.start()

    def stop(self) -> None:
        """Stop listening, and wait until the thread has ended."""
        self._server.stop()


class ProbesAndDashboard:
    """One ASGI app of both: `/livez`, `/readyz` and `/metrics` are the probes', the rest is the dashboard's."""

    def __init__(self, probes: WebApp, dashboard: WebApp) -> None:
        self._probes = probes
        self._dashboard = dashboard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        await (self._probes if path in _PROBES else self._dashboard)(scope, receive, send)

    async def close(self) -> None:
        await self._dashboard.close()
        await self._probes.close()
