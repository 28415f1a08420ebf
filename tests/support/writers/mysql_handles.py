"""The drivers of MariaDB and MySQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomysql
import asyncmy
import pymysql

from tests.support.mariadb_server import options
from tests.support.writers.handles import is_counted
from tests.support.writers.places import MariadbPlace, Place
from tests.support.writers.raw_handles import AsyncRaw, SyncRaw


class PymysqlHandle(SyncRaw):
    async def open(self, place: Place) -> None:
        assert isinstance(place, MariadbPlace)
        self.place = place
        self.tx = pymysql.connect(**options(place.url))

    def run(self, sql: str) -> Any:
        return self.tx.query(sql)

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        seen: list[str] = []
        query = self.tx.query

        def record(sql: str, *more: Any, **options: Any) -> Any:
            seen.extend([sql] if is_counted(sql) else [])
            return query(sql, *more, **options)

        self.tx.query = record
        yield seen
        del self.tx.query


class _Async(AsyncRaw):
    """asyncmy and aiomysql are spelled alike."""

    async def open(self, place: Place) -> None:
        assert isinstance(place, MariadbPlace)
        self.place = place
        await self._open(options(place.url))

    async def _open(self, options: dict[str, Any]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self.tx.ensure_closed()

    async def run(self, sql: str) -> Any:
        return await self.tx.query(sql)

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        seen: list[str] = []
        query = self.tx.query

        async def record(sql: str, *more: Any, **options: Any) -> Any:
            seen.extend([sql] if is_counted(sql) else [])
            return await query(sql, *more, **options)

        self.tx.query = record
        yield seen
        del self.tx.query


class AsyncmyHandle(_Async):
    async def _open(self, options: dict[str, Any]) -> None:
        self.tx = await asyncmy.connect(**options)


class AiomysqlHandle(_Async):
    async def _open(self, options: dict[str, Any]) -> None:
        self.tx = await aiomysql.connect(**_aiomysql(options))


class _Pooled(_Async):
    """A connection that a pool lends."""

    _pool: Any

    async def close(self) -> None:
        released = self._pool.release(self.tx)
        if released is not None:
            await released
        self._pool.close()
        await self._pool.wait_closed()


class AsyncmyPoolHandle(_Pooled):
    async def _open(self, options: dict[str, Any]) -> None:
        self._pool = await asyncmy.create_pool(minsize=1, maxsize=1, **options)
        self.tx = await self._pool.acquire()


class AiomysqlPoolHandle(_Pooled):
    async def _open(self, options: dict[str, Any]) -> None:
        self._pool = await aiomysql.create_pool(minsize=1, maxsize=1, **_aiomysql(options))
        self.tx = await self._pool.acquire()


def _aiomysql(options: dict[str, Any]) -> dict[str, Any]:
    """It calls the database by a name of its own."""
    return {"db" if name == "database" else name: value for name, value in options.items()}
