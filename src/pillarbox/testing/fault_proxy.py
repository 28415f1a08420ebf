"""A TCP proxy that breaks connections on purpose: for tests of whatever speaks to a server.

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

__all__ = ["FaultProxy", "close_after_visitors"]

_CHUNK: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends a reset instead of an orderly end."""


class _Way(Enum):
    REQUESTS = "requests"
    ANSWERS = "answers"


class FaultProxy:
    """Stands between a client and a server on loopback, and fails as it is told."""

    def __init__(self, host: str, port: int) -> None:
        self.host: Final = "127.0.0.1"
        self.port = 0
        """Where clients connect, once the block has begun. Stays the same through `down` and `up`."""
        self.requested = asyncio.Event()
        """Set when bytes came from a client; clear it to wait for the next."""
        self.answered = asyncio.Event()
        """The same for bytes from the server, whether they are passed on or not."""
        self._target = (host, port)
        self._delay = 0.0
        self._held: set[_Way] = set()
        self._dropped: set[_Way] = set()
        self._cut_at: int | None = None
        self._moves = asyncio.Event()
        self._moves.set()
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
        """How many clients are connected."""
        return len(self._writers) // 2

    # --- faults ---

    def cut(self) -> None:
        """Reset every connection. New ones are taken."""
        for writer in list(self._writers):
            _reset(writer)
        self._writers.clear()

    def cut_after(self, count: int) -> None:
        """Reset a connection when this many bytes more have come from clients; they are forwarded first."""
        self._cut_at = count

    async def down(self) -> None:
        """Reset every connection and refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            await close_after_visitors(server)
        self.cut()

    async def up(self) -> None:
        """Take connections, at the same port as before."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def hang(self) -> None:
        """Half-open: connections stand, new ones are taken, and not a byte goes either way."""
        self._hold(_Way.REQUESTS, _Way.ANSWERS)

    def hold_answers(self) -> None:
        """Requests reach the server; its answers wait until `heal`."""
        self._hold(_Way.ANSWERS)

    def drop_answers(self) -> None:
        """Requests reach the server; its answers are lost for good. Follow it with `cut`: the stream has a hole now."""
        self._dropped.add(_Way.ANSWERS)

    def delay(self, seconds: float) -> None:
        """Every chunk waits this long before it goes on."""
        self._delay = seconds

    def heal(self) -> None:
        """No fault any more. What was held goes on; what was cut stays cut."""
        self._delay = 0.0
        self._cut_at = None
        self._held.clear()
        self._dropped.clear()
        self._moves.set()

    # --- the wire ---

    def _hold(self, *ways: _Way) -> None:
        self._held.update(ways)
        self._moves.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            _reset(writer)
            return
        if writer not in self._writers or self._server is None:  # cut while it was being made
            _reset(writer)
            _reset(far_writer)
            return
        self._writers.add(far_writer)
        for way, source, sink in (
            (_Way.REQUESTS, reader, far_writer),
            (_Way.ANSWERS, far_reader, writer),
        ):
            pump = asyncio.create_task(self._pump(way, source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, way: _Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK):
                (self.requested if way is _Way.REQUESTS else self.answered).set()
                await self._forward(way, chunk, sink)
        self._writers.discard(sink)
        sink.close()

    async def _forward(self, way: _Way, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        while way in self._held:
            await self._moves.wait()
        if way in self._dropped:
            return
        sink.write(chunk)
        await sink.drain()
        if way is _Way.REQUESTS and self._cut_at is not None:
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


async def close_after_visitors(server: asyncio.Server) -> None:
    """Those at the door come in first: a server that closes on them leaves their sockets open."""
    loop = asyncio.get_running_loop()
    for line in server.sockets:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not every loop lets us
            loop.remove_reader(line.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()
