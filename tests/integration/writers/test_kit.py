"""The test kit on the caller's own connection: it sees what its transaction sees, and what rolls back is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from pillarbox import Outbox
from pillarbox.events import Types
from pillarbox.testing import OutboxKit
from tests.support.writers.handles import Handle, resolve
from tests.support.writers.places import Place, SqlitePlace
from tests.support.writers.sqlalchemy_handles import create_async_engine_for, create_engine_for

TYPES = Types()


@TYPES.event("orders.placed", key="order_id")
@dataclass
class OrderPlaced:
    order_id: str


def outbox(place: Place) -> Outbox:
    names = place.names
    return Outbox(routes="billing", source="/shop", types=TYPES, schema=names.schema, prefix=names.prefix)


def kit_on(connection: Any, place: Place) -> OutboxKit:
    return OutboxKit(connection=connection, schema=place.names.schema, prefix=place.names.prefix, types=TYPES)


async def test_every_handle_shows_what_its_transaction_published(handle: Handle, place: Place) -> None:
    kit = kit_on(handle.tx, place)
    await handle.begin()
    await handle.order(1)
    await resolve(outbox(place).publish(handle.tx, OrderPlaced("1"), headers={"tenant": "a"}))
    found = await kit.assert_published_async(OrderPlaced, order_id="1", key="1", headers={"tenant": "a"}, count=1)
    assert found == OrderPlaced("1")
    assert [one.destination for one in await kit.messages_async(key="1")] == ["billing"]
    assert await kit.messages_async(key="2") == []
    await kit.assert_not_published_async(OrderPlaced, order_id="2")
    await handle.rollback()
    await handle.begin()
    await kit.assert_not_published_async(OrderPlaced)


DRIVERS = {"postgres": ("psycopg", "asyncpg"), "mariadb": ("pymysql", "asyncmy"), "sqlite": ("pysqlite", "aiosqlite")}


@pytest.fixture(params=list(DRIVERS))
def drivers(request: pytest.FixtureRequest) -> tuple[str, str]:
    return DRIVERS[request.param]


@pytest.fixture
def database(drivers: tuple[str, str], request: pytest.FixtureRequest) -> Place:
    name = next(name for name, found in DRIVERS.items() if found == drivers)
    return request.getfixturevalue(f"{name}_place")  # type: ignore[no-any-return]


@pytest.fixture
def session(database: Place, drivers: tuple[str, str]) -> Iterator[Session]:
    """The usual fixture: what a test commits is rolled back at its end."""
    engine = create_engine_for(database, drivers[0])
    with engine.connect() as connection:
        transaction = connection.begin()
        with Session(bind=connection, join_transaction_mode="create_savepoint") as session:
            yield session
        transaction.rollback()
        if not isinstance(database, SqlitePlace):  # its driver commits with the savepoint
            kit_on(connection, database).assert_not_published(OrderPlaced)
    engine.dispose()


@pytest.fixture
async def async_pair(database: Place, drivers: tuple[str, str]) -> AsyncIterator[tuple[AsyncConnection, AsyncSession]]:
    engine = create_async_engine_for(database, drivers[1])
    async with engine.connect() as connection:
        transaction = await connection.begin()
        async with AsyncSession(bind=connection, join_transaction_mode="create_savepoint") as session:
            yield connection, session
        await transaction.rollback()
        if not isinstance(database, SqlitePlace):  # its driver commits with the savepoint
            await kit_on(connection, database).assert_not_published_async(OrderPlaced)
    await engine.dispose()


def test_a_session_of_the_rollback_fixture(session: Session, database: Place) -> None:
    outbox(database).publish(session, OrderPlaced("1"))
    session.commit()
    for handle in (session, session.connection()):
        kit_on(handle, database).assert_published(OrderPlaced, order_id="1")
        assert kit_on(handle, database).published(OrderPlaced) == [OrderPlaced("1")]
        kit_on(handle, database).assert_not_published(OrderPlaced, order_id="2")


async def test_an_async_session_of_the_rollback_fixture(
    async_pair: tuple[AsyncConnection, AsyncSession], database: Place
) -> None:
    _, session = async_pair
    await outbox(database).publish(session, OrderPlaced("1"))
    await session.commit()
    for handle in async_pair:
        kit = kit_on(handle, database)
        await kit.assert_published_async(OrderPlaced, order_id="1")
        assert await kit.published_async() == [OrderPlaced("1")]
        with pytest.raises(TypeError, match="_async"):
            kit.published()


def test_nothing_is_delivered_on_a_connection(session: Session, database: Place) -> None:
    with pytest.raises(TypeError, match="give the kit a store"):
        kit_on(session, database).drain()
    with pytest.raises(TypeError, match="your own connection"):
        kit_on(session, database).transaction()


@pytest.mark.parametrize("kind", ["sqlite3", "psycopg", "pymysql"])
async def test_a_kit_creates_the_tables_of_its_store(place: Place) -> None:
    names = place.names
    url = f"sqlite:///{place.path}" if isinstance(place, SqlitePlace) else place.url  # type: ignore[attr-defined]
    kit = OutboxKit(store=url, schema=names.schema, prefix="fresh_", types=TYPES)
    again = OutboxKit(store=kit.store, types=TYPES)
    assert await again.messages_async() == []
