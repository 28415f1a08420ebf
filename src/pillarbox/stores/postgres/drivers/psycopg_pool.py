"""A few connections of psycopg that are lent, without its pool package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pillarbox.stores.postgres.drivers.psycopg_connection import PsycopgConnection

__all__ = ["PsycopgPool"]


class PsycopgPool:
    """`Pool`: a place for each connection. One that was lost leaves its place empty, and who needs it connects."""

    def __init__(self, connect: Callable[[], Awaitable[PsycopgConnection]], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._places: asyncio.LifoQueue[PsycopgConnection | None] = asyncio.LifoQueue()

    async def fill(self) -> None:
        """Connect them all, or none."""
        try:
            for _ in range(self._size):
                self._places.put_nowait(await self._connect())
        except BaseException:
            while not self._places.empty():
                await _let_go(self._places.get_nowait())
            raise

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[PsycopgConnection]:
        async with asyncio.timeout(timeout):
            connection = await self._usable(await self._places.get())
        try:
            yield connection
        finally:
            self._places.put_nowait(connection)

    async def _usable(self, connection: PsycopgConnection | None) -> PsycopgConnection:
        if connection is not None and connection.is_idle() and connection.is_quiet():
            return connection
        try:
            await _let_go(connection)
            return await self._connect()
        except BaseException:
            self._places.put_nowait(None)
            raise

    async def close(self) -> None:
        for _ in range(self._size):
            await _let_go(await self._places.get())


async def _let_go(connection: PsycopgConnection | None) -> None:
    if connection is not None:
        await connection.close()
