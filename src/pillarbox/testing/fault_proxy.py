"""A TCP proxy that breaks connections on purpose, for tests of clients of a server.

    async with FaultProxy("127.0.0.1", 5672) as proxy:
        transport = ...  # connects to proxy.host and proxy.port
        proxy.drop_answers()
        ...
        proxy.cut()
        proxy.heal()

Everything happens on loopback and ends with the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from enum import Enum
from types import TracebackType
from typing import Final, Self

__all__ = ["FaultProxy", "close_gracefully"]

_CHUNK: Final = 65_536
_SMALL_BUFFER: Final = 64 * 1024
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends a reset instead of an orderly end."""


class _Direction(Enum):
    REQUESTS = "requests"
    ANSWERS = "answers"


class FaultProxy:
    """Forwards between clients and a server on loopback, and fails on request."""

    def __init__(self, host: str, port: int, *, bytes_per_second: float | None = None) -> None:
        """`bytes_per_second` makes it a slow link: requests of all connections together are no faster."""
        self.host: Final = "127.0.0.1"
        self.port = 0
        """The port for clients, once the block has begun. It stays the same through `down` and `up`."""
        self.requested = asyncio.Event()
        """Set when bytes came from a client; clear it to wait for the next."""
        self.answered = asyncio.Event()
        """The same for bytes from the server, whether they are passed on or not."""
        self._target = (host, port)
        self._delay = 0.0
        self._rate: Final = bytes_per_second
        self._free_at = 0.0
        """When the throttled link has forwarded all that was given to it."""
        self._held: set[_Direction] = set()
        self._dropped: set[_Direction] = set()
        self._cut_at: int | None = None
        self._released = asyncio.Event()
        self._released.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.down()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def connections(self) -> int:
        """The number of clients that are connected."""
        return len(self._writers) // 2

    # --- faults ---

    def cut(self) -> None:
        """Reset every connection. New ones are accepted."""
        for writer in list(self._writers):
            _reset(writer)
        self._writers.clear()

    def cut_after(self, count: int) -> None:
        """Reset every connection when this many more bytes came from clients; they are forwarded first."""
        self._cut_at = count

    async def down(self) -> None:
        """Reset every connection and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            await close_gracefully(server)
        self.cut()

    async def up(self) -> None:
        """Accept connections, at the same port as before."""
        if self._server is None:
            listener = socket.create_server((self.host, self.port))
            if self._rate is not None:
                # Otherwise the kernel takes megabytes for us, which the sender takes for sent.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
            self._server = await asyncio.start_server(self._accept, sock=listener)
            self.port = self._server.sockets[0].getsockname()[1]

    def hang(self) -> None:
        """Keep connections open, accept new ones, and forward not a byte in either direction."""
        self._hold(_Direction.REQUESTS, _Direction.ANSWERS)

    def hold_answers(self) -> None:
        """Forward requests, and hold the server's answers until `heal`."""
        self._hold(_Direction.ANSWERS)

    def drop_answers(self) -> None:
        """Forward requests, and drop the server's answers. Follow it with `cut`: the stream has a hole now."""
        self._dropped.add(_Direction.ANSWERS)

    def delay(self, seconds: float) -> None:
        """Hold every chunk for this long before it is forwarded."""
        self._delay = seconds

    def heal(self) -> None:
        """End every fault. Held bytes go on; cut connections stay cut."""
        self._delay = 0.0
        self._cut_at = None
        self._held.clear()
        self._dropped.clear()
        self._released.set()

    # --- forwarding ---

    def _hold(self, *directions: _Direction) -> None:
        self._held.update(directions)
        self._released.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            _reset(writer)
            return
        if writer not in self._writers or self._server is None:  # it was cut while connecting
            _reset(writer)
            _reset(far_writer)
            return
        self._writers.add(far_writer)
        for direction, source, sink in (
            (_Direction.REQUESTS, reader, far_writer),
            (_Direction.ANSWERS, far_reader, writer),
        ):
            pump = asyncio.create_task(self._pump(direction, source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, direction: _Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK):
                (self.requested if direction is _Direction.REQUESTS else self.answered).set()
                await self._forward(direction, chunk, sink)
        self._writers.discard(sink)
        sink.close()

    async def _forward(self, direction: _Direction, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        if self._rate is not None and direction is _Direction.REQUESTS:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + len(chunk) / self._rate
            await asyncio.sleep(self._free_at - now)
        while direction in self._held:
            await self._released.wait()
        if direction in self._dropped:
            return
        sink.write(chunk)
        await sink.drain()
        if direction is _Direction.REQUESTS and self._cut_at is not None:
            self._cut_at -= len(chunk)
            if self._cut_at <= 0:
                self._cut_at = None
                self.cut()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def close_gracefully(server: asyncio.Server) -> None:
    """Close a server after the connections that wait in its queue: closing at once would leave their sockets open."""
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not every loop allows it
            loop.remove_reader(listener.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()
