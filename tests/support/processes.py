"""Ends programs that a test started."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

__all__ = ["end_process"]

_PATIENCE: Final = 60.0


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill the process if it runs, and wait until it and its pipes are closed.

    `Process.wait` returns while a pipe still has output to read. The transport of such a pipe outlives the loop, and
    its warning fails whichever test runs when it is collected.
    """
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    async with asyncio.timeout(_PATIENCE):
        await process.communicate()
