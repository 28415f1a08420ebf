"""Serves the probes from a thread and loop of its own, so that a relay whose loop hangs is still told about.

By hand: it answers three GET requests and nothing else, and a relay should not need a web server installed for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from pillarbox.errors import ConfigError
from pillarbox.health.app import HealthApp

__all__ = ["HealthServer", "address_of"]

_PATIENCE: Final = 5.0
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def address_of(text: str) -> tuple[str, int]:
    """`127.0.0.1:9464`, `[::1]:9464` or `:9464`, which is loopback."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65_536:
        raise ConfigError(f"{text!r} is not an address to serve at: write 127.0.0.1:9464.")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


class HealthServer:
    """Runs while its block does."""

    def __init__(self, make_app: Callable[[], HealthApp], *, host: str, port: int) -> None:
        self._make_app = make_app
        self._host = host
        self.port = port
        """Where it really listens, once it does: 0 asks for a free one."""
        self._ready = threading.Event()
        self._failure: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="pillarbox-health", daemon=True)

    def start(self) -> None:
        """Listen. `ConfigError` when the address is taken or not ours."""
        self._thread.start()
        self._ready.wait(30)
        if self._failure is not None:
            raise ConfigError(
                f"Probes cannot be served at {self._host}:{self.port}: {self._failure.strerror or self._failure}."
            ) from self._failure

    def stop(self) -> None:
        """Stop listening, and wait for it."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = self._make_app()
        try:
            server = await asyncio.start_server(lambda *pair: _respond(app, *pair), self._host, self.port)
        except OSError as error:
            self._failure = error
            await app.close()
            self._ready.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._stop.wait()
        await app.close()


async def _respond(app: HealthApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request per connection. Whatever is wrong with it, the next one is served."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_PATIENCE * 3):
            head = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
            path = rest.partition(" ")[0].partition("?")[0]
            status, content_type, body = await app.answer(method, path.removeprefix("/"))
            lines = (
                f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {content_type}\r\n"
                f"content-length: {len(body)}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
            )
            writer.write(lines.encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
    writer.close()
