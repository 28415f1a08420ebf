"""A broker of a few lines, so that the frame itself can be tested: it takes lines and answers each with a word.

Not in `tests.support.faults.BROKERS`: it is in no table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker, parse_arrival

__all__ = ["PlainBroker", "PlainTransport"]

_LINE = msgspec.json.Decoder(dict[str, str])
_TAKEN, _REFUSED, _REJECTED = b"taken\n", b"refused\n", b"rejected\n"


class PlainTransport:
    """Speaks to it over one connection, one batch at a time."""

    def __init__(self, port: int) -> None:
        self.features = TransportFeatures(name="plain", batch=20)
        self._port = port
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        await self._connect()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def ping(self) -> None:
        await self._connect()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        async with self._lock:
            reader, writer = await self._connect()
            try:
                writer.writelines(_encode(message) for message in messages)
                async with asyncio.timeout(1):
                    return [_decode(await reader.readuntil(b"\n")) for _ in messages]
            except TimeoutError:
                await self.close()
                return [Outcome(False, "no answer within 1 s")] * len(messages)
            except (OSError, asyncio.IncompleteReadError) as error:
                await self.close()
                raise TransportUnavailable("cut", mid_send=True) from error

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._connection is None:
            try:
                self._connection = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                raise TransportUnavailable("nobody there") from error
        return self._connection


def _encode(message: Message) -> bytes:
    members = {"id": str(message.message_id), "topic": message.topic, "body": message.payload.decode()}
    return msgspec.json.encode(members) + b"\n"


def _decode(answer: bytes) -> Outcome:
    return Outcome(answer == _TAKEN, None if answer == _TAKEN else answer.decode().strip(), answer == _REJECTED)


class PlainServer:
    """The broker itself. Takes messages of the topic `plain`, up to 10,000 bytes."""

    def __init__(self) -> None:
        self.port = 0
        self.arrivals: list[Arrival] = []
        self.refuses = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while line := await reader.readline():
                writer.write(self._answer(line))
        self._writers.discard(writer)
        writer.close()

    def _answer(self, line: bytes) -> bytes:
        members = _LINE.decode(line)
        if members["topic"] != "plain" or len(line) > 10_000:
            return _REJECTED
        if self.refuses:
            return _REFUSED
        self.arrivals.append(parse_arrival(members["body"], members["id"]))
        return _TAKEN


class RunningPlain(RunningBroker):
    """The broker behind its proxy."""

    def __init__(self, server: PlainServer, proxy: FaultProxy, make: Callable[[int], Transport]) -> None:
        self.topic = "plain"
        self.proxy = proxy
        self._server = server
        self._make = make

    def make_transport(self) -> Transport:
        return self._make(self.proxy.port)

    async def read_received(self) -> Sequence[Arrival]:
        return self._server.arrivals

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def refuse(self) -> None:
        self._server.refuses = True

    async def allow(self) -> None:
        self._server.refuses = False

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        if fault is Fault.TOO_LARGE:
            return msgspec.structs.replace(draft, padding=10_000)
        return msgspec.structs.replace(draft, topic="nowhere")


class PlainBroker(BrokerUnderTest):
    """`make` may build a transport that gets something wrong."""

    name = "Plain"

    def __init__(self, make: Callable[[int], Transport] = PlainTransport) -> None:
        self._make = make

    @asynccontextmanager
    async def run(self, fault: Fault) -> AsyncIterator[RunningBroker]:
        server = PlainServer()
        await server.start()
        try:
            async with FaultProxy("127.0.0.1", server.port) as proxy:
                yield RunningPlain(server, proxy, self._make)
        finally:
            await server.stop()
