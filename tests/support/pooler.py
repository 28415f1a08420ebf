"""Stand-ins for a transaction pooler.

Between two transactions nothing of a session survives. Real poolers hand the next transaction to another server
connection. `forgetful_pooler` keeps the connection and has the server forget everything with DISCARD ALL, which no
prepared statement, setting or LISTEN survives either, and which always happens.

`SwitchingPooler` keeps its clients while the server behind it is replaced, as PgBouncer does between PAUSE and RESUME.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit, urlunsplit

__all__ = ["SwitchingPooler", "forgetful_pooler"]

_DISCARD = b"Q" + struct.pack("!i", 4 + len(b"discard all\0")) + b"discard all\0"
_CANCEL = struct.pack("!i", 80877102)
"""The code of a request to cancel a statement, which comes in the place of a login."""
_READY = b"Z"
_IDLE = b"I"
_KNOWN_SETTINGS = {"user", "database", "application_name", "client_encoding", "DateStyle", "TimeZone", "search_path"}
"""What PgBouncer takes of a login, with the search path that some tests need. It refuses any other setting."""


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
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled only at the end, and asyncio would log a handler that was
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


# --- a pooler whose server can be replaced ---


@dataclass(eq=False)
class _Session:
    """One client, and its connection to the server of the moment."""

    client: asyncio.StreamWriter
    login: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Task[None] | None = None


class SwitchingPooler:
    """Passes everything on to one server until `pause`, and after `resume` to another one, with the same clients."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._sessions: set[_Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Event()
        self._running.set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._sessions:
            session.client.close()
            session.writer.close()

    @property
    def url(self) -> str:
        """The URL for clients. It speaks no TLS, and passes logins on, so the server must ask for no password."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return urlunsplit(
            self._target._replace(netloc=f"{self._target.username}@{host}:{port}", query="sslmode=disable")
        )

    async def pause(self) -> None:
        """Wait until no client is in a transaction, and let none begin one."""
        self._running.clear()
        for session in list(self._sessions):
            await session.idle.wait()

    async def resume(self, url: str) -> None:
        """Go on with the server at that URL."""
        self._target = urlsplit(url)
        for session in list(self._sessions):
            if session.answers is not None:
                session.answers.cancel()
            session.writer.close()
            session.reader, session.writer = await self._open(session.login)
            while (await _message(session.reader))[0] != _READY:
                pass
            self._pass_answers(session)
        self._running.set()

    async def _open(self, login: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        writer.write(login)
        return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        session: _Session | None = None
        try:
            length = await reader.readexactly(4)
            login = length + await reader.readexactly(struct.unpack("!i", length)[0] - 4)
            if login[4:8] == _CANCEL:
                (await self._open(login))[1].close()
                return
            if refused := _find_unknown_setting(login):
                text = f"SFATAL\0C08P01\0Munsupported startup parameter: {refused}\0\0".encode()
                writer.write(b"E" + struct.pack("!i", 4 + len(text)) + text)
                return
            await self._running.wait()
            session = _Session(writer, login, *await self._open(login))
            self._sessions.add(session)
            self._pass_answers(session)
            while True:
                kind, body = await _message(reader)
                if session.idle.is_set():
                    await self._running.wait()
                    session.idle.clear()
                session.writer.write(kind + body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled only at the end, and asyncio would log a handler that was
        finally:
            writer.close()
            if session is not None:
                self._sessions.discard(session)
                session.writer.close()

    def _pass_answers(self, session: _Session) -> None:
        session.answers = asyncio.create_task(self._answer(session))
        self._tasks.add(session.answers)

    async def _answer(self, session: _Session) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await _message(session.reader)
                if session.idle.is_set():
                    continue  # what a server says when it goes is for the pooler
                session.client.write(kind + body)
                if kind == _READY and body[4:] == _IDLE:
                    session.idle.set()
        if self._running.is_set():  # while it is paused, its server may go
            session.client.close()


def _find_unknown_setting(login: bytes) -> str | None:
    names = [name.decode() for name in login[8:].rstrip(b"\0").split(b"\0")[::2]]
    return next((name for name in names if name not in _KNOWN_SETTINGS), None)
