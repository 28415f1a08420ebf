"""A stand-in for a transaction pooler: between two transactions nothing of a session survives.

Real poolers hand the next transaction to another server connection. This one keeps the connection and has the server
forget everything with DISCARD ALL, which no prepared statement, setting or LISTEN survives either, and which always
happens.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

__all__ = ["forgetful_pooler"]

_DISCARD = b"Q" + struct.pack("!i", 4 + len(b"discard all\0")) + b"discard all\0"
_READY = b"Z"
_IDLE = b"I"


@asynccontextmanager
async def forgetful_pooler(url: str) -> AsyncIterator[str]:
    """The URL of a proxy to that server. It speaks no TLS: it has to read along."""
    parts = urlsplit(url)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        server_reader, server_writer = await asyncio.open_connection(parts.hostname, parts.port)
        forward = asyncio.create_task(_pass_on(reader, server_writer))
        try:
            await _forget_between_transactions(server_reader, server_writer, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            forward.cancel()
            for end in (writer, server_writer):
                end.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    login = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username}@" if parts.username else ""
    try:
        yield urlunsplit(parts._replace(netloc=f"{login}{host}:{port}", query="sslmode=disable"))
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _forget_between_transactions(
    server: asyncio.StreamReader, to_server: asyncio.StreamWriter, client: asyncio.StreamWriter
) -> None:
    while True:
        kind, body = await _message(server)
        if kind == _READY and body[4:] == _IDLE:
            to_server.write(_DISCARD)
            while (await _message(server))[0] != _READY:
                pass
        client.write(kind + body)
        await client.drain()


async def _message(server: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await server.readexactly(1)
    length = await server.readexactly(4)
    return kind, length + await server.readexactly(struct.unpack("!i", length)[0] - 4)
