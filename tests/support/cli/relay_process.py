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
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.cli.program import PROGRAM, environment

__all__ = ["RelayProcess", "Shop", "start_relay"]


class Shop:
    """An SQLite file with our tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "shop.db"
        self.url = "sqlite:///shop.db"

    async def install(self) -> None:
        await open_schema(parse_store_url(f"sqlite:///{self.file}"), names=Names()).install()

    def publish(self, count: int, *, to: str = "hooks", keys: int = 4) -> None:
        outbox = Outbox(routes=to, source="/shop")
        with self.connect() as tx:
            for number in range(count):
                outbox.publish(tx, {"n": number}, type="orders.placed", key=f"k{number % keys}")

    @contextlib.contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            yield connection

    def rows(self, sql: str) -> Sequence[Any]:
        with self.connect() as connection:
            return connection.execute(sql).fetchall()

    def number(self, sql: str) -> int:
        ((number,),) = self.rows(f"select count(*) from {sql}")
        return int(number)


class RelayProcess:
    """A `pillarbox relay` process, and the lines of its stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def wait_for_line(self, text: str) -> str:
        """Return the first line with that text; earlier ones are in `lines`."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if text in line:
                    return line
        raise AssertionError(f"it ended without saying {text!r}: {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def wait_until_ended(self) -> int:
        """Wait until the process ends by itself; return its exit code."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            self.lines += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()


@contextlib.asynccontextmanager
async def start_relay(shop: Shop, *arguments: str, **extra: str) -> AsyncIterator[RelayProcess]:
    """Start a relay in the shop's folder; kill it at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "relay", "--store", shop.url, *arguments,
        cwd=shop.folder, env=environment(extra), stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield RelayProcess(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
