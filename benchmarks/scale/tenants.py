"""Relays over 200 stores of which one is hostile."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from hashlib import md5
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from benchmarks.comparison import at_least, report, run_pairs
from benchmarks.database import PAYLOAD, URL, Admin, insert
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.message import Message, Names
from pillarbox.relay.relay import Destination
from pillarbox.relay.relays import Relays
from pillarbox.relay.settings import DestinationSettings, SharingSettings
from pillarbox.stores.factory import open_schema
from pillarbox.telemetry import Telemetry

__all__ = ["tenants"]

_SCHEMAS: Final = 100
_FILES: Final = 100
_MESSAGES: Final = 100
"""Messages of each store that behaves."""
_FLOOD: Final = 100_000
_POISONED: Final = 50
"""One in so many messages of the hostile store is refused by the destination."""
_HOSTILE: Final = "t0"
_RUNS: Final = 3
_DATABASE: Final = "pillarbox_bench_tenants"
_PATIENCE: Final = 120.0
_INSERT_FILE: Final = """
    insert into pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload, content_type,
                                  headers, source, correlation_id, event_time, created_at)
    values (?, 'default', ?, 'event', 'orders.placed', 'orders', ?, ?, 'application/json', '{}', '/shop', 'c', ?, ?)"""


class GatedTransport:
    """Acknowledges once its gate is open, refuses what is poisoned, and counts what the other stores have sent."""

    features: Final = TransportFeatures(name="gated")

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.expected = 0
        self.arrived = 0
        self.hostile = 0
        self.done = asyncio.Event()

    def begin(self, expected: int) -> None:
        self.gate.clear()
        self.done.clear()
        self.expected, self.arrived, self.hostile = expected, 0, 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        await self.gate.wait()
        outcomes = []
        for message in messages:
            key = message.key or ""
            if key.startswith("hostile"):
                self.hostile += 1
                poisoned = int(key.rpartition("-")[2]) % _POISONED == 0
                outcomes.append(Outcome(False, "poisoned", rejected=True) if poisoned else Outcome(True))
            else:
                self.arrived += 1
                outcomes.append(Outcome(True))
        if self.arrived >= self.expected:
            self.done.set()
        return outcomes


async def tenants() -> None:
    """`scale.tenants`: 199 stores with 100 messages each, beside one with a flood of 100,000, against it idle."""
    transport = GatedTransport()
    async with _create_stores() as (admin, stores, files):
        relays = Relays(
            stores,
            [Destination(lambda: transport, DestinationSettings(name="default", send_timeout=timedelta(minutes=5)))],
            telemetry=lambda _: Telemetry(),
        )
        peaks = {"connections": 0, "memory_mb": 0}
        async with relays:
            await _wait_for_start(relays)
            watching = asyncio.create_task(_watch(admin, peaks))
            pairs = await run_pairs(
                "scale.tenants",
                ours=lambda: _measure(admin, files, transport, relays, flood=_FLOOD),
                bare=lambda: _measure(admin, files, transport, relays, flood=0),
                runs=_RUNS,
            )
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    report(
        "scale.tenants",
        pairs,
        target=at_least(0.9),
        settings={
            "runs": _RUNS,
            "stores": f"{_SCHEMAS} postgresql schemas, {_FILES} sqlite files",
            "messages": _MESSAGES,
            "flood": _FLOOD,
            "store_connections": SharingSettings().store_connections,
        }
        | peaks,
    )


async def _wait_for_start(relays: Relays) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not relays.stores or any(one.state != "running" for one in relays.stores):
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)  # lanes are taken, and the first rounds are over


async def _measure(
    admin: Admin, files: Sequence[Path], transport: GatedTransport, relays: Relays, *, flood: int
) -> float:
    """Return the rate of the stores that behave. All messages are there before the first is acknowledged."""
    hostile = Names(_HOSTILE)
    await admin.execute(hostile.qualify("truncate pillarbox_outbox, pillarbox_history, pillarbox_claim"))
    await asyncio.sleep(2)
    transport.begin(_MESSAGES * (_SCHEMAS - 1 + _FILES))
    if flood:
        await insert(admin, hostile, messages=flood, key="'hostile-' || i % 5000")
    for number in range(1, _SCHEMAS):
        await insert(admin, Names(f"t{number}"), messages=_MESSAGES, key=f"'t{number}-' || i")
    for path in files:
        await asyncio.to_thread(_fill_file, path)
    await asyncio.sleep(1)
    started = time.perf_counter()
    transport.gate.set()
    async with asyncio.timeout(_PATIENCE):
        await transport.done.wait()
    return transport.expected / (time.perf_counter() - started)


def _fill_file(path: Path) -> None:
    now = int(time.time() * 1_000_000)
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        rows = []
        for number in range(_MESSAGES):
            key = f"{path.stem}-{number}"
            partition = md5(key.encode(), usedforsecurity=False).digest()[0] & 63
            rows.append((str(uuid4()), partition, key, PAYLOAD, now, now))
        connection.executemany(_INSERT_FILE, rows)


_COUNT: Final = "select count(*) - 2 from pg_stat_activity where datname = current_database()"
"""Connections of relays. Those of the benchmark itself are two: the one that fills, and the one that counts."""


def _read_memory() -> int:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


async def _watch(admin: Admin, peaks: dict[str, int]) -> None:
    """Note the most connections that the server has from relays, and the most memory of this process."""
    watcher: Any = await asyncpg.connect(_to_url(_DATABASE))
    try:
        while True:
            count = await watcher.fetchval(_COUNT)
            peaks["connections"] = max(peaks["connections"], count)
            peaks["memory_mb"] = max(peaks["memory_mb"], _read_memory())
            await asyncio.sleep(0.5)
    finally:
        await watcher.close()


@asynccontextmanager
async def _create_stores() -> AsyncIterator[tuple[Admin, dict[str, str], list[Path]]]:
    server: Any = await asyncpg.connect(URL)
    try:
        await server.execute(f"drop database if exists {_DATABASE} with (force)")
        await server.execute(f"create database {_DATABASE}")
        with TemporaryDirectory() as folder:
            admin: Any = await asyncpg.connect(_to_url(_DATABASE))
            stores = {f"t{number}": f"{_to_url(_DATABASE)}?schema=t{number}" for number in range(_SCHEMAS)}
            slots = asyncio.Semaphore(4)
            await asyncio.gather(*(_install(url, slots) for url in stores.values()))
            template = Path(folder, "f0.db")
            await open_schema(f"sqlite:///{template}").install()
            files = [Path(folder, f"f{number}.db") for number in range(_FILES)]
            for path in files[1:]:
                shutil.copy(template, path)
            stores |= {path.stem: f"sqlite:///{path}" for path in files}
            try:
                yield admin, stores, files
            finally:
                await admin.close()
    finally:
        await server.execute(f"drop database if exists {_DATABASE} with (force)")
        await server.close()


async def _install(url: str, slots: asyncio.Semaphore) -> None:
    async with slots:
        await open_schema(url).install()


def _to_url(database: str) -> str:
    return urlunsplit(urlsplit(URL)._replace(path=f"/{database}"))
