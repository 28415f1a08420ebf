"""The rights that are granted are enough for the real writers and the real store, and not for more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import asyncpg
import psycopg
import pytest

from pillarbox.contracts.writer import Accept, Insert
from pillarbox.errors import StoreError
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.writers.asyncpg import AsyncpgWriter
from pillarbox.writers.psycopg import PsycopgWriter
from tests.support.granted import Granted, granted_roles
from tests.support.granted_store import (
    ALL,
    LEASE,
    live_as_a_relay,
    look_as_a_viewer,
    message,
    move_as_an_operator,
    owned,
)

StoreAs = Callable[[Role], AbstractAsyncContextManager[PostgresStore]]


@pytest.fixture
def granted(postgres_url: str) -> Iterator[Granted]:
    with granted_roles(postgres_url) as granted:
        yield granted


@pytest.fixture
def store_as(granted: Granted) -> StoreAs:
    @asynccontextmanager
    async def opened(role: Role) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(granted.url_as(role), schema=granted.names.schema, connections=1)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    return opened


def write(granted: Granted, role: Role, *, count: int = 1, delay: timedelta | None = None) -> None:
    batch = Insert(names=granted.names, messages=[message() for _ in range(count)], delay=delay, serialize_keys=True)
    with psycopg.connect(granted.url_as(role)) as connection:
        PsycopgWriter(connection).insert(batch)


@pytest.mark.parametrize("role", ["writer", "consumer"])
async def test_the_writers_write(granted: Granted, store_as: StoreAs, role: Role) -> None:
    write(granted, role)
    write(granted, role, count=3)
    write(granted, role, delay=LEASE)
    connection = await asyncpg.connect(granted.url_as(role))
    async with connection.transaction():
        await AsyncpgWriter(connection).insert(Insert(names=granted.names, messages=[message(), message(None)]))
    await connection.close()

    async with store_as("relay") as store:
        assert len(await store.find(ALL, limit=100)) == 7


def test_a_consumer_accepts_once(granted: Granted) -> None:
    accept = Accept(names=granted.names, consumer="c", source="s", message_id="m")
    with psycopg.connect(granted.url_as("consumer")) as connection:
        writer = PsycopgWriter(connection)

        assert [writer.execute(accept), writer.execute(accept)] == [True, False]


async def test_a_relay_lives_its_life(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=4)
    async with store_as("relay") as store:
        ids, left = await live_as_a_relay(store)

    assert left == ids[2:]


async def test_a_relay_takes_over_from_a_dead_one(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("relay") as store:
        dead = await owned(store, lease=timedelta(microseconds=1))
        with pytest.raises(StoreError):
            await store.redrive(ALL, by="me", limit=1)
        heir = await owned(store, lease=LEASE)

        assert heir.epochs == {1: dead.epochs[1] + 1}


async def test_an_operator_moves_messages(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=3)
    async with store_as("operator") as store:
        await move_as_an_operator(store)


async def test_a_viewer_looks_at_everything_but_payloads(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("viewer") as store:
        await look_as_a_viewer(store)
