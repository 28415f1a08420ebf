"""A gate before the mock cluster that checks the sequence numbers of producers, as brokers of Apache Kafka do.

The mock cluster takes every record batch. A broker takes one only if it follows on the last one of its producer in the
partition; and of a producer that has nothing in the partition it takes any.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from pillarbox.testing.fault_proxy import close_gracefully
from tests.support.kafka_cluster import PRODUCE, KafkaCluster
from tests.support.kafka_door import frame, framed

__all__ = ["Batch", "SequenceGate", "sequence_gate"]

_HOST: Final = "127.0.0.1"
_OUT_OF_ORDER: Final = 45
_FLEXIBLE: Final = 9
"""The version of a produce request from which lengths are varints."""


class Batch(msgspec.Struct, frozen=True):
    """One record batch of a produce request."""

    topic: str
    partition: int
    producer: int
    epoch: int
    sequence: int
    count: int


class SequenceGate:
    """Forwards one request at a time per connection, as a broker handles them."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._last: dict[tuple[str, int, int], tuple[int, int]] = {}
        """Epoch and last sequence number, by topic, partition and producer."""
        self._visits: set[asyncio.Task[None]] = set()
        self.port = 0
        self.refused: list[Batch] = []
        """What did not follow on what was there."""
        self.answer_batch: Callable[[Batch], int] = lambda _: 0
        """Returns the error with which a batch is refused before it reaches the cluster; 0 for none."""

    @property
    def url(self) -> str:
        return f"kafka://{_HOST}:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.create_task(self._visit(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def close(self) -> None:
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                far_reader, far_writer = await asyncio.open_connection(self._cluster.host, self._cluster.port)
                ends.append(far_writer)
                while True:
                    request = await frame(reader)
                    writer.write(framed(await self._answer(request, far_reader, far_writer)))
        finally:
            for end in ends:
                end.transport.abort()

    async def _answer(
        self, request: bytes, far_reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter
    ) -> bytes:
        kind, version, correlation = struct.unpack_from(">hhi", request)
        batch = _parse_batch(request, version) if kind == PRODUCE else None
        if batch is not None:
            error = self.answer_batch(batch) or self._check(batch)
            if error:
                return _build_refusal(batch, error, version=version, correlation=correlation)
        far_writer.write(framed(request))
        answer = await frame(far_reader)
        if batch is not None and _parse_error(answer, version) == 0:
            place = (batch.topic, batch.partition, batch.producer)
            self._last[place] = (batch.epoch, batch.sequence + batch.count - 1)
        return answer

    def _check(self, batch: Batch) -> int:
        known = self._last.get((batch.topic, batch.partition, batch.producer))
        if known is None or batch.sequence == (known[1] + 1 if known[0] == batch.epoch else 0):
            return 0
        self.refused.append(batch)
        return _OUT_OF_ORDER


@asynccontextmanager
async def sequence_gate(cluster: KafkaCluster) -> AsyncIterator[SequenceGate]:
    """The gate, for as long as the block runs. Clients are told to come to it."""
    gate = SequenceGate(cluster)
    server = await asyncio.start_server(gate.accept, _HOST, 0)
    gate.port = server.sockets[0].getsockname()[1]
    cluster.advertise(_HOST, gate.port)
    try:
        yield gate
    finally:
        cluster.advertise(cluster.host, cluster.port)
        await close_gracefully(server)
        await gate.close()


class _Cursor:
    """Reads the fields of a request."""

    def __init__(self, data: bytes, *, is_flexible: bool) -> None:
        self._data = data
        self._is_flexible = is_flexible
        self.at = 0

    def number(self, format_: str) -> int:
        (value,) = struct.unpack_from(f">{format_}", self._data, self.at)
        self.at += struct.calcsize(f">{format_}")
        assert isinstance(value, int)
        return value

    def length(self, format_: str) -> int:
        """The length of a text, an array or bytes; -1 for none."""
        return self._varint() - 1 if self._is_flexible else self.number(format_)

    def text(self) -> str:
        size = self.length("h")
        self.at += max(size, 0)
        return self._data[self.at - size : self.at].decode() if size > 0 else ""

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


def _parse_batch(request: bytes, version: int) -> Batch:
    """Return the batch of a produce request. librdkafka puts one into each."""
    is_flexible = version >= _FLEXIBLE
    cursor = _Cursor(request, is_flexible=is_flexible)
    cursor.at = 8
    client = cursor.number("h")
    cursor.at += max(client, 0) + is_flexible  # its tags
    cursor.text()  # transactional id
    cursor.number("h"), cursor.number("i")  # acks, timeout
    assert cursor.length("i") == 1
    topic = cursor.text()
    assert cursor.length("i") == 1
    partition = cursor.number("i")
    cursor.length("i")
    producer, epoch, sequence, count = struct.unpack_from(">qhii", request, cursor.at + 43)
    return Batch(topic, partition, producer, epoch, sequence, count)


def _parse_error(answer: bytes, version: int) -> int:
    is_flexible = version >= _FLEXIBLE
    cursor = _Cursor(answer, is_flexible=is_flexible)
    cursor.at = 4 + is_flexible
    cursor.length("i")
    cursor.text()
    cursor.length("i")
    cursor.number("i")
    return cursor.number("h")


def _build_refusal(batch: Batch, error: int, *, version: int, correlation: int) -> bytes:
    name = batch.topic.encode()
    is_flexible = version >= _FLEXIBLE
    one = b"\x02" if is_flexible else struct.pack(">i", 1)
    topic = bytes([len(name) + 1]) + name if is_flexible else struct.pack(">h", len(name)) + name
    partition = struct.pack(">ihqq", batch.partition, error, -1, -1)
    if version >= 5:
        partition += struct.pack(">q", -1)
    if version >= 8:
        partition += b"\x01\x00" if is_flexible else struct.pack(">ih", 0, -1)
    tags = b"\x00" if is_flexible else b""
    throttle = struct.pack(">i", 0)
    return struct.pack(">i", correlation) + tags + one + topic + one + partition + tags + tags + throttle + tags
