"""Serves a dashboard by uvicorn: until stopped, or in a thread beside a relay."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pillarbox.config import Config
from pillarbox.contracts.store import Store
from pillarbox.dashboard.access import check_bind, local_user
from pillarbox.dashboard.settings import build_authorize, read_dashboard_section
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.redaction import Secret, redact_url
from pillarbox.relay.addresses import MAIN, Found
from pillarbox.relay.configuration import read_store, read_stores
from pillarbox.settings import ConfigOrigin, ConfigValue
from pillarbox.stores.factory import open_store
from pillarbox.stores.sharing import SharedConnections

try:
    import uvicorn

    from pillarbox.dashboard.app import Dashboard
    from pillarbox.dashboard.sources import StoreSource
except ModuleNotFoundError as error:
    raise MissingExtra("uvicorn", extra="dashboard", needed_for="The dashboard") from error

__all__ = ["BackgroundServer", "build_dashboard", "serve_dashboard"]

_START_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 10.0
_GRACE: Final = 1
"""Seconds that open streams get at the end: they never end by themselves."""
_PROBES: Final = ("/livez", "/readyz", "/metrics")


def build_dashboard(config: Config, stores: Mapping[str, str], *, host: str) -> Dashboard:
    """Build the dashboard that a configuration describes, over these store URLs, or over its own store.

    `ConfigError` for an address that other machines reach, if nobody checks who asks.
    """
    settings = read_dashboard_section(config)
    authorize = build_authorize(settings, environ=config.environ)
    check_bind(host, is_protected=authorize is not None)
    secret = None if settings.secret is None else Secret(settings.secret).read(option="secret", environ=config.environ)
    return Dashboard(
        {name: _open_source(name, _with_store(config, url)) for name, url in stores.items()}
        or _open_configured(config),
        authorize=authorize or local_user(_find_user()),
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
    return {
        name: StoreSource(
            name,
            open_store(address.url, names=address.names, shared=shared),
            label=redact_url(str(address)),
            config=_with_store(config, name),
        )
        for name, address in found.stores.items()
    }


def _run_in_thread(ask: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
    """Await a question from synchronous code, which may run in a loop itself."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()


def _open_source(name: str, config: Config) -> StoreSource:
    url, names = read_store(config)
    store: Store = open_store(url, names=names)
    return StoreSource(name, store, label=redact_url(str(url)), config=config)


def _with_store(config: Config, url: str) -> Config:
    flags = {**config.flags, ("store", "url"): ConfigValue(url, ConfigOrigin("flag", "--store"))}
    return Config(file=config.file, file_name=config.file_name, found=config.found, environ=config.environ, flags=flags)


def _find_user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return socket.gethostname()


def _build_config(app: Any, *, root_path: str) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", root_path=root_path, server_header=False,
        proxy_headers=False, timeout_graceful_shutdown=_GRACE, ws="none",
    )  # fmt: skip


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"The dashboard cannot be served at {host}:{port}: {error.strerror or error}.") from error
    listening.listen(128)
    return listening


def serve_dashboard(
    app: Any, *, host: str, port: int, root_path: str = "", on_start: Callable[[str], None] = lambda _: None
) -> None:
    """Serve until SIGINT or SIGTERM. `on_start` gets the address."""
    listening = _bind(host, port)
    on_start(_to_address(listening))
    server = uvicorn.Server(_build_config(app, root_path=root_path))
    try:
        asyncio.run(server.serve(sockets=[listening]))
    finally:
        listening.close()


def _to_address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _ThreadServer(uvicorn.Server):
    """Leaves the signals to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class BackgroundServer:
    """Serves an app in a thread with a loop of its own. The app is built there: its connections belong to that loop."""

    def __init__(self, build_app: Callable[[], Any], *, host: str, port: int, root_path: str = "") -> None:
        self._build_app = build_app
        self._host = host
        self._port = port
        self._root_path = root_path
        self._server: _ThreadServer | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pillarbox-dashboard", daemon=True)
        self.address = ""
        """Where it listens, once it is started."""

    def start(self) -> None:
        """Listen; the error of building the app, or `ConfigError` if the address is taken."""
        listening = _bind(self._host, self._port)
        self.address = _to_address(listening)
        self._listening = listening
        self._thread.start()
        self._ready.wait(_START_TIMEOUT)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop listening, and wait until the thread has ended."""
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._listening.close()
            self._ready.set()

    async def _serve(self) -> None:
        app = self._build_app()
        self._server = _ThreadServer(_build_config(app, root_path=self._root_path))
        self._ready.set()
        await self._server.serve(sockets=[self._listening])


class ProbesAndDashboard:
    """One ASGI app of both: `/livez`, `/readyz` and `/metrics` are the probes', the rest is the dashboard's."""

    def __init__(self, probes: Any, dashboard: Any) -> None:
        self._probes = probes
        self._dashboard = dashboard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._dashboard(scope, receive, send)
            await self._probes.close()
            return
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        await (self._probes if path in _PROBES else self._dashboard)(scope, receive, send)
