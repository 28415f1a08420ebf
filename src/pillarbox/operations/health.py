"""Probes and metrics of a relay or a consumer over HTTP: `/livez`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.clock import SystemClock
from pillarbox.consumer import Consumer
from pillarbox.contracts.store import MonitorStore, OpenClaim, Registry
from pillarbox.durations import format_duration
from pillarbox.errors import ConfigError, MissingExtra, PillarboxError
from pillarbox.message import SKIPPED_DESTINATION
from pillarbox.operations.monitor import STUCK_AFTER, Monitor, Status
from pillarbox.operations.web_server import WebLimits, WebServer
from pillarbox.redaction import redact_line
from pillarbox.relay.relay import LoopProbe, RelayHealth

__all__ = [
    "ConsumerProbes",
    "HealthApp",
    "HealthServer",
    "ProbeResult",
    "ProbeSettings",
    "ProbeSource",
    "Probes",
    "RelayState",
    "Response",
    "check_liveness",
    "check_readiness",
    "parse_address",
]

T = TypeVar("T")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Response: TypeAlias = tuple[int, str, bytes]
"""Status, content type and body."""


class ProbeSource(Protocol):
    """Probes of a relay, of a consumer, or of several processes."""

    async def check_liveness(self) -> ProbeResult: ...

    async def check_readiness(self) -> ProbeResult: ...

    async def status(self) -> Status | None:
        """Return what the tables hold, for the metrics."""

    async def close(self) -> None: ...


class HealthApp:
    """ASGI app that answers GET and HEAD. Shows counts and names of destinations, no message and no URL.

    `collectors` are what `/metrics` shows beside the status of the tables; without `prometheus_client` it is 404.
    `metrics` writes another page in its place.
    """

    def __init__(
        self,
        probes: ProbeSource,
        *,
        collectors: Sequence[object] = (),
        metrics: Callable[[], Awaitable[Response]] | None = None,
    ) -> None:
        self._probes = probes
        self._page = _Metrics(probes, collectors)
        self._metrics = metrics or self._page.respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": f"{scope['type']}.close"})
            return
        # The last part of the path: the app may be mounted anywhere.
        status, content_type, body = await self.respond(scope["method"], scope["path"].rpartition("/")[2])
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode()),
                   (b"cache-control", b"no-store")]  # fmt: skip
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def close(self) -> None:
        """Close the store. An app that is served by itself does so at shutdown; one that is mounted is not told."""
        await self._probes.close()

    async def respond(self, method: str, name: str) -> Response:
        """Answer one request."""
        if method not in ("GET", "HEAD"):
            return _to_text_response(405, "Ask with GET.")
        match name:
            case "livez":
                return _to_response(await self._probes.check_liveness())
            case "readyz":
                return _to_response(await self._probes.check_readiness())
            case "metrics":
                return await self._metrics()
        return _to_text_response(404, "There are /livez, /readyz and /metrics here.")

    def render_counters(self) -> Response:
        """Write the page for Prometheus without the status of the tables."""
        return self._page.render(None)

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return


class _Metrics:
    """The page for Prometheus."""

    def __init__(self, probes: ProbeSource, collectors: Sequence[object]) -> None:
        self._probes = probes
        self._render: Callable[[], Response] | None = None
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

            from pillarbox.operations.prometheus import StatusCollector
        except (ModuleNotFoundError, MissingExtra):
            return
        registry = CollectorRegistry(auto_describe=False)
        self._status = StatusCollector()
        for collector in (self._status, *collectors):
            registry.register(collector)  # type: ignore[arg-type]
        self._render = lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry))

    async def respond(self) -> Response:
        return self.render(await self._probes.status() if self._render is not None else None)

    def render(self, status: Status | None) -> Response:
        if self._render is None:
            return _to_text_response(404, 'Metrics need prometheus_client: pip install "pillarbox[prometheus]".')
        self._status.status = status
        return self._render()


def _to_response(result: ProbeResult) -> Response:
    body: dict[str, object] = {"status": "ok" if result.ok else "failed", "reasons": list(result.reasons)}
    if result.notes:
        body["notes"] = list(result.notes)
    return 200 if result.ok else 503, "application/json", msgspec.json.encode(body)


def _to_text_response(status: int, text: str) -> Response:
    return status, "text/plain; charset=utf-8", text.encode()


# --- probes ---

_CLAIMS_READ: Final = 1_000
_FRESH_FOR: Final = 1.0
"""Seconds for which an answer of the store is reused: probes and scrapes must not load the database."""
_STORE_TIMEOUT: Final = 2.0
"""Seconds in which the store must answer: a platform that gets no answer takes the relay for dead."""


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the liveness probe."""

    stuck_after: timedelta = STUCK_AFTER
    """Age from which a claim of this relay counts as stuck."""
    stuck_messages: int = 0
    """More messages than this in stuck claims of this relay: it is not alive."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.stuck_after <= timedelta(0) or self.stuck_messages < 0:
            raise ConfigError("A probe's stuck_after must be longer than nothing, and stuck_messages at least 0.")


def _build_monitor(store: MonitorStore, lease: timedelta) -> Monitor:
    return Monitor(store, lease=lease)


class Probes:
    """Liveness and readiness of one relay.

    `store` must have a connection of its own: a relay that hangs must not make its probes hang. `monitor` builds what
    reads the status for the metrics, from a store and a lease.
    """

    def __init__(
        self,
        store: MonitorStore,
        health: Callable[[], RelayHealth],
        *,
        settings: ProbeSettings | None = None,
        monitor: Callable[[MonitorStore, timedelta], Monitor] | None = None,
    ) -> None:
        self._store = store
        self._health = health
        self._settings = settings or ProbeSettings()
        self._build_monitor = monitor or _build_monitor
        self._tables = _Cached(self._read_tables)
        self._status = _Cached(self._read_status)
        self._opening = asyncio.Lock()
        self._is_open = False

    async def close(self) -> None:
        self._tables.cancel()
        self._status.cancel()
        await self._store.close()

    async def check_liveness(self) -> ProbeResult:
        return check_liveness(await self._read_state(), self._settings)

    async def check_readiness(self) -> ProbeResult:
        return check_readiness(await self._read_state())

    async def status(self) -> Status | None:
        """Return the status; the last one while the store cannot be reached, None before the first."""
        await self._status.get()
        return self._status.latest

    async def _read_state(self) -> RelayState:
        tables = await self._tables.get() or _Tables(error=f"it did not answer within {_STORE_TIMEOUT:g} s")
        health = self._health()
        return RelayState(
            relay_id=health.relay_id,
            stopping=health.stopping,
            idle_for=health.idle_for,
            lease=health.lease,
            optional=health.optional,
            registry=tables.registry,
            stuck=[claim for claim in tables.stuck if claim.relay_id == health.relay_id],
            store_error=tables.error,
        )

    async def _read_tables(self) -> _Tables:
        try:
            await self._open_once()
            registry = await self._store.registry(lease=self._health().lease)
            relay_id, stuck_after = self._health().relay_id, self._settings.stuck_after
            if relay_id is None:
                return _Tables(registry)
            return _Tables(
                registry, await self._store.claims(older_than=stuck_after, limit=_CLAIMS_READ, relay_id=relay_id)
            )
        except PillarboxError as error:
            return _Tables(error=redact_line(str(error)))

    async def _read_status(self) -> Status | None:
        try:
            await self._open_once()
            return await self._build_monitor(self._store, self._health().lease).status()
        except PillarboxError:
            return self._status.latest

    async def _open_once(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self._store.open()
                self._is_open = True


_BLOCKED_FOR: Final = 30.0
"""Seconds after which a consumer whose loop does not turn is taken for dead."""


class ConsumerProbes:
    """Liveness and readiness of one consumer, which runs in this loop. The probes may run in another one."""

    def __init__(self, consumer: Consumer, *, loop: asyncio.AbstractEventLoop) -> None:
        self._consumer = consumer
        self._loop = loop
        self._probe = LoopProbe(loop, clock=SystemClock())
        self._outages = _Cached(self._find_outages)

    async def close(self) -> None:
        self._outages.cancel()

    async def check_liveness(self) -> ProbeResult:
        """Fail only if the loop hangs: a database or a broker that is away is not fixed by a restart."""
        blocked_for = self._probe.measure_block()
        if blocked_for <= _BLOCKED_FOR:
            return ProbeResult(True)
        idle = format_duration(timedelta(seconds=round(blocked_for)))
        return ProbeResult(False, [f"its loop has not turned for {idle}"])

    async def check_readiness(self) -> ProbeResult:
        """Succeed when the consumer receives, and its database and its broker answer."""
        if self._consumer.is_stopping:
            return ProbeResult(False, ["it is stopping"])
        outages = await self._outages.get()
        if outages is None:
            outages = [f"the database or the broker did not answer within {_STORE_TIMEOUT:g} s"]
        if not outages and not self._consumer.is_running:
            outages = ["it is starting"]
        return ProbeResult(not outages, outages)

    async def status(self) -> Status | None:
        """Return None: what the tables hold is shown by the relays."""
        return None

    async def _find_outages(self) -> Sequence[str]:
        asked = asyncio.run_coroutine_threadsafe(self._consumer.find_outages(), self._loop)
        return await asyncio.wrap_future(asked)


class _Tables(msgspec.Struct, frozen=True):
    """Rows that the probes need; without a registry, the reason why they could not be read."""

    registry: Registry | None = None
    stuck: Sequence[OpenClaim] = ()
    error: str | None = None


class _Cached(Generic[T]):
    """Result of a query that runs once for everybody who waits for it, and is reused for a moment."""

    def __init__(self, query: Callable[[], Awaitable[T]]) -> None:
        self._query = query
        self._task: asyncio.Task[T] | None = None
        self._at = 0.0
        self.latest: T | None = None

    async def get(self) -> T | None:
        """Return a fresh result, or None if there is none in time.

        After that the query goes on, and the next caller waits for it too. It is not cancelled: a driver that has to
        interrupt a server which does not answer may hang over that itself.
        """
        if self.latest is not None and time.monotonic() - self._at <= _FRESH_FOR:
            return self.latest
        if self._task is None:
            self._task = asyncio.create_task(self._run_query())
        task = self._task
        await asyncio.wait({task}, timeout=_STORE_TIMEOUT)
        return task.result() if task.done() else None

    async def _run_query(self) -> T:
        try:
            self.latest = await self._query()
            self._at = time.monotonic()
            return self.latest
        finally:
            self._task = None

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


# --- what the probes decide: pure ---


class RelayState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one relay at one moment, from its process and from the tables."""

    relay_id: UUID | None
    """None: it has not entered the registry yet."""
    stopping: bool
    idle_for: float
    """Seconds since the relay's loop last made progress, by the process's own clock."""
    lease: timedelta
    optional: frozenset[str] = frozenset()
    """Destinations that do not count for readiness."""
    registry: Registry | None
    """None: the store cannot be reached."""
    stuck: Sequence[OpenClaim] = ()
    """Its own claims that are older than they should be."""
    store_error: str | None = None
    """The reason why the store cannot be reached."""

    @property
    def is_registered(self) -> bool:
        return self.registry is not None and any(relay.relay_id == self.relay_id for relay in self.registry.relays)


