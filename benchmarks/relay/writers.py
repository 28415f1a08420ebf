"""Writers in a process of their own, so that they share only the server with the relay."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final

import asyncpg

from benchmarks.database import KEYS, PAYLOAD, URL, insert
from pillarbox.message import Names, compute_partition, new_message_id

__all__ = ["WriteCounter", "run_writers"]

_ONE: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  source, correlation_id, event_time)
    values ($1, 'default', $2, 'event', 'orders.placed', 'orders', $3, $4, 'application/json', '/shop', 'c', now())"""


class WriteCounter:
    """Counts the committed messages."""

    def __init__(self, count: Synchronized[int]) -> None:
        self._count = count

    @property
    def messages(self) -> int:
        return self._count.value

    async def per_second(self, seconds: float) -> float:
        """Return their throughput over the next seconds."""
        before, began = self.messages, time.perf_counter()
        await asyncio.sleep(seconds)
        return (self.messages - before) / (time.perf_counter() - began)


@asynccontextmanager
async def run_writers(
    names: Names, *, writers: int, per_transaction: int = 1, per_second: float | None = None
) -> AsyncIterator[WriteCounter]:
    """Run writers while the block runs: as fast as they can, or at so many messages a second together."""
    spawn = multiprocessing.get_context("spawn")
    count, stop = spawn.Value("q", 0), spawn.Event()
    arguments = (names.schema, writers, per_transaction, per_second, count, stop)
    process = spawn.Process(target=_process, args=arguments, daemon=True)
    process.start()
    try:
        while not count.value and process.is_alive():
            await asyncio.sleep(0.01)
        yield WriteCounter(count)
    finally:
        stop.set()
        await asyncio.to_thread(process.join, 30)
        assert process.exitcode == 0, "The writers' process did not end well."


def _process(
    schema: str, writers: int, per_transaction: int, per_second: float | None, count: Synchronized[int], stop: Event
) -> None:
    async def together() -> None:
        pace = None if per_second is None else per_second / writers
        await asyncio.gather(*(_writer(Names(schema), n, per_transaction, pace, count, stop) for n in range(writers)))

    asyncio.run(together())


async def _writer(
    names: Names, number: int, per_transaction: int, pace: float | None, count: Synchronized[int], stop: Event
) -> None:
    """Write one transaction after the other on one connection; with a pace, as many as are due."""
    connection = await asyncpg.connect(URL)
    statement, started, written = names.qualify(_ONE), time.perf_counter(), 0
    while not stop.is_set():
        if per_transaction > 1:
            await insert(connection, names, messages=per_transaction)
        else:
            message_id, key = new_message_id(), f"key-{(written * 17 + number) % KEYS}"
            await connection.execute(statement, message_id, compute_partition(key, message_id), key, PAYLOAD)
        written += per_transaction
        with count.get_lock():
            count.value += per_transaction
        if pace is not None:
            await asyncio.sleep(max(0.0, started + written / pace - time.perf_counter()))
    await connection.close()
