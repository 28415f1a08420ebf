"""A broker of a few lines that says what it is told: for answers that no real broker gives on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

__all__ = ["Answer", "ScriptedBroker", "scripted"]

CONNECT, PUBLISH, PUBREL, PINGREQ, DISCONNECT = 0x10, 0x30, 0x60, 0xC0, 0xE0
_ACKS: Final = {0: b"", 1: b"\x40", 2: b"\x50"}

Answer = Callable[["ScriptedBroker", int], bytes | None]
"""From the count of the publication (0, 1, …) to a reason code with what follows it; None is silence."""


class ScriptedBroker:
    """Takes connections, and answers each PUBLISH as `answer` says."""

    def __init__(self, answer: Answer, *, connack: bytes = b"\x00\x00\x00") -> None:
        self.answer = answer
        self.connack = connack
        """Flags, reason code, and properties with their length before them."""
        self.port = 0
        self.published: list[bytes] = []
        """Whole bodies of PUBLISH packets."""
        self.connections = 0
        self.greets = True
        self.answers_pings = True
        self.released: list[bytes] = []
        """Packet identifiers that came with PUBREL."""
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[None] | None] = []

    def say(self, packet: bytes) -> None:
        """To the last that connected."""
        self.writers[-1].write(packet)

    def has(self, count: int) -> bool:
        """Whether at least as many were published."""
        return len(self.published) >= count

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        self.tasks.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, body = await _packet(reader)
                self._react(kind, body)
        writer.close()

    def _react(self, kind: int, body: bytes) -> None:
        if kind & 0xF0 == CONNECT and self.greets:
            self.say(_packed(0x20, self.connack))
        elif kind & 0xF0 == PINGREQ and self.answers_pings:
            self.say(b"\xd0\x00")
        elif kind & 0xF0 == PUBREL:
            self.released.append(body[:2])
            self.say(_packed(0x70, body[:2]))
        elif kind & 0xF0 == PUBLISH:
            self.published.append(body)
            self._acknowledge(kind >> 1 & 3, body)

    def _acknowledge(self, qos: int, body: bytes) -> None:
        said = self.answer(self, len(self.published) - 1)
        if said is not None:
            self.say(_packed(_ACKS[qos][0], mid_of(body) + said))


def mid_of(body: bytes) -> bytes:
    """The packet identifier of a PUBLISH, which follows its topic."""
    length = int.from_bytes(body[:2])
    return body[2 + length : 4 + length]


@asynccontextmanager
async def scripted(answer: Answer, *, connack: bytes = b"\x00\x00\x00") -> AsyncIterator[ScriptedBroker]:
    """One that answers until the block ends."""
    broker = ScriptedBroker(answer, connack=connack)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        for writer in broker.writers:
            writer.transport.abort()
        await asyncio.gather(*(task for task in broker.tasks if task is not None))


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    kind = (await reader.readexactly(1))[0]
    count, shift = 0, 0
    while True:
        digit = (await reader.readexactly(1))[0]
        count |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            return kind, await reader.readexactly(count)


def _packed(kind: int, body: Sequence[int] | bytes) -> bytes:
    return bytes((kind, len(body))) + bytes(body)
