"""The web server of probes and dashboard, over real sockets: what a client can take is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.operations.log_limit import LogLimit
from pillarbox.operations.web_server import WebLimits, WebServer, limit_connections

PATIENCE = 30.0
SHORT = WebLimits(
    connections=8, head_bytes=1_024, head_seconds=0.3, body_bytes=1_000, body_seconds=0.3, answer_seconds=0.5,
    send_seconds=0.3, send_rate=10_000_000,
)  # fmt: skip
PATIENT = WebLimits(connections=8, head_seconds=300.0, body_seconds=300.0)


class App:
    """Answers with what it got; `/large`, `/stream`, `/slow` and `/broken` do what their name says."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.seen.append({**scope, "body": body})
        try:
            await getattr(self, scope["path"].strip("/") or "echo", self.echo)(scope, send, body)
        except asyncio.CancelledError:
            self.cancelled.append(scope["path"])
            raise

    async def start(self, send: Any, *, status: int = 200, length: int | None = None) -> None:
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def echo(self, scope: Any, send: Any, body: bytes) -> None:
        text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode() + body
        await self.start(send, length=len(text))
        await send({"type": "http.response.body", "body": text})

    async def large(self, scope: Any, send: Any, body: bytes) -> None:
        await self.start(send, length=64_000_000)
        await send({"type": "http.response.body", "body": bytes(64_000_000)})

    async def stream(self, scope: Any, send: Any, body: bytes) -> None:
        await self.start(send)
        while True:
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
            await asyncio.sleep(0)

    async def quiet(self, scope: Any, send: Any, body: bytes) -> None:
        await self.start(send)
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await asyncio.Event().wait()

    async def slow(self, scope: Any, send: Any, body: bytes) -> None:
        await asyncio.Event().wait()

    async def broken(self, scope: Any, send: Any, body: bytes) -> None:
        raise RuntimeError("it broke")

    async def split(self, scope: Any, send: Any, body: bytes) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nset-cookie: b")]})
        await send({"type": "http.response.body", "body": b""})


class Served:
    """A server with its app, and clients that speak as they like."""

    def __init__(self, limits: WebLimits, root_path: str = "") -> None:
        self.app = App()
        self.server = WebServer(
            lambda: self.app, host="127.0.0.1", port=0, what="The page", limits=limits, root_path=root_path
        )
        self._lines: list[socket.socket] = []
        self.server.start()

    def connect(self, data: bytes = b"", *, buffer: int | None = None) -> socket.socket:
        line = socket.socket()
        if buffer is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        line.settimeout(PATIENCE)
        line.connect(("127.0.0.1", self.server.port))
        self._lines.append(line)
        line.sendall(data)
        return line

    def ask(self, data: bytes) -> bytes:
        return read_all(self.connect(data))

    def close(self) -> None:
        for line in self._lines:
            line.close()
        self.server.stop()


