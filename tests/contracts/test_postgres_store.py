"""The PostgreSQL store keeps the contract by both drivers, directly and as behind a transaction pooler."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal
from uuid import UUID

import asyncpg
import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Store
from pillarbox.contracts.writer import Accept, Insert, Start
from pillarbox.errors import StoreError
from pillarbox.message import Message, Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.connection import Pooler
from pillarbox.stores.postgres.dialect import PostgresDialect
from pillarbox.stores.postgres.driver import DriverName
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.testing.harness import HarnessTakeover, HarnessTransaction, StoreHarness
from pillarbox.testing.memory_harness import build_inbox_failure
from pillarbox.testing.store_contract import StoreContract
from pillarbox.testing.store_contract.claims import SettleContract
from pillarbox.testing.store_contract.fencing import RaceContract
from pillarbox.testing.store_contract.queries import JournalContract, RollupContract
from pillarbox.testing.store_contract.reading import LateRowsContract
from pillarbox.testing.store_contract.writing import TimesContract
from pillarbox.writers.asyncpg import AsyncpgWriter
from tests.support.pooler import forgetful_pooler
from tests.support.spoiled_rows import (
    POSTGRES_FAULTS,
    POSTGRES_REFUSED,
    PostgresWriterRole,
    combine,
    draw_for_postgres,
    insert_into_postgres,
)
from tests.support.tables import PostgresTables


class _Transaction:
    def __init__(self, connection: Any, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._transaction = connection.transaction()
        self.ended = False

    async def begin(self) -> None:
        await self._transaction.start()

    async def insert(self, messages: Sequence[Message], *, delay: timedelta | None = None) -> None:
        await AsyncpgWriter(self._connection).insert(Insert(names=self._names, messages=messages, delay=delay))

    async def commit(self) -> None:
        self.ended = True
        await self._transaction.commit()

    async def rollback(self) -> None:
        self.ended = True
        await self._transaction.rollback()


class _Takeover:
    def __init__(self, connection: Any, observer: Any, transaction: Any) -> None:
        self._connection = connection
        self._observer = observer
        self._transaction = transaction
        self.ended = False

    async def wait_for(self, call: asyncio.Task[Any]) -> None:
        while not call.done() and not await self._is_waited_for():  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(0.01)

    async def _is_waited_for(self) -> bool:
        waiting = "select count(*) from pg_stat_activity where $1 = any(pg_blocking_pids(pid))"
        return bool(await self._observer.fetchval(waiting, self._connection.get_server_pid()))

    async def commit(self) -> None:
        self.ended = True
        await self._transaction.commit()


class PostgresHarness(StoreHarness):
    """Uses empty tables. PostgreSQL stamps the rows of an insert, so the clock stands at the real time."""

    faults = tuple(POSTGRES_FAULTS)
    refused_faults = tuple(POSTGRES_REFUSED)

    def __init__(
        self,
        url: str,
        names: Names,
        *,
        driver: DriverName,
        pooled_url: str | None = None,
        pooler: Pooler = "none",
        dialect: PostgresDialect = "native",
    ) -> None:
        self.clock = FrozenClock(datetime.now(UTC))
        self.wakes = dialect == "native" and pooler == "none"
        self._url = url
        self._store_url = pooled_url or url
        self._names = names
        self._driver: DriverName = driver
        self._pooler: Pooler = pooler
        self._dialect: PostgresDialect = dialect
        self._opened: list[PostgresStore] = []
        self._role = PostgresWriterRole(names)
        self._writer: Any = None

    async def start(self) -> None:
        self.store = await self.open_second()

    async def stop(self) -> None:
        for store in self._opened:
            await store.close()
        if self._writer is not None:
            await self._role.drop(self._writer)
            await self._writer.close()

    def open_transaction(self) -> AbstractAsyncContextManager[HarnessTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[HarnessTransaction]:
        async with self._connected() as connection:
            transaction = _Transaction(connection, self._names)
            await transaction.begin()
            yield transaction
            if not transaction.ended:
                await transaction.rollback()

    def open_takeover(
        self, relay_id: UUID, destination: str, partition: int
    ) -> AbstractAsyncContextManager[HarnessTakeover]:
        return self._takeover(relay_id, destination, partition)

    @asynccontextmanager
    async def _takeover(self, relay_id: UUID, destination: str, partition: int) -> AsyncIterator[HarnessTakeover]:
        async with self._connected() as connection, self._connected() as observer:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(
                f"update {self._names.table('lane')} set relay_id = $1, epoch = epoch + 1"
                " where destination = $2 and partition = $3",
                relay_id,
                destination,
                partition,
            )
            takeover = _Takeover(connection, observer, transaction)
            yield takeover
            if not takeover.ended:
                await transaction.rollback()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            yield connection
        finally:
            await connection.close()

    async def open_second(self) -> Store:
        return await self.open_with_keep("full")

    async def restart(self) -> Store:
        return await self.open_second()

    async def open_with_keep(self, keep: Literal["full", "no-payload", "off"]) -> Store:
        store = PostgresStore(
            self._store_url,
            schema=self._names.schema,
            prefix=self._names.prefix,
            clock=self.clock,
            keep=keep,
            pooler=self._pooler,
            driver=self._driver,
            connections=2,
            dialect=self._dialect,
        )
        await store.open()
        self._opened.append(store)
        return store

    async def accept(self, consumer: str, source: str, message_id: str) -> bool:
        accept = Accept(names=self._names, consumer=consumer, source=source, message_id=message_id)
        async with self._connected() as connection, connection.transaction():
            return bool(await AsyncpgWriter(connection).execute(accept))

    async def insert_spoiled(self, message: Message, *faults: str) -> bool:
        return await self._insert_by_writer(message, combine({**POSTGRES_FAULTS, **POSTGRES_REFUSED}, faults))

    async def insert_random(self, message: Message, dice: random.Random) -> bool:
        return await self._insert_by_writer(message, draw_for_postgres(dice))

    async def _insert_by_writer(self, message: Message, fault: Mapping[str, str]) -> bool:
        if self._writer is None:
            self._writer = await asyncpg.connect(self._url)
            await self._role.create(self._writer)
        return await insert_into_postgres(self._writer, self._role.name, self._names, message, fault)

    async def fail_inbox(
        self, consumer: str, message_id: str, *, error: str = "ValueError: no", content: bytes | None
    ) -> None:
        async with self._connected() as connection, connection.transaction():
            await AsyncpgWriter(connection).execute(
                build_inbox_failure(self._names, consumer, message_id, error, content)
            )

    async def start_inbox(self, consumer: str, message_id: str) -> int:
        start = Start(names=self._names, consumer=consumer, source="/shop", message_id=message_id)
        async with self._connected() as connection, connection.transaction():
            return int(await AsyncpgWriter(connection).execute(start))

    async def leave_started(self, consumer: str, source: str, message_id: str) -> None:
        async with self._connected() as connection:
            await connection.execute(
                f"insert into {self._names.table('inbox')} (consumer, source, message_id, status, status_at)"
                " values ($1, $2, $3, 'started', $4)",
                consumer,
                source,
                message_id,
                self.clock.now(),
            )


@asynccontextmanager
async def _harness(harness: PostgresHarness) -> AsyncIterator[PostgresHarness]:
    try:
        await harness.start()
        yield harness
    finally:
        await harness.stop()


@pytest.fixture
def native_names(postgres_tables: PostgresTables) -> Iterator[Names]:
    with postgres_tables.lend(prefix="shop_box_") as names:
        yield names


@pytest.fixture
def portable_names(postgres_tables: PostgresTables) -> Iterator[Names]:
    with postgres_tables.lend(prefix="shop_box_", dialect="portable") as names:
        yield names


class _Direct:
    """Under names of its own: a statement that forgot them would find no table."""

    driver: ClassVar[DriverName]

    @pytest.fixture
    async def harness(self, postgres_url: str, native_names: Names) -> AsyncIterator[PostgresHarness]:
        async with _harness(PostgresHarness(postgres_url, native_names, driver=self.driver)) as harness:
            yield harness


class _Portable:
    """With tables and statements that use nothing of which only PostgreSQL is sure."""

    driver: ClassVar[DriverName]

    @pytest.fixture
    async def harness(self, postgres_url: str, portable_names: Names) -> AsyncIterator[PostgresHarness]:
        harness = PostgresHarness(postgres_url, portable_names, driver=self.driver, dialect="portable")
        async with _harness(harness):
            yield harness


class _BehindAPooler:
    """Through a pooler that forgets everything between two transactions: prepared statements, settings, all of it."""

    driver: ClassVar[DriverName]

    @pytest.fixture
    async def harness(self, postgres_url: str, native_names: Names) -> AsyncIterator[PostgresHarness]:
        async with forgetful_pooler(postgres_url) as pooled_url:
            harness = PostgresHarness(
                postgres_url, native_names, driver=self.driver, pooled_url=pooled_url, pooler="transaction"
            )
            async with _harness(harness):
                yield harness


class TestPostgresStore(_Direct, StoreContract):
    driver = "asyncpg"


class TestPostgresStoreBehindAPooler(_BehindAPooler, StoreContract):
    driver = "asyncpg"


class TestPortableStore(_Portable, StoreContract):
    driver = "asyncpg"


class TestPostgresStoreByPsycopg(_Direct, StoreContract):
    driver = "psycopg"


class TestPostgresStoreByPsycopgBehindAPooler(
    _BehindAPooler,
    LateRowsContract,
    SettleContract,
    RaceContract,
    JournalContract,
    RollupContract,
    TimesContract,
):
    """The parts that depend on how a driver passes values, begins transactions and does without a session."""

    driver = "psycopg"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_without_the_option_a_pooler_is_noticed_at_once(
    postgres_url: str, postgres_schema: str, driver: DriverName
) -> None:
    """The pooler of these tests really forgets: a store that relies on its session fails through it."""
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    async with forgetful_pooler(postgres_url) as pooled_url:
        store = PostgresStore(pooled_url, schema=names.schema, connections=1, driver=driver)
        with pytest.raises(StoreError, match="prepared statement"):
            await _use_twice(store)
        await store.close()


async def _use_twice(store: PostgresStore) -> None:
    await store.open()
    for _ in range(2):
        await store.pauses()
