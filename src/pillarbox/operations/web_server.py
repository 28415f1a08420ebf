"""The web server of probes and of the dashboard: a small one, because everything that a client can take is bounded.

uvicorn bounds neither the connections that send nothing nor the time for a head, and logs a traceback or a line for
each of them: 256 idle connections took all descriptors of a relay, and stopped its deliveries for 23 s. Here a
connection is one request, and the limits are those of `WebLimits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.operations.log_limit import LogLimit
from pillarbox.tasks import cancel_all

__all__ = ["WebApp", "WebLimits", "WebServer", "limit_connections"]

log = logging.getLogger("pillarbox.web")

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]

_START_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 10.0
_GRACE: Final = 1.0
"""Seconds that requests get at the end. Streams never end by themselves."""
_ACCEPT_AGAIN: Final = 0.5
"""Seconds until the next connection is accepted, after the system refused one."""
_CHUNK: Final = 64 * 1024
_SEND_BUFFER: Final = 128 * 1024
"""Bytes that the kernel keeps for a client which does not read, twice."""
_BACKLOG: Final = 128
_LINGER: Final = 1.0
_MOST_HEADERS: Final = 100


class WebApp(Protocol):
    """An ASGI app, which is closed when its server stops."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None: ...

    async def close(self) -> None: ...


class WebLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may take."""

    connections: int = 64
    """At once. Never more than a quarter of the descriptors of this process: the others are for deliveries."""
    head_bytes: int = 32 * 1024
    """Request line and headers."""
    head_seconds: float = 5.0
    """From the connection to the end of the head. Browsers and scrapers send theirs at once."""
    body_bytes: int = 512 * 1024
    body_seconds: float = 10.0
    answer_seconds: float = 60.0
    """From the request to the first byte of the answer."""
    send_seconds: float = 15.0
    """All the time that a client may let an answer wait, beside the time that `send_rate` gives it."""
    send_rate: int = 32 * 1024
    """Bytes that a client must read in each second beyond that."""


class WebServer:
    """Serves an ASGI app over HTTP/1.1 in a thread of its own, or in this one until SIGINT or SIGTERM.

    The app is built in the loop that serves it: its connections belong to that loop. A connection beyond the limit
    closes the one that has waited longest for its request, or else the oldest stream. So nobody who only opens
    connections keeps others out.
    """

    def __init__(
        self,
        build_app: Callable[[], WebApp],
        *,
        host: str,
        port: int,
        what: str,
        limits: WebLimits | None = None,
        root_path: str = "",
    ) -> None:
        self._build_app = build_app
        self.host = host
        self.port = port
        """The port it listens at once it is started, where 0 was given for a free one."""
        self._what = what
        self._limits = limits or WebLimits()
        self._root_path = root_path
        self._listening: socket.socket | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="pillarbox-web", daemon=True)

    @property
    def address(self) -> str:
        """Address of its first page."""
        return f"http://[{self.host}]:{self.port}/" if ":" in self.host else f"http://{self.host}:{self.port}/"

    def start(self) -> None:
        """Listen; the error of building the app, or `ConfigError` if the address is taken or another machine's."""
        self._listen()
        self._thread.start()
        self._ready.wait(_START_TIMEOUT)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop listening, and wait until the thread has ended."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(stop.set)
            self._thread.join(_STOP_TIMEOUT)

    def run(self, *, on_start: Callable[[str], None] = lambda _: None) -> None:
        """Serve in this thread until SIGINT or SIGTERM. `on_start` gets the address."""
        self._listen()
        on_start(self.address)
        asyncio.run(self._serve(ends_on_signals=True))

    def _listen(self) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            self._listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            # "Address already in use (while attempting to bind on …)" says the address once more.
            reason = (error.strerror or str(error)).partition(" (while ")[0]
            raise ConfigError(
                f"{self._what} cannot be served at {self.host}:{self.port} ({reason}): choose another address, or stop "
                "what listens there."
            ) from error
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self, *, ends_on_signals: bool = False) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if ends_on_signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._stop.set)
        assert self._listening is not None  # noqa: S101
        with self._listening as listening:
            app = self._build_app()
            connections = _Connections(app, limits=self._limits, root_path=self._root_path)
            accepting = asyncio.create_task(connections.accept(listening))
            self._ready.set()
            await self._stop.wait()
            await cancel_all([accepting])
        await connections.close()
        await app.close()


