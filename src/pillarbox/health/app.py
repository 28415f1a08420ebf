"""`/livez`, `/readyz` and `/metrics` as an ASGI app, to mount in a web service or to serve beside a relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

from pillarbox.errors import MissingExtra
from pillarbox.health.probes import Probes
from pillarbox.health.verdicts import Verdict

__all__ = ["HealthApp"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, str, bytes]
"""Status, content type and body."""


class HealthApp:
    """Answers GET and HEAD. Reveals counts and names of destinations, no message and no URL.

    `collectors` are what `/metrics` shows beside what the tables say; without `prometheus_client` it is 404.
    """

    def __init__(self, probes: Probes, *, collectors: Sequence[object] = ()) -> None:
        self._probes = probes
        self._metrics = _Metrics(probes, collectors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": f"{scope['type']}.close"})
            return
        status, content_type, body = await self.answer(scope["method"], scope["path"].rpartition("/")[2])
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode()),
                   (b"cache-control", b"no-store")]  # fmt: skip
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def close(self) -> None:
        """Let the store go. Served by itself it does so at the end; whoever mounts it calls this then."""
        await self._probes.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def answer(self, method: str, name: str) -> Answer:
        """What to say to one request."""
        if method not in ("GET", "HEAD"):
            return _text(405, "Ask with GET.")
        match name:
            case "livez":
                return _told(await self._probes.live())
            case "readyz":
                return _told(await self._probes.ready())
            case "metrics":
                return await self._metrics.answer()
        return _text(404, "There are /livez, /readyz and /metrics here.")


class _Metrics:
    def __init__(self, probes: Probes, collectors: Sequence[object]) -> None:
        self._probes = probes
        self._render: Callable[[], Answer] | None = None
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

            from pillarbox.telemetry.prometheus import StatusCollector
        except (ModuleNotFoundError, MissingExtra):
            return
        registry = CollectorRegistry(auto_describe=False)
        self._status = StatusCollector()
        for collector in (self._status, *collectors):
            registry.register(collector)  # type: ignore[arg-type]
        self._render = lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry))

    async def answer(self) -> Answer:
        if self._render is None:
            return _text(404, 'Metrics need prometheus_client: pip install "pillarbox[prometheus]".')
        self._status.status = await self._probes.status()
        return self._render()


def _told(verdict: Verdict) -> Answer:
    body = {"status": "ok" if verdict.good else "failed", "reasons": list(verdict.reasons)}
    return 200 if verdict.good else 503, "application/json", msgspec.json.encode(body)


def _text(status: int, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", text.encode()
