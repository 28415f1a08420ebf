"""The MariaDB store keeps the contract."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Store
from pillarbox.contracts.writer import Accept, InboxCommand, Insert, Start
from pillarbox.message import Message, Names
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.testing.harness import HarnessTakeover, HarnessTransaction, StoreHarness
from pillarbox.testing.memory_harness import build_inbox_failure
from pillarbox.testing.store_contract import StoreContract
from pillarbox.testing.store_contract.reading import (
    ByteLimitContract,
    LateRowsContract,
    ReadContract,
    SkippedKeysContract,
)
from pillarbox.writers.mysql import PymysqlWriter
from tests.support.mariadb_server import connected
from tests.support.spoiled_rows import (
    MARIADB_FAULTS,
    MARIADB_REFUSED,
    MariadbWriterRole,
    combine,
    draw_for_mariadb,
    insert_into_mariadb,
)
from tests.support.tables import MariadbTables

T = TypeVar("T")


class _Transaction:
    """In a thread: what waits for a lock must not keep the store from letting go of it."""

    def __init__(self, connection: Any, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def insert(self, messages: Sequence[Message], *, delay: timedelta | None = None) -> None:
        batch = Insert(names=self._names, messages=messages, delay=delay)
        await asyncio.to_thread(PymysqlWriter(self._connection).insert, batch)

    async def commit(self) -> None:
        await asyncio.to_thread(self._connection.commit)

    async def rollback(self) -> None:
        await asyncio.to_thread(self._connection.rollback)


class _Takeover:
    def __init__(self, connection: Any, url: str) -> None:
        self._connection = connection
        self._url = url

    async def wait_for(self, call: asyncio.Task[Any]) -> None:
        while not call.done() and not await asyncio.to_thread(self._is_waited_for):  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(0.15)  # asked more often than that, MariaDB repeats its last answer

    def _is_waited_for(self) -> bool:
        with closing(connected(self._url)) as observer, observer.cursor() as cursor:
            cursor.execute(
                "select count(*) from information_schema.innodb_trx as t"
                " join information_schema.processlist as p on p.id = t.trx_mysql_thread_id"
                " where t.trx_state = 'LOCK WAIT' and p.db = database()"
            )
            return bool(cursor.fetchone()[0])

    async def commit(self) -> None:
        await asyncio.to_thread(self._connection.commit)


class MariadbHarness(StoreHarness):
    """Uses empty tables. MariaDB stamps the rows of an insert, so the clock stands at the real time."""

    faults = tuple(MARIADB_FAULTS)
    refused_faults = tuple(MARIADB_REFUSED)

    def __init__(self, url: str, names: Names) -> None:
        self.clock = FrozenClock(datetime.now(UTC))
        self._url = url
        self._names = names
        self._opened: list[MariadbStore] = []
        self._role = MariadbWriterRole(names)
        self._writer: Any = None

    async def start(self) -> None:
        self.store = await self.open_second()

    async def stop(self) -> None:
        for store in self._opened:
            await store.close()
        if self._writer is not None:
            self._writer.close()
            await self._committed(lambda connection: self._role.drop(connection.cursor()))

    def open_transaction(self) -> AbstractAsyncContextManager[HarnessTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[HarnessTransaction]:
        with closing(connected(self._url)) as connection:
            connection.begin()
            yield _Transaction(connection, self._names)
            connection.rollback()

    def open_takeover(
        self, relay_id: UUID, destination: str, partition: int
    ) -> AbstractAsyncContextManager[HarnessTakeover]:
        return self._takeover(relay_id, destination, partition)

    @asynccontextmanager
    async def _takeover(self, relay_id: UUID, destination: str, partition: int) -> AsyncIterator[HarnessTakeover]:
        with closing(connected(self._url)) as connection, connection.cursor() as cursor:
            connection.begin()
            cursor.execute(
                f"update {self._names.table('lane', quote='`')} set relay_id = %s, epoch = epoch + 1"
                " where destination = %s and `partition` = %s",
                (str(relay_id), destination, partition),
            )
            yield _Takeover(connection, self._url)
            connection.rollback()

    async def open_second(self) -> Store:
        return await self.open_with_keep("full")

    async def restart(self) -> Store:
        return await self.open_second()

    async def open_with_keep(self, keep: Literal["full", "no-payload", "off"]) -> Store:
        store = MariadbStore(
            self._url,
            schema=self._names.schema,
            prefix=self._names.prefix,
            clock=self.clock,
            keep=keep,
            connections=2,
        )
        await store.open()
        self._opened.append(store)
        return store

    async def accept(self, consumer: str, source: str, message_id: str) -> bool:
        accept = Accept(names=self._names, consumer=consumer, source=source, message_id=message_id)
        return bool(await self._execute(accept))

    async def insert_spoiled(self, message: Message, *faults: str) -> bool:
        return await self._insert_by_writer(message, combine({**MARIADB_FAULTS, **MARIADB_REFUSED}, faults))

    async def insert_random(self, message: Message, dice: random.Random) -> bool:
        return await self._insert_by_writer(message, draw_for_mariadb(dice))

    async def _insert_by_writer(self, message: Message, fault: Mapping[str, str]) -> bool:
        if self._writer is None:
            await self._committed(lambda connection: self._role.create(connection.cursor()))
            self._writer = connected(self._role.url(self._url), autocommit=True)
        return insert_into_mariadb(self._writer.cursor(), self._names, message, fault)

    async def fail_inbox(
        self, consumer: str, message_id: str, *, error: str = "ValueError: no", content: bytes | None
    ) -> None:
        await self._execute(build_inbox_failure(self._names, consumer, message_id, error, content))

    async def start_inbox(self, consumer: str, message_id: str) -> int:
        start = Start(names=self._names, consumer=consumer, source="/shop", message_id=message_id)
        return int(await self._execute(start))

    async def leave_started(self, consumer: str, source: str, message_id: str) -> None:
        at = int(self.clock.now().timestamp() * 1_000_000)

        def left(connection: Any) -> None:
            with connection.cursor() as cursor:
                table = self._names.table("inbox", quote="`")
                cursor.execute(
                    f"insert into {table} (consumer, source, message_id, status, status_at)"
                    " values (%s, %s, %s, 'started', %s)",
                    (consumer, source, message_id, at),
                )

        await self._committed(left)

    async def _execute(self, command: InboxCommand[T]) -> T:
        return await self._committed(lambda connection: PymysqlWriter(connection).execute(command))

    async def _committed(self, work: Callable[[Any], T]) -> T:
        def whole() -> T:
            with closing(connected(self._url)) as connection:
                connection.begin()
                result = work(connection)
                connection.commit()
                return result

        return await asyncio.to_thread(whole)


@pytest.fixture
def tables_url(mariadb_tables: MariadbTables) -> Iterator[str]:
    with mariadb_tables.lend(prefix="shop_box_") as url:
        yield url


class TestMariadbStore(StoreContract):
    """Under names of its own: a statement that forgot them would find no table."""

    @pytest.fixture
    async def harness(self, tables_url: str) -> AsyncIterator[MariadbHarness]:
        harness = MariadbHarness(tables_url, Names(prefix="shop_box_"))
        try:
            await harness.start()
            yield harness
        finally:
            await harness.stop()


class TestReadsWithBlocks(ReadContract, ByteLimitContract, LateRowsContract, SkippedKeysContract):
    """Known ids are kept in blocks from the third on, as those of a hot key are where it has thousands."""

    @pytest.fixture
    async def harness(self, tables_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MariadbHarness]:
        monkeypatch.setattr("pillarbox.stores.mariadb.reading._BLOCK", 1)
        monkeypatch.setattr("pillarbox.stores.mariadb.reading._CHECK_REST", 0)
        harness = MariadbHarness(tables_url, Names(prefix="shop_box_"))
        try:
            await harness.start()
            yield harness
        finally:
            await harness.stop()
