"""What the mock cluster lacks of a controller: creating topics, and telling how they are set. A proxy that answers
these itself, by the protocol, and forwards everything else."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_door import frame, framed

__all__ = ["Controller", "Created", "controlled"]

_API_VERSIONS: Final = 18
_CREATE_TOPICS: Final = 19
_DESCRIBE_CONFIGS: Final = 32
_OWN: Final = struct.pack(">hhhhhh", _CREATE_TOPICS, 0, 2, _DESCRIBE_CONFIGS, 0, 1)
_REFUSED: Final = 29
_TOPIC: Final = 2


class Created(NamedTuple):
    """A topic as it was asked for."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str]


class Controller:
    """Creates topics in the cluster, unless it is told to answer with an error, and shows settings, if it has any."""

    def __init__(self, cluster: KafkaCluster, *, settings: Mapping[str, str] | None, error: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._error = error
        self.url = ""
        self.created: list[Created] = []

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._cluster.host, self._cluster.port)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    request = await frame(reader)
                    answer = self._answer(request)
                    if answer is None:
                        far_writer.write(framed(request))
                        answer = self._with_own(request, await frame(far_reader))
                    writer.write(framed(answer))
        finally:
            for end in (writer, far_writer):
                end.transport.abort()

    def _answer(self, request: bytes) -> bytes | None:
        fields = _Fields(request)
        api, _, correlation = fields.number("h"), fields.number("h"), fields.number("i")
        fields.text()
        if api == _CREATE_TOPICS:
            return struct.pack(">ii", correlation, 0) + self._create(fields)
        if api == _DESCRIBE_CONFIGS:
            return struct.pack(">ii", correlation, 0) + self._describe(fields)
        return None

    def _with_own(self, request: bytes, answer: bytes) -> bytes:
        api, version = struct.unpack_from(">hh", request)
        if api != _API_VERSIONS or version:
            return answer
        correlation, error, count = struct.unpack_from(">ihi", answer)
        return struct.pack(">ihi", correlation, error, count + 2) + answer[10:] + _OWN

    def _create(self, fields: _Fields) -> bytes:
        topics = [self._wanted(fields) for _ in range(fields.number("i"))]
        for topic in topics if not self._error else ():
            self.created.append(topic)
            self._cluster.create(topic.name, partitions=topic.partitions)
        results = [_text(topic.name) + struct.pack(">hh", self._error, -1) for topic in topics]
        return struct.pack(">i", len(results)) + b"".join(results)

    def _wanted(self, fields: _Fields) -> Created:
        name, partitions, replication = fields.text(), fields.number("i"), fields.number("h")
        assert not fields.number("i"), "no assignment of replicas is expected"
        config = {fields.text(): fields.text() for _ in range(fields.number("i"))}
        return Created(name, partitions, replication, config)

    def _describe(self, fields: _Fields) -> bytes:
        assert fields.number("i") == 1
        kind, name = fields.number("b"), fields.text()
        shown = self._settings if kind == _TOPIC else {"auto.create.topics.enable": "true"}
        if self._settings is None or shown is None:
            return struct.pack(">ihhb", 1, _REFUSED, -1, kind) + _text(name) + struct.pack(">i", 0)
        entries = [_text(key) + _text(value) + struct.pack(">?b?i", False, 1, False, 0) for key, value in shown.items()]
        return struct.pack(">ihhb", 1, 0, -1, kind) + _text(name) + struct.pack(">i", len(entries)) + b"".join(entries)


class _Fields:
    """Reads a request, field by field."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, format: str) -> int:
        (value,) = struct.unpack_from(f">{format}", self._content, self._at)
        self._at += struct.calcsize(f">{format}")
        return int(value)

    def text(self) -> str:
        length = max(self.number("h"), 0)
        self._at += length
        return self._content[self._at - length : self._at].decode()


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


@asynccontextmanager
async def controlled(
    cluster: KafkaCluster, *, settings: Mapping[str, str] | None = None, error: int = 0
) -> AsyncIterator[Controller]:
    """The cluster with a controller before it. `settings`: what every topic has; None: they are not shown."""
    controller = Controller(cluster, settings=settings, error=error)
    visits: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.create_task(controller.visit(reader, writer))
        writers.append(writer)
        visits.add(visit)
        visit.add_done_callback(visits.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    cluster.advertise("127.0.0.1", port)
    controller.url = f"kafka://127.0.0.1:{port}"
    try:
        yield controller
    finally:
        server.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        for writer in writers:  # one whose visit ended before it began is still open
            writer.transport.abort()
        await asyncio.sleep(0)
