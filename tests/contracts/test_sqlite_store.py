"""The SQLite store keeps the contract."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Store
from pillarbox.contracts.writer import Accept, Insert, Start
from pillarbox.message import Message, Names
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.testing.harness import HarnessTakeover, HarnessTransaction, StoreHarness
from pillarbox.testing.memory_harness import build_inbox_failure
from pillarbox.testing.store_contract import StoreContract
from pillarbox.writers.sqlite import SqliteWriter
from tests.support.spoiled_rows import SQLITE_FAULTS, SQLITE_REFUSED, combine, draw_for_sqlite, insert_into_sqlite
from tests.support.tables import SqliteTables


class _Transaction:
    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def insert(self, messages: Sequence[Message], *, delay: timedelta | None = None) -> None:
        batch = Insert(names=self._names, messages=messages, delay=delay)
        SqliteWriter(self._connection).insert(batch)

    async def commit(self) -> None:
        self._connection.execute("commit")

    async def rollback(self) -> None:
        self._connection.execute("rollback")


class _Takeover:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def wait_for(self, call: asyncio.Task[Any]) -> None:
        """SQLite does not tell who waits. A call that does not wait has ended by then, or is refused later."""
        await asyncio.wait({call}, timeout=0.2)

    async def commit(self) -> None:
        self._connection.execute("commit")


class SqliteHarness(StoreHarness):
    """A file with empty tables. The rows of an insert are stamped by SQLite, so the clock stands at the real time."""

    faults = tuple(SQLITE_FAULTS)
    refused_faults = tuple(SQLITE_REFUSED)

    def __init__(self, path: Path, *, prefix: str = "pillarbox_") -> None:
        self.clock = FrozenClock(datetime.now(UTC))
        self._path = path
        self._names = Names(prefix=prefix)
        self._opened: list[SqliteStore] = []

    async def start(self) -> None:
        self.store = await self.open_second()

    async def stop(self) -> None:
        for store in self._opened:
            await store.close()

    def open_transaction(self) -> AbstractAsyncContextManager[HarnessTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[HarnessTransaction]:
        with self._connected() as connection:
            connection.execute("begin immediate")
            yield _Transaction(connection, self._names)
            if connection.in_transaction:
                connection.execute("rollback")

    def open_takeover(
        self, relay_id: UUID, destination: str, partition: int
    ) -> AbstractAsyncContextManager[HarnessTakeover]:
        return self._takeover(relay_id, destination, partition)

    @asynccontextmanager
    async def _takeover(self, relay_id: UUID, destination: str, partition: int) -> AsyncIterator[HarnessTakeover]:
        with self._connected() as connection:
            connection.execute("begin immediate")
            connection.execute(
                f"update {self._names.table('lane')} set relay_id = ?, epoch = epoch + 1"
                " where destination = ? and partition = ?",
                (str(relay_id), destination, partition),
            )
            yield _Takeover(connection)
            if connection.in_transaction:
                connection.execute("rollback")

    def _connected(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, isolation_level=None))

    async def open_second(self) -> Store:
        return await self.open_with_keep("full")

    async def restart(self) -> Store:
        return await self.open_second()

    async def open_with_keep(self, keep: Literal["full", "no-payload", "off"]) -> Store:
        store = SqliteStore(self._path, prefix=self._names.prefix, clock=self.clock, keep=keep)
        self._opened.append(store)
        await store.open()
        return store

    async def accept(self, consumer: str, source: str, message_id: str) -> bool:
        accept = Accept(names=self._names, consumer=consumer, source=source, message_id=message_id)
        with self._connected() as connection:
            connection.execute("begin immediate")
            new = bool(SqliteWriter(connection).execute(accept))
            connection.execute("commit")
            return new

    async def insert_spoiled(self, message: Message, *faults: str) -> bool:
        with self._connected() as connection:
            return insert_into_sqlite(
                connection, self._names, message, combine({**SQLITE_FAULTS, **SQLITE_REFUSED}, faults)
            )

    async def insert_random(self, message: Message, dice: random.Random) -> bool:
        with self._connected() as connection:
            return insert_into_sqlite(connection, self._names, message, draw_for_sqlite(dice))

    async def fail_inbox(
        self, consumer: str, message_id: str, *, error: str = "ValueError: no", content: bytes | None
    ) -> None:
        with self._connected() as connection:
            connection.execute("begin immediate")
            SqliteWriter(connection).execute(build_inbox_failure(self._names, consumer, message_id, error, content))
            connection.execute("commit")

    async def start_inbox(self, consumer: str, message_id: str) -> int:
        with self._connected() as connection:
            connection.execute("begin immediate")
            start = Start(names=self._names, consumer=consumer, source="/shop", message_id=message_id)
            count = int(SqliteWriter(connection).execute(start))
            connection.execute("commit")
            return count

    async def leave_started(self, consumer: str, source: str, message_id: str) -> None:
        at = int(self.clock.now().timestamp() * 1_000_000)
        with self._connected() as connection:
            connection.execute(
                f"insert into {self._names.table('inbox')} (consumer, source, message_id, status, status_at)"
                " values (?, ?, ?, 'started', ?)",
                (consumer, source, message_id, at),
            )


class TestSqliteStore(StoreContract):
    """Under names of its own: a statement that forgot them would find no table."""

    @pytest.fixture
    async def harness(self, tmp_path: Path, sqlite_tables: SqliteTables) -> AsyncIterator[SqliteHarness]:
        sqlite_tables.install(tmp_path / "shop.db", prefix="shop_box_")
        harness = SqliteHarness(tmp_path / "shop.db", prefix="shop_box_")
        try:
            await harness.start()
            yield harness
        finally:
            await harness.stop()
