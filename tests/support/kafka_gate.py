"""A gate before the mock cluster that knows its visitors by their `client.id`: one of them can die alone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from pillarbox.testing.fault_proxy import close_gracefully
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_door import frame, framed

__all__ = ["Gate", "gated"]

_HOST: Final = "127.0.0.1"


class Gate:
    """Forwards whole requests and answers, both ways, unless it is told not to."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._dead: set[str] = set()
        self._held: set[str] = set()
        self._moves = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._writers: dict[asyncio.StreamWriter, str] = {}
        """Of the visitors, and who each is."""
        self.port = 0
        self.asked: list[tuple[str, int]] = []
        """Who asked, and the number of the request, in order."""

    @property
    def url(self) -> str:
        return f"kafka://{_HOST}:{self.port}"

    async def up(self) -> None:
        """Let visitors in, at the same port as before."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, _HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]
            self._cluster.advertise(_HOST, self.port)

    async def down(self) -> None:
        """Throw everybody out, and let nobody in."""
        server, self._server = self._server, None
        if server is not None:
            await close_gracefully(server)
        for writer in self._writers:
            writer.transport.abort()

    def kill(self, client_id: str) -> None:
        """Nothing comes from this visitor any more."""
        self._dead.add(client_id)
        for writer, who in self._writers.items():
            if who == client_id:
                writer.transport.abort()

    def hold(self, client_id: str) -> None:
        """What comes from this visitor waits, and it is not told."""
        self._held.add(client_id)
        self._moves.clear()

    def release(self, client_id: str) -> None:
        """It goes on."""
        self._held.discard(client_id)
        self._moves.set()

    async def close(self) -> None:
        await self.down()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        for writer in self._writers:  # one whose visit ended before it began is still open
            writer.transport.abort()
        await asyncio.sleep(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.transport.abort()
            return
        self._writers[writer] = ""
        visit = asyncio.create_task(self._visit(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                far_reader, far_writer = await asyncio.open_connection(self._cluster.host, self._cluster.port)
                ends.append(far_writer)
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._requests(reader, writer, far_writer))
                    ways.create_task(_answers(far_reader, writer))
        finally:
            del self._writers[writer]
            for end in ends:
                end.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far_writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while self._server is not None:
                request = await frame(reader)
                self._writers[writer] = who = _client_id(request)
                self.asked.append((who, struct.unpack_from(">h", request)[0]))
                while who in self._held:
                    await self._moves.wait()
                if who in self._dead:
                    break
                far_writer.write(framed(request))
        far_writer.transport.abort()
        writer.transport.abort()


async def _answers(far_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await far_reader.read(65_536):
            writer.write(chunk)
    writer.transport.abort()


def _client_id(request: bytes) -> str:
    """The header of any request: number, version, correlation, and who asks."""
    (size,) = struct.unpack_from(">h", request, 8)
    return request[10 : 10 + max(size, 0)].decode()


@asynccontextmanager
async def gated(cluster: KafkaCluster) -> AsyncIterator[Gate]:
    """The gate, up, for as long as the block runs."""
    gate = Gate(cluster)
    await gate.up()
    try:
        yield gate
    finally:
        await gate.close()
