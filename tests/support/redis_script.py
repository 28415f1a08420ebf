"""A server that speaks the protocol of Redis and replies as it is told: for what a real one does only now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

__all__ = ["CUT", "SILENCE", "scripted"]

CUT = b"cut"
SILENCE = b"silence"


class _Script:
    def __init__(self, replies: Sequence[bytes]) -> None:
        self._replies = iter(replies)
        self.serving: list[asyncio.Task[object] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            while words := await _words(reader):
                reply = self._reply(words)
                if reply == CUT:
                    break
                if reply != SILENCE:
                    writer.write(reply + b"\r\n")
        writer.close()

    def _reply(self, words: Sequence[bytes]) -> bytes:
        match words[0]:
            case b"PING":
                return b"+PONG"
            case b"CONFIG":
                return b"*0"
            case b"XADD" | b"WAIT" | b"WAITAOF":
                return next(self._replies, SILENCE)
        return b"+OK"


async def _words(reader: asyncio.StreamReader) -> Sequence[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    found = []
    for _ in range(count):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        found.append((await reader.readexactly(size + 2))[:-2])
    return found


@asynccontextmanager
async def scripted(*replies: bytes) -> AsyncIterator[str]:
    """The URL of a server that gives these replies to what is added, one after the other; then silence."""
    script = _Script(replies)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        async with asyncio.timeout(30):
            await asyncio.gather(*filter(None, script.serving))
