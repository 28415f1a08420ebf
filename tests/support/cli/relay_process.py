"""A `pillarbox relay` that runs beside the test."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from tests.support.cli.program import PROGRAM, environment
from tests.support.processes import end_process

__all__ = ["RelayProcess", "ShopFolder", "start_relay"]


class ShopFolder(Protocol):
    """The folder that a relay runs in, and its store."""

    folder: Path
    url: str


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
async def start_relay(shop: ShopFolder, *arguments: str, **extra: str) -> AsyncIterator[RelayProcess]:
    """Start a relay in the shop's folder; kill it at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "relay", "--store", shop.url, *arguments,
        cwd=shop.folder, env=environment(extra), stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield RelayProcess(process)
    finally:
        await end_process(process)
