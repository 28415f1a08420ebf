"""The rights that are granted are enough for the real writers and the real store, and not for more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from pillarbox.errors import StoreError
from pillarbox.message import Kind, Message, State, Waits, new_message_id
from pillarbox.protocols import Accept, Claim, Fence, Insert, RelayInfo, Selection, Settlement, Trouble
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.writers.asyncpg import AsyncpgWriter
from pillarbox.writers.psycopg import PsycopgWriter
from tests.integration.granted import Granted, granted_roles

LEASE = timedelta(seconds=10)
NOW = timedelta(0)
ALL = Selection()

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


def message(key: str | None = "k") -> Message:
    return Message(
        id=0, message_id=new_message_id(), destination="shop", partition=1, kind=Kind.EVENT, type="t", topic="t",
        key=key, payload=b"p", content_type="c", headers={"a": "b"}, source="s", subject=None, correlation_id="c",
        causation_id=None, event_time=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


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

        assert [writer.ask(accept), writer.ask(accept)] == [True, False]


async def test_a_relay_lives_its_life(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=4)
    async with store_as("relay") as store:
        fence = await _owned(store)
        read = (await store.read("shop", partitions=[1], cursor=None, limit=10)).messages
        ids = [one.id for one in read]
        await store.claim(fence, Claim(1, ids[:3]), park=ids[3:])
        failed = Trouble(message_id=ids[1], state=State.FAILED, attempts=5, error="no")
        again = Trouble(message_id=ids[2], state=State.PENDING, waits=Waits.RETRY, attempts=1, error="no", delay=NOW)
        await store.settle(fence, Settlement(delivered=ids[:1], troubles=[failed, again], finished=[1]))
        await _ask_everything(store)
        assert len(await store.journal()) == 2
        assert await store.renew(fence.relay_id, lease=LEASE, reachable=["shop"], asleep=True)
        await store.pause("shop", by="me", reason="why")
        assert await store.resume("shop", by="me")
        assert await store.purge(State.DELIVERED, older_than=NOW, limit=10) == 1
        assert await store.purge_ids(ids) == 1
        assert await store.purge_inbox(older_than=NOW, limit=10) == 0
        await store.release(fence)
        await store.leave(fence.relay_id)
        await store.forget(stale_after=NOW)

        assert [one.id for one in await store.find(ALL, limit=10)] == ids[2:]


async def test_a_relay_takes_over_from_a_dead_one(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("relay") as store:
        dead = await _owned(store, lease=timedelta(microseconds=1))
        with pytest.raises(StoreError):
            await store.redrive(ALL, by="me", limit=1)
        lanes, _ = await store.take(uuid4(), "shop", partitions=[1], lease=LEASE, claim_number=1)

        assert [lane.epoch for lane in lanes] == [dead.epochs[1] + 1]


async def test_an_operator_moves_messages(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=3)
    async with store_as("operator") as store:
        assert (await store.defer(ALL, until=datetime.now(UTC), by="me", limit=10)).count == 3
        assert (await store.discard(ALL, by="me", reason="why", limit=3)).count == 3
        assert (await store.redrive(ALL, by="me", limit=3, to="elsewhere")).count == 3
        assert (await store.replay(ALL, by="me", limit=3)).count == 0


async def _owned(store: PostgresStore, *, lease: timedelta = LEASE) -> Fence:
    relay = RelayInfo(
        relay_id=uuid4(), service="s", host="h", pid=1, version="v", destinations=["shop"], reachable=["shop"]
    )
    await store.register(relay, lease=lease)
    lanes, _ = await store.take(relay.relay_id, "shop", partitions=[1], lease=LEASE, claim_number=1)
    return Fence(relay.relay_id, "shop", {lane.partition: lane.epoch for lane in lanes})


async def _ask_everything(store: PostgresStore) -> None:
    await store.registry(lease=LEASE)
    await store.read_due("shop", partitions=[1], limit=10)
    await store.read_key("shop", partition=1, key="k", after=0, limit=10)
    await store.blocked_keys("shop", partitions=[1])
    await store.next_due("shop", partitions=[1])
    await store.pauses()
    await store.counts()


async def test_a_viewer_looks_at_everything_but_payloads(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("viewer") as store:
        assert [count.count for count in await store.counts()] == [1]
        assert [one.payload for one in await store.find(ALL, limit=10, payloads=False)] == [b""]
        await store.registry(lease=LEASE)
        await store.pauses()
        await store.journal()
        with pytest.raises(StoreError, match="permission denied"):
            await store.find(ALL, limit=10)