def limit_connections(wanted: int) -> int:
    """Return how many connections may be open: as many as are wanted, or a quarter of all descriptors."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY:
            return max(min(wanted, most // 4), 4)
    return wanted


class _Connections:
    """The open connections, each with the task that serves it."""

    def __init__(self, app: WebApp, *, limits: WebLimits, root_path: str) -> None:
        self._app = app
        self._limits = limits
        self._most = limit_connections(limits.connections)
        self._root_path = root_path
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Those whose request has not come yet, the oldest first."""
        self._streams: dict[asyncio.Task[None], None] = {}
        """Those that are sent an answer without an end, the oldest first."""
        self.lines = LogLimit(log)

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until cancelled. Room is made before, so there are never more than the limit."""
        while True:
            await _wait_until_readable(listening)
            has_room = len(self._tasks) < self._most or await self._make_room()
            try:
                line, client = listening.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                self.lines.write(
                    logging.WARNING, "a connection to the web server cannot be accepted: %s", error.strerror or error
                )
                await asyncio.sleep(_ACCEPT_AGAIN)
                continue
            if has_room:
                line.setblocking(False)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                self._start(line, client)
            else:
                line.close()

    def _start(self, line: socket.socket, client: Any) -> None:
        task = asyncio.create_task(self._serve(line, client))
        self._tasks.add(task)
        self._waiting[task] = None
        task.add_done_callback(self._forget)
        task.add_done_callback(lambda _: line.close())  # also of a task that ended before its first step

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.pop(task, None)
        self._streams.pop(task, None)

    async def _make_room(self) -> bool:
        """Close the connection that has waited longest, or the oldest stream; return False if there is neither."""
        oldest = next(iter(self._waiting or self._streams), None)
        if oldest is None:
            return False
        await cancel_all([oldest])
        self._forget(oldest)
        return True

    async def _serve(self, line: socket.socket, client: Any) -> None:
        """Serve one connection. Whatever happens here is no matter of the others."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        connection = _Connection(line, limits=self._limits, on_stream=lambda: self._streams.setdefault(task))
        try:
            request = await connection.read_request()
            self._waiting.pop(task, None)
            if request is not None:
                scope = request.to_scope(client=client, server=line.getsockname(), root_path=self._root_path)
                await self._answer(connection, scope)
        except _Refused as refused:
            self._waiting[task] = None  # for what the client still sends: it makes room for others
            await connection.refuse(refused.status, str(refused))
        except (OSError, TimeoutError):
            pass  # the client is gone, or too slow
        except Exception as error:
            self.lines.write(logging.ERROR, "a request to the web server failed", error=error)
            self._waiting[task] = None
            await connection.refuse(500, "Something unexpected happened; the log has it.")

    async def _answer(self, connection: _Connection, scope: Scope) -> None:
        """Let the app answer, until it has, or the client has stopped reading."""
        answer = asyncio.ensure_future(self._app(scope, connection.receive, connection.send))
        gone = asyncio.ensure_future(connection.gone.wait())
        started = asyncio.ensure_future(connection.started.wait())
        try:
            await asyncio.wait(
                {answer, gone, started}, timeout=self._limits.answer_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if connection.started.is_set():
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
            elif not connection.gone.is_set():
                self.lines.write(
                    logging.WARNING,
                    "a request to the web server had no answer within %g s",
                    self._limits.answer_seconds,
                )
                raise _Refused(503, "There was no answer in time.")
        finally:
            await cancel_all([answer, gone, started])

    async def close(self) -> None:
        """End all connections: streams at once, requests that are being answered after a moment."""
        await cancel_all([*self._waiting, *self._streams])
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE)
        await cancel_all(self._tasks)


