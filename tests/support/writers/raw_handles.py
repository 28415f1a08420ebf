"""The drivers themselves."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiosqlite
import asyncpg
import psycopg

from tests.support.writers.handles import Undo, is_counted
from tests.support.writers.places import Place, PostgresPlace, SqlitePlace


class _Raw:
    """A driver whose connection is the handle."""

    tx: Any
    place: Any

    async def begin(self) -> None: ...

    async def flush_written(self) -> None: ...


class SyncRaw(_Raw):
    """One that takes a text."""

    def run(self, sql: str) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        self.tx.close()

    async def commit(self) -> None:
        self.tx.commit()

    async def rollback(self) -> None:
        self.tx.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        self.run("savepoint here")
        try:
            yield
        except Undo:
            self.run("rollback to here")
        self.run("release savepoint here")

    async def order(self, number: int) -> None:
        self.run(f"insert into orders (id) values ({number})")


class AsyncRaw(_Raw):
    """One that takes a text and is awaited."""

    async def run(self, sql: str) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        await self.tx.close()

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        await self.run("savepoint here")
        try:
            yield
        except Undo:
            await self.run("rollback to here")
        await self.run("release savepoint here")

    async def order(self, number: int) -> None:
        await self.run(f"insert into orders (id) values ({number})")


class Sqlite3Handle(SyncRaw):
    place: SqlitePlace

    async def open(self, place: Place) -> None:
        assert isinstance(place, SqlitePlace)
        self.place = place
        self.tx = sqlite3.connect(place.path)

    def run(self, sql: str) -> Any:
        return self.tx.execute(sql)

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        seen: list[str] = []
        self.tx.set_trace_callback(lambda sql: _note_statement(sql, seen))
        yield seen
        self.tx.set_trace_callback(None)


def _note_statement(sql: str, seen: list[str]) -> None:
    """Note a statement once. SQLite reports it again for each row that its trigger looks at."""
    if is_counted(sql) and sql not in seen[-1:]:
        seen.append(sql)


class AiosqliteHandle(AsyncRaw):
    place: SqlitePlace

    async def open(self, place: Place) -> None:
        assert isinstance(place, SqlitePlace)
        self.place = place
        self.tx = await aiosqlite.connect(place.path)

    async def run(self, sql: str) -> Any:
        return await self.tx.execute(sql)

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        seen: list[str] = []
        await self.tx.set_trace_callback(lambda sql: _note_statement(sql, seen))
        yield seen
        await self.tx.set_trace_callback(None)


class PsycopgHandle(_Raw):
    place: PostgresPlace

    async def open(self, place: Place) -> None:
        assert isinstance(place, PostgresPlace)
        self.place = place
        self.tx = psycopg.connect(place.url)

    async def close(self) -> None:
        self.tx.close()

    async def commit(self) -> None:
        self.tx.commit()

    async def rollback(self) -> None:
        self.tx.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        try:
            with self.tx.transaction():
                yield
        except Undo:
            pass

    async def order(self, number: int) -> None:
        self.tx.execute(f"insert into {self.place.orders} (id) values (%s)", (number,))

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        async with _trace(self.tx) as seen:
            yield seen


class AsyncPsycopgHandle(_Raw):
    place: PostgresPlace

    async def open(self, place: Place) -> None:
        assert isinstance(place, PostgresPlace)
        self.place = place
        self.tx = await psycopg.AsyncConnection.connect(place.url)

    async def close(self) -> None:
        await self.tx.close()

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        try:
            async with self.tx.transaction():
                yield
        except Undo:
            pass

    async def order(self, number: int) -> None:
        await self.tx.execute(f"insert into {self.place.orders} (id) values (%s)", (number,))

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        async with _trace(self.tx) as seen:
            yield seen


class AsyncpgHandle(_Raw):
    place: PostgresPlace
    _transaction: Any = None

    async def open(self, place: Place) -> None:
        assert isinstance(place, PostgresPlace)
        self.place = place
        self.tx = await asyncpg.connect(place.url)

    async def close(self) -> None:
        await self.tx.close()

    async def begin(self) -> None:
        self._transaction = self.tx.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        try:
            async with self.tx.transaction():
                yield
        except Undo:
            pass

    async def order(self, number: int) -> None:
        await self.tx.execute(f"insert into {self.place.orders} (id) values ($1)", number)

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[list[str]]:
        seen: list[str] = []
        connection = getattr(self.tx, "_con", self.tx)
        with connection.query_logger(lambda record: seen.append(record.query) if is_counted(record.query) else None):
            yield seen


class AsyncpgPoolHandle(AsyncpgHandle):
    """A connection that a pool lends."""

    async def open(self, place: Place) -> None:
        assert isinstance(place, PostgresPlace)
        self.place = place
        self._pool = await asyncpg.create_pool(place.url, min_size=1, max_size=1)
        self.tx = await self._pool.acquire()

    async def close(self) -> None:
        await self._pool.release(self.tx)
        await self._pool.close()


@asynccontextmanager
async def _trace(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> AsyncIterator[list[str]]:
    """What libpq itself says it sent: one Query, or one Execute, for each statement."""
    seen: list[str] = []
    with tempfile.TemporaryFile() as trace:
        connection.pgconn.trace(trace.fileno())
        yield seen
        connection.pgconn.untrace()
        trace.seek(0)
        lines = [line.split("\t") for line in trace.read().decode().splitlines()]
    parsed = [parts for parts in lines if parts[1] == "F" and parts[3] in {"Query", "Parse", "Bind"}]
    statements = [parts[4].split('"')[-2] if parts[3] != "Bind" else "" for parts in parsed]
    seen += [sql for sql in statements if sql and is_counted(sql)]
