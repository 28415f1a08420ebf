"""A door before the mock cluster, which has none: TLS, and a login by SASL PLAIN."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from tests.support.kafka_cluster import KafkaCluster

__all__ = ["door", "frame", "framed"]

_SASL_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_PATIENCE: Final = 3_000


@asynccontextmanager
async def door(
    cluster: KafkaCluster, *, tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None
) -> AsyncIterator[str]:
    """The URL of the cluster behind a door that speaks TLS, or wants to know user and password."""
    token = None if login is None else "\0{}\0{}".format(*login).encode()
    visits: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.create_task(_visit(cluster, reader, writer, token))
        writers.append(writer)
        visits.add(visit)
        visit.add_done_callback(visits.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    port: int = server.sockets[0].getsockname()[1]
    cluster.advertise("127.0.0.1", port)
    try:
        yield f"kafka://127.0.0.1:{port}"
    finally:
        await _wait_for_accepted()
        server.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        for writer in writers:  # one whose visit ended before it began is still open
            writer.transport.abort()
        await _left(server)


async def _left(server: asyncio.Server) -> None:
    """Until nobody is at the door: who is still shaking hands has a socket that nobody closes."""
    for _ in range(_PATIENCE):
        # One or the other, by the version of Python; neither is told otherwise.
        if not getattr(server, "_active_count", 0) and not getattr(server, "_clients", ()) and not _is_accepting():
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)


async def _wait_for_accepted() -> None:
    """Until every accepted connection has a transport: one that gets it from a closed server is never closed."""
    for _ in range(_PATIENCE):
        if not _is_accepting():
            break
        await asyncio.sleep(0.01)


def _is_accepting() -> bool:
    """True while a connection that was accepted has no transport yet: the server does not count it."""
    return any("_accept_connection" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def _visit(
    cluster: KafkaCluster, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes | None
) -> None:
    far_reader, far_writer = await asyncio.open_connection(cluster.host, cluster.port)
    try:
        with suppress(OSError, asyncio.IncompleteReadError):
            if token is not None:
                await _let_in(reader, writer, far_reader, far_writer, token)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pumped(reader, far_writer))
                ways.create_task(_pumped(far_reader, writer))
    finally:
        for end in (writer, far_writer):
            end.transport.abort()


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
        writer.transport.abort()


async def _let_in(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
    token: bytes,
) -> None:
    """Have the cluster say what it can do, and that one can log in; `ConnectionError` for whoever does not rightly."""
    while True:
        request = await frame(reader)
        api, version, correlation = struct.unpack_from(">hhi", request)
        if api != _API_VERSIONS:
            break
        far_writer.write(framed(request))
        answer = await frame(far_reader)
        writer.write(framed(_with_login(answer) if version == 0 else answer))
    if api != _SASL_HANDSHAKE:
        raise ConnectionError
    writer.write(framed(struct.pack(">ihih5s", correlation, 0, 1, 5, b"PLAIN")))
    if await frame(reader) != token:
        raise ConnectionError
    writer.write(framed(b""))


def _with_login(versions: bytes) -> bytes:
    """Version 0 of the answer: correlation, error, count, and for each request its number and versions."""
    correlation, error, count = struct.unpack_from(">ihi", versions)
    return (
        struct.pack(">ihi", correlation, error, count + 1) + versions[10:] + struct.pack(">hhh", _SASL_HANDSHAKE, 0, 0)
    )


async def frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content
