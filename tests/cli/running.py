"""A `pillarbox relay` that runs beside the test, over an SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from pillarbox import Outbox
from pillarbox.names import Names
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url
from tests.cli.program import PROGRAM, environment

__all__ = ["RunningRelay", "Shop", "running_relay"]


class Shop:
    """An SQLite file with our tables, and what is in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "shop.db"
        self.url = "sqlite:///shop.db"

    async def install(self) -> None:
        await schema_at(store_url(f"sqlite:///{self.file}"), names=Names()).install()

    def publish(self, count: int, *, to: str = "hooks", keys: int = 4) -> None:
        outbox = Outbox(routes=to, source="/shop")
        with self.connected() as tx:
            for number in range(count):
                outbox.publish(tx, {"n": number}, type="orders.placed", key=f"k{number % keys}")

    @contextlib.contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            yield connection

    def rows(self, sql: str) -> Sequence[Any]:
        with self.connected() as connection:
            return connection.execute(sql).fetchall()

    def number(self, sql: str) -> int:
        ((number,),) = self.rows(f"select count(*) from {sql}")
        return int(number)


class RunningRelay:
    """The process, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until_it_says(self, text: str) -> str:
        """The first line with that text; earlier ones are in `said`."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stderr.readline()).decode():
                self.said.append(line)
                if text in line:
                    return line
        raise AssertionError(f"it ended without saying {text!r}: {self.said}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            self.said += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()


@contextlib.asynccontextmanager
async def running_relay(shop: Shop, *arguments: str, **extra: str) -> AsyncIterator[RunningRelay]:
    """Runs in the shop's folder; killed at the end of the block if it is still there."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "relay", "--store", shop.url, *arguments,
        cwd=shop.folder, env=environment(extra), stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield RunningRelay(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
