"""Servers that answer with what no broker sends: an outage like any other, whatever they send, however much of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.errors import ConfigError, StoreUnavailable, TransportUnavailable
from pillarbox.stores.factory import open_store
from pillarbox.testing.samples import sample

FLOOD = 192 * 1024 * 1024
"""Bytes that a server tries to send at most."""
TAKEN = 96 * 1024 * 1024
"""Bytes that a client may read before it gives up; far less than it is offered."""
_URLS = {
    "amqp": "amqp://127.0.0.1:{port}?timeout=5s",
    "http": "http://127.0.0.1:{port}/hooks?timeout=5s&allow_private=true",
    "mqtt": "mqtt://127.0.0.1:{port}?timeout=5s",
    "nats": "nats://127.0.0.1:{port}?timeout=5s",
    "redis": "redis://127.0.0.1:{port}?timeout=5s&password=hunter2",
}
_NATS_INFO = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true,"proto":1}\r\n'

_ANSWERS = {
    "amqp": [b"HTTP/1.1 400 Bad\r\n\r\n", b"\x00" * 100, b"\x01\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff\xce"],
    "http": [b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\xff" * 100],
    "mqtt": [b"\x20\xff\xff\xff\xff\xff\xff", b"\x20\x00", b"\x30\x03\x00\x01a", b"\x00" * 100],
    "nats": [
        b"INFO {\r\n", b"INFO []\r\n", b"INFO\r\n", b"INFO \xff\r\n", b"INFO " + b"[" * 50_000 + b"\r\n",
        b"HTTP/1.1\r\n",
    ],
    "redis": [
        b":abc\r\n", b"$abc\r\n", b"$-5\r\n", b"*-7\r\n", b"*1\r\n" * 20_000, b"+" + b"a" * 100_000,
        b"HTTP/1.1 400\r\n", b"+\xff\r\n", b"-ERR \x1b[31m\x9b\r\n", b"\r\n", b"?\r\n",
    ],
}  # fmt: skip
_FLOODS = {
    "amqp": b"\x01\x00\x00\xff\xff\xff\xff",
    "http": b"HTTP/1.1 200 OK\r\na: ",
    "mqtt": b"\x20\xff\xff\xff\x7f",
    "nats": b"MSG a 1 99999999999\r\n",
}
"""Beginnings of frames that have no end."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve(handle: Handler) -> AsyncIterator[int]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def use(url: str) -> str:
    """Connect and send; return the reason why neither worked."""
    transport = transport_from_url(url)
    try:
        await transport.open()
        await transport.send([sample()])
    except TransportUnavailable as error:
        return str(error)
    finally:
        await transport.close()
    pytest.fail("it was taken for a broker")


@pytest.mark.parametrize(
    ("scheme", "answer"),
    [
        pytest.param(scheme, answer, id=f"{scheme}-{number}")
        for scheme, answers in _ANSWERS.items()
        for number, answer in enumerate(answers)
    ],
)
async def test_an_answer_that_no_broker_gives_is_an_outage(scheme: str, answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if scheme != "nats":  # there the server speaks first
            await reader.read(65_536)
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async with serve(handle) as port:
        reason = await use(_URLS[scheme].format(port=port))
    assert reason.isprintable()
    assert "hunter2" not in reason


@pytest.mark.parametrize("scheme", _FLOODS)
async def test_a_frame_without_end_is_not_read_to_its_end(scheme: str) -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if scheme == "nats":
            writer.write(_NATS_INFO)
            while b"PING" not in await reader.read(65_536):
                pass
            writer.write(b"PONG\r\n")
        else:
            await reader.read(65_536)
        writer.write(_FLOODS[scheme])
        while sent < FLOOD:
            writer.write(b"A" * 65_536)
            await writer.drain()
            sent += 65_536

    async with serve(handle) as port:
        await use(_URLS[scheme].format(port=port))
    assert sent < TAKEN


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad\r\n\r\n", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x0a", b"\x05\x00\x00\x00\x0aabcd",
        b"\x03\x00\x00\x00\xff\x10\x04", b"\x01\x00\x00\x00\xff", b"\x00" * 200, b"\xff" * 200,
        b"\x10\x00\x00\x00\x0a\xff\xff\x00abcdefghijkl",
    ],
)  # fmt: skip
async def test_a_greeting_that_no_mysql_server_sends_is_an_outage(greeting: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async with serve(handle) as port:
        store = open_store(f"mysql://shop:hunter2@127.0.0.1:{port}/shop", asks_only=True)
        with pytest.raises(StoreUnavailable):
            await store.open()
        await store.close()


@pytest.mark.parametrize("content", ["-" * 100_000, "-----BEGIN NATS USER JWT-----" * 2_000])
def test_a_file_of_credentials_is_read_in_time(tmp_path: Path, content: str) -> None:
    file = tmp_path / "user.creds"
    file.write_text(content)
    with pytest.raises(ConfigError, match="holds no user JWT"):
        transport_from_url(f"nats://127.0.0.1?credentials={file}")
