"""The rights that are granted on MariaDB are enough for the real writers and the real store, and not for more."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from urllib.parse import urlsplit
from uuid import uuid4

import pymysql
import pytest

from pillarbox.errors import ConfigError, StoreError
from pillarbox.message import Kind, Message, State, Waits, new_message_id
from pillarbox.names import Names
from pillarbox.protocols import Accept, Claim, Fence, Insert, RelayInfo, Selection, Settlement, Trouble
from pillarbox.stores.mariadb.grants import grants
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.scripts import script, split
from pillarbox.writers.pymysql import PymysqlWriter
from tests.mariadb_server import connected

LEASE = timedelta(minutes=1)
NOW = timedelta(0)
ALL = Selection()
PASSWORD = "canary"


@dataclass(frozen=True, slots=True)
class Granted:
    url: str
    users: dict[Role, str]

    def url_as(self, role: Role) -> str:
        parts = urlsplit(self.url)
        return parts._replace(netloc=f"{self.users[role]}:{PASSWORD}@{parts.hostname}:{parts.port}").geturl()


@pytest.fixture(scope="module")
def granted(mariadb_server: str) -> Iterator[Granted]:
    """New tables and new users, gone afterwards."""
    suffix = secrets.token_hex(3)
    names = Names(f"grants_{suffix}")
    users: dict[Role, str] = {role: f"pb_{role}_{suffix}" for role in get_args(Role)}
    with closing(connected(mariadb_server, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, *split(script("mysql", names=names)))
        run(cursor, *(f"create user '{user}'@'%' identified by '{PASSWORD}'" for user in users.values()))
        try:
            for _ in range(2):
                accounts: dict[Role, str] = {role: f"{user}@%" for role, user in users.items()}
                run(cursor, *split(grants(accounts, names=names)))
            yield Granted(urlsplit(mariadb_server)._replace(path=f"/grants_{suffix}").geturl(), users)
        finally:
            run(cursor, f"drop database `grants_{suffix}`", *(f"drop user '{user}'@'%'" for user in users.values()))


def run(cursor: Any, *statements: str) -> None:
    for statement in statements:
        cursor.execute(statement)


@pytest.fixture(autouse=True)
def empty(granted: Granted) -> None:
    with closing(connected(granted.url, autocommit=True)) as connection, connection.cursor() as cursor:
        run(cursor, *(f"delete from pillarbox_{table}" for table in ("outbox", "history", "journal", "lane", "claim")))


@asynccontextmanager
async def opened(granted: Granted, role: Role) -> AsyncIterator[MariadbStore]:
    store = MariadbStore(granted.url_as(role), connections=1)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


StoreAs = Callable[[Role], AbstractAsyncContextManager[MariadbStore]]


@pytest.fixture
def store_as(granted: Granted) -> StoreAs:
    return lambda role: opened(granted, role)


def message(key: str | None = "k") -> Message:
    return Message(
        id=0, message_id=new_message_id(), destination="shop", partition=1, kind=Kind.EVENT, type="t", topic="t",
        key=key, payload=b"p", content_type="c", headers={"a": "b"}, source="s", subject=None, correlation_id="c",
        causation_id=None, event_time=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def write(granted: Granted, role: Role, *, count: int = 1, delay: timedelta | None = None) -> None:
    messages = [message() for _ in range(count)]
    batch = Insert(names=Names(), messages=messages, delay=delay, serialize_keys=True)
    with closing(connected(granted.url_as(role))) as connection:
        PymysqlWriter(connection).insert(batch)
        connection.commit()


@pytest.mark.parametrize("role", ["writer", "consumer"])
async def test_the_writers_write(granted: Granted, store_as: StoreAs, role: Role) -> None:
    write(granted, role)
    write(granted, role, count=3)
    write(granted, role, delay=LEASE)

    async with store_as("relay") as store:
        assert len(await store.find(ALL, limit=100)) == 5
    with closing(connected(granted.url_as(role))) as connection, connection.cursor() as cursor:
        for forbidden in ("select * from pillarbox_outbox", "delete from pillarbox_outbox"):
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                cursor.execute(forbidden)


def test_a_consumer_accepts_once(granted: Granted) -> None:
    accept = Accept(names=Names(), consumer="c", source="s", message_id="m")
    with closing(connected(granted.url_as("consumer"))) as connection:
        writer = PymysqlWriter(connection)
        connection.begin()

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
        await store.registry(lease=LEASE)
        await store.read_due("shop", partitions=[1], limit=10)
        await store.read_key("shop", partition=1, key="k", after=0, limit=10)
        await store.blocked_keys("shop", partitions=[1])
        await store.next_due("shop", partitions=[1])
        await store.counts()
        await store.inspect()
        assert len(await store.journal()) == 2
        assert await store.renew(fence.relay_id, lease=LEASE, reachable=["shop"], asleep=True)
        await store.pause("shop", by="me", reason="why")
        assert await store.resume("shop", by="me")
        assert await store.purge(State.DELIVERED, older_than=NOW, limit=10) == 1
        assert await store.purge_ids(ids) == 1
        await store.purge_inbox(older_than=NOW, limit=10)
        await store.release(fence)
        await store.leave(fence.relay_id)
        await store.forget(stale_after=NOW)

        assert [one.id for one in await store.find(ALL, limit=10)] == ids[2:]


async def test_a_relay_forges_nothing(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("relay") as store:
        fence = await _owned(store)
        (one,) = (await store.read("shop", partitions=[1], cursor=None, limit=10)).messages
        failed = Trouble(message_id=one.id, state=State.FAILED, attempts=5, error="no")
        await store.settle(fence, Settlement(troubles=[failed]))
        with pytest.raises(StoreError, match="schema grants"):
            await store.redrive(ALL, by="me", limit=1)


async def test_an_operator_moves_messages(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=3)
    async with store_as("operator") as store:
        assert (await store.defer(ALL, until=datetime.now(UTC), by="me", limit=10)).count == 3
        assert (await store.discard(ALL, by="me", reason="why", limit=3)).count == 3
        assert (await store.redrive(ALL, by="me", limit=3, to="elsewhere")).count == 3
        assert (await store.replay(ALL, by="me", limit=3)).count == 0


async def test_a_viewer_looks_at_everything_but_payloads(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("viewer") as store:
        assert [count.count for count in await store.counts()] == [1]
        assert [one.payload for one in await store.find(ALL, limit=10, payloads=False)] == [b""]
        await store.registry(lease=LEASE)
        await store.pauses()
        await store.journal()
        with pytest.raises(StoreError, match="denied"):
            await store.find(ALL, limit=10)


async def _owned(store: MariadbStore) -> Fence:
    relay = RelayInfo(
        relay_id=uuid4(), service="s", host="h", pid=1, version="v", destinations=["shop"], reachable=["shop"]
    )
    await store.register(relay, lease=LEASE)
    lanes, _ = await store.take(relay.relay_id, "shop", partitions=[1], lease=LEASE, claim_number=1)
    return Fence(relay.relay_id, "shop", {lane.partition: lane.epoch for lane in lanes})


@pytest.mark.parametrize("account", ["", "a'b", "x" * 33, "a\\b"])
def test_an_account_that_cannot_be_written_is_refused(account: str) -> None:
    with pytest.raises(ConfigError, match="name or name@host"):
        grants({"relay": account}, names=Names())


def test_nobody_to_grant_to() -> None:
    with pytest.raises(ConfigError, match="No role was named"):
        grants({}, names=Names())