class ProbeResult(msgspec.Struct, frozen=True):
    """Result of a probe, and every reason why it failed."""

    ok: bool
    reasons: Sequence[str] = ()
    notes: Sequence[str] = ()
    """What is wrong and does not count."""


def check_liveness(state: RelayState, settings: ProbeSettings) -> ProbeResult:
    """Fail only for what a restart would fix: a loop that hangs, messages that are stuck in its hands.

    A database that is away is no reason: a new process would not reach it either.
    """
    reasons = []
    if state.idle_for > 3 * state.lease.total_seconds():
        idle = timedelta(seconds=round(state.idle_for))
        reasons.append(f"its loop has not turned for {format_duration(idle)}")
    elif state.registry is not None and state.relay_id is not None and not state.stopping and not state.is_registered:
        reasons.append("it is not alive in the registry: it did not renew its lease")
    count = sum(len(claim.message_ids) for claim in state.stuck)
    if count > settings.stuck_messages:
        reasons.append(f"{count} messages have been in its hands for over {format_duration(settings.stuck_after)}")
    return ProbeResult(not reasons, reasons)


def check_readiness(state: RelayState) -> ProbeResult:
    """Succeed when the relay is alive and reaches the store and every destination that counts.

    An outage of a partner's webhook must not stop a rollout or the drain of a node, so webhooks count only where
    their destination says so.
    """
    if state.stopping:
        return ProbeResult(False, ["it is stopping"])
    if state.registry is None:
        return ProbeResult(False, [f"the store cannot be reached: {state.store_error}"])
    if state.relay_id is None:
        return ProbeResult(False, ["it is starting"])
    own = [relay for relay in state.registry.relays if relay.relay_id == state.relay_id]
    if not own:
        return ProbeResult(False, ["it is not alive in the registry: it did not renew its lease"])
    unreachable = sorted(set(own[0].destinations) - set(own[0].reachable) - {SKIPPED_DESTINATION})
    reasons = [f"the destination {name} cannot be reached" for name in unreachable if name not in state.optional]
    notes = [f"the destination {name} cannot be reached" for name in unreachable if name in state.optional]
    return ProbeResult(not reasons, reasons, notes)


# --- a server for a relay that runs by itself ---

_LIMITS: Final = WebLimits(head_bytes=8 * 1024, body_bytes=0, answer_seconds=15)


def parse_address(text: str) -> tuple[str, int]:
    """Split `127.0.0.1:9464`, `[::1]:9464` or `:9464`, which is loopback."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65_536:
        raise ConfigError(f"{text!r} is not an address to serve at: write 127.0.0.1:9464.")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


class HealthServer:
    """Serves a `HealthApp` in a thread of its own: it answers while the relay's loop hangs."""

    def __init__(self, build_app: Callable[[], HealthApp], *, host: str, port: int) -> None:
        self._server = WebServer(build_app, host=host, port=port, what="Probes", limits=_LIMITS)

    @property
    def port(self) -> int:
        """The port it listens at once it is started, where 0 was given for a free one."""
        return self._server.port

    def start(self) -> None:
        """Listen; `ConfigError` if the address is taken or belongs to another machine."""
        self._server.start()

    def stop(self) -> None:
        """Stop listening, and wait until the thread has ended."""
        self._server.stop()