def read_all(line: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65_536):
            data += part
    return data


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def build(limits: WebLimits = PATIENT, **options: str) -> Served:
        made.append(Served(limits, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_a_request_reaches_the_app_as_it_was_sent(serve: Callable[..., Served]) -> None:
    served = serve(root_path="/ops")

    answer = served.ask(
        b"POST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-One:  two \r\nContent-Length: 4\r\n\r\nbody-and-more"
    )

    head, _, body = answer.partition(b"\r\n\r\n")
    assert body == b"POST /ops/a b c=d body"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in head
    (seen,) = served.app.seen
    assert seen["headers"] == [(b"host", b"x"), (b"x-one", b"two"), (b"content-length", b"4")]
    assert (seen["root_path"], seen["raw_path"], seen["client"][0]) == ("/ops", b"/ops/a%20b", "127.0.0.1")


def test_head_has_no_body_and_a_client_that_waits_may_go_on(serve: Callable[..., Served]) -> None:
    served = serve()

    assert served.ask(b"HEAD / HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")
    line = served.connect(b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n")
    assert line.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.sendall(b"body")
    assert read_all(line).endswith(b"POST /  body")


@pytest.mark.parametrize(("request_", "status"), [
    (b"nonsense\r\n\r\n", 400),
    (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\n\r\n", 400),
    (b"GET /\x00 HTTP/1.1\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nspace : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\na: b\nc: d\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 400),
    (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx", 400),
    (b"POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\nx", 400),
    (b"POST / HTTP/1.1\r\ncontent-length: " + b"9" * 5_000 + b"\r\n\r\nx", 400),
    (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    (b"POST / HTTP/1.1\r\ncontent-length: 600000\r\n\r\n" + b"x" * 600_000, 413),
])  # fmt: skip
def test_what_cannot_be_read_or_means_two_things_is_refused(
    request_: bytes, status: int, serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()

    assert served.ask(request_).startswith(f"HTTP/1.1 {status} ".encode())
    assert served.app.seen == []
    assert caplog.records == []


@pytest.mark.parametrize("data", [
    b"", b"GET / HT", b"GET / HTTP/1.1\r\na: " + b"x" * 3_000,
    b"POST / HTTP/1.1\r\ncontent-length: 900\r\n\r\n" + b"x" * 100,
], ids=["nothing", "half a head", "a head without an end", "half a body"])  # fmt: skip
def test_a_slow_or_endless_request_is_cut(data: bytes, serve: Callable[..., Served]) -> None:
    served = serve(SHORT)

    assert read_all(served.connect(data)) == b""
    assert served.app.seen == []


def test_a_head_byte_by_byte_does_not_live_longer(serve: Callable[..., Served]) -> None:
    line = serve(SHORT).connect()
    with contextlib.suppress(ConnectionError):
        while True:
            line.sendall(b"x")
            line.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                assert line.recv(10) == b""
                break


def test_the_oldest_that_waits_makes_room_for_a_new_one(serve: Callable[..., Served]) -> None:
    served = serve()
    idle = [served.connect(b"GET / HT") for _ in range(40)]

    assert served.ask(b"GET / HTTP/1.1\r\n\r\n").endswith(b"GET /  ")
    assert [read_all(line) for line in idle[:30]] == [b""] * 30
    idle[-1].sendall(b"TP/1.1\r\n\r\n")
    assert read_all(idle[-1]).endswith(b"GET /  ")


def test_streams_make_room_too_the_oldest_first(serve: Callable[..., Served]) -> None:
    served = serve()
    streams = []
    for _ in range(8):
        streams.append(served.connect(b"GET /quiet HTTP/1.1\r\n\r\n"))
        while b"begun" not in streams[-1].recv(1_000):
            pass

    assert served.ask(b"GET / HTTP/1.1\r\n\r\n").endswith(b"GET /  ")
    assert read_all(streams[0]) == b""
    assert served.app.cancelled == ["/quiet"]


@pytest.mark.parametrize("path", ["large", "stream"])
def test_a_client_that_does_not_read_is_cut(path: str, serve: Callable[..., Served]) -> None:
    served = serve(SHORT)
    line = served.connect(f"GET /{path} HTTP/1.1\r\n\r\n".encode(), buffer=4_096)

    # Without reading it sees only a reset.
    poll = select.poll()
    poll.register(line, select.POLLERR | select.POLLHUP)
    assert poll.poll(PATIENCE * 1_000)
    assert len(read_all(line)) < 60_000_000


def test_an_app_that_does_not_answer_or_breaks_is_logged_in_few_lines(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(SHORT)

    assert served.ask(b"GET /slow HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503 ")
    for path in (b"broken", b"split"):
        assert served.ask(b"GET /" + path + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 500 ")
    answers = [served.ask(b"GET /broken HTTP/1.1\r\n\r\n") for _ in range(100)]
    assert all(one.startswith(b"HTTP/1.1 500 ") and b"it broke" not in one for one in answers)
    assert len(caplog.records) == 10


def test_it_stops_with_open_streams_and_says_nothing(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    served = serve()
    stream, idle = served.connect(b"GET /quiet HTTP/1.1\r\n\r\n"), served.connect(b"GET")
    while b"begun" not in stream.recv(1_000):
        pass

    served.server.stop()

    assert (read_all(stream), read_all(idle)) == (b"", b"")
    assert served.app.is_closed
    assert caplog.records == []


def test_lines_are_counted_beyond_their_limit(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    limit = LogLimit(logging.getLogger("pillarbox.test"), most=2, clock=lambda: now[0])

    for number in range(5):
        limit.write(logging.WARNING, "line %d", number)
    now[0] = 60.0
    limit.write(logging.WARNING, "line %d", 5)

    assert caplog.messages == ["line 0", "line 1", "3 more lines of this kind were left out before", "line 5"]


def test_connections_take_a_quarter_of_the_descriptors_at_most() -> None:
    known = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, known[1]))
        assert limit_connections(128) == 128
        assert limit_connections(600) == 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, known)
