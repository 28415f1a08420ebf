"""The fault proxy does each harm that it promises, and no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pillarbox.testing.fault_proxy import FaultProxy

PATIENCE = 30.0


class Echo:
    """A server that answers each line with itself, and remembers it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def close(self) -> None:
        self._writer.close()

    def say(self, line: bytes) -> None:
        self._writer.write(line)

    async def hear(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readline()

    async def ask(self, line: bytes) -> bytes:
        self.say(line)
        return await self.hear()


Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def connect(proxy: FaultProxy) -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def connected() -> Client:
        clients.append(Client(*await asyncio.open_connection(proxy.host, proxy.port)))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


async def arrived(echo: Echo, line: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        while line not in echo.lines:  # noqa: ASYNC110 - the server is a thing apart
            await asyncio.sleep(0.01)


async def test_without_a_fault_everything_passes(connect: Connect, proxy: FaultProxy) -> None:
    client = await connect()
    assert await client.ask(b"one\n") == b"one\n"
    assert proxy.connections == 1


async def test_a_cut_resets_and_lets_new_connections_in(connect: Connect, proxy: FaultProxy) -> None:
    client = await connect()
    await client.ask(b"one\n")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await client.hear()
    assert await (await connect()).ask(b"two\n") == b"two\n"


async def test_a_cut_after_some_bytes_forwards_them_first(connect: Connect, proxy: FaultProxy, echo: Echo) -> None:
    client = await connect()
    await client.ask(b"one\n")
    proxy.hold_answers()
    proxy.cut_after(4)
    client.say(b"two\n")
    with pytest.raises(ConnectionResetError):
        await client.hear()
    await arrived(echo, b"two\n")


async def test_down_refuses_and_up_takes_at_the_same_port(connect: Connect, proxy: FaultProxy) -> None:
    client = await connect()
    port = proxy.port
    await proxy.down()
    with pytest.raises(ConnectionError):
        await client.hear()
    with pytest.raises(ConnectionRefusedError):
        await connect()
    await proxy.up()
    assert proxy.port == port
    assert await (await connect()).ask(b"two\n") == b"two\n"


async def test_what_hangs_goes_on_when_healed(connect: Connect, proxy: FaultProxy, echo: Echo) -> None:
    client = await connect()
    await client.ask(b"one\n")
    proxy.requested.clear()
    proxy.hang()
    client.say(b"two\n")
    async with asyncio.timeout(PATIENCE):
        await proxy.requested.wait()
    assert echo.lines == [b"one\n"]
    proxy.heal()
    assert await client.hear() == b"two\n"


async def test_held_answers_come_later(connect: Connect, proxy: FaultProxy, echo: Echo) -> None:
    client = await connect()
    proxy.hold_answers()
    client.say(b"one\n")
    await arrived(echo, b"one\n")
    proxy.heal()
    assert await client.hear() == b"one\n"


async def test_dropped_answers_never_come(connect: Connect, proxy: FaultProxy, echo: Echo) -> None:
    client = await connect()
    proxy.drop_answers()
    client.say(b"one\n")
    await arrived(echo, b"one\n")
    # The answer to the first must have passed through the proxy before it heals.
    proxy.hold_answers()
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await client.hear()


async def test_a_delay_holds_back_and_loses_nothing(connect: Connect, proxy: FaultProxy) -> None:
    client = await connect()
    began = asyncio.get_running_loop().time()
    proxy.delay(0.1)
    assert await client.ask(b"one\n") == b"one\n"
    assert asyncio.get_running_loop().time() - began >= 0.2
