"""Real HTTP endpoints for tests, on free loopback ports: one that behaves, and one that says any bytes you like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext

import msgspec
from aiohttp import web

__all__ = ["Arrival", "Endpoint", "free_port", "raw_endpoint"]


class Arrival(msgspec.Struct, frozen=True):
    """A request as it came in, the names of its headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Endpoint:
    """Takes what comes. `answer` says with what; `taken` is what it answered 2xx."""

    def __init__(self, *, tls: SSLContext | None = None) -> None:
        self.arrivals: list[Arrival] = []
        self.taken: list[Arrival] = []
        self.answers: list[web.Response] = []
        """For the next requests, in order; then 204."""
        self.judge: Callable[[Arrival], web.Response | None] = lambda _: None
        """Answers a request before these, if it returns something."""
        self.moves = asyncio.Event()
        self.moves.set()
        self.came = asyncio.Event()
        self.cuts = 0
        """How many of the next messages break the connections that they come over."""
        self._cut: object = None
        self.port = 0
        self.peers: set[object] = set()
        self._tls = tls
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}/hooks"

    @property
    def is_up(self) -> bool:
        return self._runner is not None

    async def start(self) -> None:
        """At the same port as before, if there was one."""
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def forget_cut(self) -> None:
        """Take what broke its connection, if it comes again."""
        self._cut = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        if request.method == "HEAD":
            return web.Response(headers={"content-length": "0"})
        headers = {name.lower(): value for name, value in request.headers.items()}
        arrival = Arrival(request.method, request.raw_path, headers, await request.read())
        self.arrivals.append(arrival)
        self.came.set()
        identity = headers.get("ce-id") or arrival.body
        if self.cuts and identity != self._cut:
            self.cuts -= 1
            self._cut = identity
        if identity and identity == self._cut:  # also when it comes again, over another connection
            assert request.transport is not None
            request.transport.abort()
        await self.moves.wait()
        answer = self.judge(arrival) or (self.answers.pop(0) if self.answers else web.Response(status=204))
        if 200 <= answer.status <= 299 and request.transport is not None and not request.transport.is_closing():
            self.taken.append(arrival)
        return answer


@asynccontextmanager
async def raw_endpoint(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server that does with each connection what it is told, after the request's headers were read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"
    finally:
        server.close()


async def free_port() -> int:
    """A port where nobody listens."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port
