"""A real web server for tests, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import uvicorn

__all__ = ["WebServer"]


class WebServer:
    """Serves one ASGI app on a free loopback port, which stays the same after each restart."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server
        self._loop: asyncio.AbstractEventLoop
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Returns once it serves."""
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind(("127.0.0.1", self.port))
        self.port = line.getsockname()[1]
        config = uvicorn.Config(
            self._app, log_config=None, log_level="critical", timeout_graceful_shutdown=1, ws="none", lifespan="on"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(line,), daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            await asyncio.sleep(0.01)

    def _run(self, line: socket.socket) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[line])

        asyncio.run(serve())

    async def stop(self) -> None:
        """Connections are reset, and the app is told that it is over. Stopping twice is harmless."""
        await self._end(quietly=False)

    async def die(self) -> None:
        """Connections are reset, and the app is told nothing."""
        await self._end(quietly=True)

    async def _end(self, *, quietly: bool) -> None:
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        self._server.force_exit = quietly
        self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._reset)
        await asyncio.to_thread(thread.join)

    def _reset(self) -> None:
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
