"""A process that is killed between the message and its commit. Says how far it came, then waits to die."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import Literal

from tests.support.writers.handles import insert
from tests.support.writers.kinds import KINDS
from tests.support.writers.places import Place, batch

Point = Literal["given", "written", "committed"]


def run(kind: str, place: Place, point: Point, parent: Connection) -> None:
    asyncio.run(_run(kind, place, point, parent))


async def _run(kind: str, place: Place, point: Point, parent: Connection) -> None:
    handle = KINDS[kind][1]()
    await handle.open(place)
    await handle.begin()
    await handle.order(1)
    await insert(handle, batch(place, "a", "b"))
    if point == "written":
        await handle.flush_written()
    if point == "committed":
        await handle.commit()
    parent.send(point)
    parent.recv()
