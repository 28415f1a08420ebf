"""The rights that are granted on MariaDB are enough for the real writers and the real store, and not for more."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args
from urllib.parse import urlsplit

import pymysql
import pytest

from pillarbox.contracts.store import FailedOutcome, Settlement
from pillarbox.contracts.writer import Accept, Insert
from pillarbox.errors import ConfigError, StoreError
from pillarbox.message import Names, State
from pillarbox.stores.mariadb.grants import grants
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.migrations import build_script, split_script
from pillarbox.stores.postgres.grants import Role
from pillarbox.writers.mysql import PymysqlWriter
from tests.support.granted_store import (
    ALL,
    LEASE,
    live_as_a_relay,
    look_as_a_viewer,
    message,
    move_as_an_operator,
    owned,
)
from tests.support.mariadb_server import connected

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
        run(cursor, *split_script(build_script("mysql", names=names)))
        run(cursor, *(f"create user '{user}'@'%' identified by '{PASSWORD}'" for user in users.values()))
        try:
            for _ in range(2):
                accounts: dict[Role, str] = {role: f"{user}@%" for role, user in users.items()}
                run(cursor, *split_script(grants(accounts, names=names)))
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
            with pytest.raises(pymysql.OperationalError, match="denied"):
                cursor.execute(forbidden)


def test_a_consumer_accepts_once(granted: Granted) -> None:
    accept = Accept(names=Names(), consumer="c", source="s", message_id="m")
    with closing(connected(granted.url_as("consumer"))) as connection:
        writer = PymysqlWriter(connection)
        connection.begin()

        assert [writer.execute(accept), writer.execute(accept)] == [True, False]


async def test_a_relay_lives_its_life(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=4)
    async with store_as("relay") as store:
        ids, left = await live_as_a_relay(store)

    assert left == ids[2:]


async def test_a_relay_forges_nothing(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("relay") as store:
        fence = await owned(store)
        (one,) = (await store.read("shop", partitions=[1], cursor=None, limit=10)).messages
        failed = FailedOutcome(message_id=one.id, state=State.FAILED, attempts=5, error="no")
        await store.settle(fence, Settlement(failures=[failed]))
        with pytest.raises(StoreError, match="schema grants"):
            await store.redrive(ALL, by="me", limit=1)


async def test_an_operator_moves_messages(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer", count=3)
    async with store_as("operator") as store:
        await move_as_an_operator(store)


async def test_a_viewer_looks_at_everything_but_payloads(granted: Granted, store_as: StoreAs) -> None:
    write(granted, "writer")
    async with store_as("viewer") as store:
        await look_as_a_viewer(store)


@pytest.mark.parametrize("account", ["", "a'b", "x" * 33, "a\\b"])
def test_an_account_that_cannot_be_written_is_refused(account: str) -> None:
    with pytest.raises(ConfigError, match="name or name@host"):
        grants({"relay": account}, names=Names())


def test_nobody_to_grant_to() -> None:
    with pytest.raises(ConfigError, match="No role was named"):
        grants({}, names=Names())