async def _wait_until_readable(line: socket.socket) -> None:
    """Wait for a connection. Unlike `sock_accept`, it loses none when it is cancelled."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(line, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(line)


class _Refused(Exception):
    """A request that the app does not see."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Connection:
    """One connection: a request, its answer, and the end."""

    def __init__(self, line: socket.socket, *, limits: WebLimits, on_stream: Callable[[], object]) -> None:
        self._line = line
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._on_stream = on_stream
        self._body: bytes | None = b""
        """None: the app has it."""
        self._is_head = False
        self._has_length = False
        self._start: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._sent = 0
        self._waited = 0.0
        """Seconds that sending has waited for the client."""
        self.started = asyncio.Event()
        self.gone = asyncio.Event()
        """The client does not read."""

    async def read_request(self) -> _Request | None:
        """Read the head and the body; None if the client closes before, or sends a head without an end."""
        async with asyncio.timeout(self._limits.head_seconds):
            data = b""
            while (end := data.find(b"\r\n\r\n")) < 0:
                if len(data) > self._limits.head_bytes or not (part := await self._loop.sock_recv(self._line, _CHUNK)):
                    return None
                data += part
        request = _parse_head(data[:end])
        self._is_head = request.method == "HEAD"
        if request.length > self._limits.body_bytes:
            raise _Refused(413, f"The body is larger than {self._limits.body_bytes} bytes.")
        body = bytearray(data[end + 4 :])
        async with asyncio.timeout(self._limits.body_seconds):
            if len(body) < request.length and request.expects_continue:
                await self._loop.sock_sendall(self._line, b"HTTP/1.1 100 Continue\r\n\r\n")
            while len(body) < request.length:
                if not (part := await self._loop.sock_recv(self._line, _CHUNK)):
                    return None
                body += part
        self._body = bytes(body[: request.length])
        return request

    # --- for the app ---

    async def receive(self) -> Event:
        """Return the body, then the end of the connection."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        with contextlib.suppress(OSError):
            left = _CHUNK  # a connection is one request: what else comes is not read for ever
            while left > 0 and (part := await self._loop.sock_recv(self._line, left)):
                left -= len(part)
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """Send a part of the answer. Nothing is sent to a client that does not read."""
        if event["type"] == "http.response.start":
            self._start = event["status"], list(event["headers"])
            return
        if event["type"] != "http.response.body":
            return
        parts = event.get("body", b"")
        head = b""
        if not self.started.is_set():
            assert self._start is not None  # noqa: S101
            status, headers = self._start
            head = _build_head(status, headers)
            self._has_length = any(name.lower() == b"content-length" for name, _ in headers)
            self.started.set()
            if event.get("more_body") and not self._has_length:
                self._on_stream()
        await self._write(head + (b"" if self._is_head else bytes(parts)))

    async def refuse(self, status: int, text: str) -> None:
        """Answer with a sentence, unless an answer has begun."""
        if self.started.is_set():
            return
        body = f"{text}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER):
                await self._loop.sock_sendall(
                    self._line, _build_head(status, headers) + (b"" if self._is_head else body)
                )
                # What comes and is not read would reset the connection, and the answer with it.
                self._line.shutdown(socket.SHUT_WR)
                left = self._limits.body_bytes
                while left > 0 and (part := await self._loop.sock_recv(self._line, _CHUNK)):
                    left -= len(part)

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        for place in range(0, len(view), _CHUNK):
            if self.gone.is_set():
                return
            part, began_at = view[place : place + _CHUNK], self._loop.time()
            patience = self._limits.send_seconds + self._sent / self._limits.send_rate - self._waited
            try:
                async with asyncio.timeout(max(patience, 0.0)):
                    await self._loop.sock_sendall(self._line, part)
            except (OSError, TimeoutError):
                # Reset: what it has not read must not stay in the kernel until it does.
                self._line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.gone.set()
                return
            self._waited += self._loop.time() - began_at
            self._sent += len(part)


# --- HTTP: pure ---

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") (/[\x21-\x7e\x80-\xff]*) HTTP/1\.([01])")
_HEADER: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_OWN_HEADERS: Final = frozenset({b"connection", b"transfer-encoding", b"date"})


class _Request(NamedTuple):
    """The head of a request. Header names are in lower case."""

    method: str
    path: bytes
    query: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    length: int
    expects_continue: bool

    def to_scope(self, *, client: Any, server: Any, root_path: str) -> Scope:
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": self.version,
            "method": self.method, "scheme": "http", "path": root_path + unquote(self.path.decode("latin-1")),
            "raw_path": root_path.encode() + self.path, "query_string": self.query, "root_path": root_path,
            "headers": self.headers, "client": tuple(client[:2]) or None, "server": tuple(server[:2]),
        }  # fmt: skip


def _parse_head(head: bytes) -> _Request:
    """Read the request line and the headers; raise `_Refused` for what is not HTTP, or may mean two things."""
    line, *rest = head.split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None or len(rest) > _MOST_HEADERS:
        raise _Refused(400, "This is not a request that can be answered here.")
    headers = []
    for text in rest:
        header = _HEADER.fullmatch(text)
        if header is None:
            raise _Refused(400, "A header of the request cannot be read.")
        headers.append((header[1].lower(), header[2].rstrip(b" \t")))
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise _Refused(411, "Send the length of the body as content-length.")
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise _Refused(400, "The content-length of the request cannot be read.")
    path, _, query = found[2].partition(b"?")
    return _Request(
        method=found[1].decode(), path=path, query=query, version=f"1.{found[3].decode()}", headers=headers,
        length=int(lengths[0]) if lengths else 0,
        expects_continue=(b"expect", b"100-continue") in [(name, value.lower()) for name, value in headers],
    )  # fmt: skip


def _build_head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}".encode()]
    for name, value in headers:
        if any(one in name + value for one in (b"\r", b"\n", b"\x00")):
            raise ValueError(f"The header {name!r} of an answer has a line break in it.")
        if name.lower() not in _OWN_HEADERS:
            lines.append(name + b": " + value)
    lines += [b"date: " + formatdate(usegmt=True).encode(), b"connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n"
