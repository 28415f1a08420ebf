"""An idle relay on MariaDB and MySQL watches for commits, on a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pymysql
import pytest

from pillarbox import Outbox
from pillarbox.contracts.store import RelayInfo
from pillarbox.message import Names
from pillarbox.stores.factory import open_store
from pillarbox.stores.mariadb import wakeups as module
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.mariadb.wakeups import CommitWatcher, Seen
from pillarbox.stores.urls import parse_store_url
from tests.support.mariadb_server import connected

LEASE = timedelta(minutes=1)
PATIENCE = 30
_THREAD = "pillarbox-mariadb-wakeups"


@pytest.fixture
async def store(mariadb_url: str) -> AsyncIterator[MariadbStore]:
    await MariadbSchema(parse_store_url(mariadb_url), names=Names()).install()
    store = MariadbStore(mariadb_url)
    await store.open()
    yield store
    await store.close()


class Ear:
    """Hears wake-ups."""

    def __init__(self) -> None:
        self.count = 0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self.count += 1
        self._woken.set()

    async def hear(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._woken.wait()
        self._woken.clear()


@asynccontextmanager
async def listening(store: MariadbStore, ear: Ear) -> AsyncIterator[CommitWatcher]:
    async with store.wakeups(ear.wake) as watcher:
        assert isinstance(watcher, CommitWatcher)
        await ear.hear()  # listening begins with one
        yield watcher


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


def publish(connection: Any, *, count: int = 1) -> None:
    for _ in range(count):
        Outbox(routes="orders", source="/shop").publish(connection, {}, type="orders.placed", topic="orders")


def put(url: str, *, count: int = 1) -> None:
    with closing(connected(url)) as connection:
        publish(connection, count=count)
        connection.commit()


async def test_a_message_that_is_committed_late_wakes_too(mariadb_url: str, store: MariadbStore) -> None:
    """One with a higher id was committed before, and is still there: it waits, or its destination is down."""
    ear = Ear()
    with closing(connected(mariadb_url)) as slow:
        publish(slow)
        put(mariadb_url)
        async with listening(store, ear):
            slow.commit()
            await ear.hear()


async def test_what_is_not_committed_wakes_nobody(mariadb_url: str, store: MariadbStore) -> None:
    ear = Ear()
    async with listening(store, ear):
        with closing(connected(mariadb_url)) as slow:
            publish(slow, count=3)
            woken = ear.count
            slow.rollback()
        put(mariadb_url)
        await ear.hear()
        assert ear.count == woken + 1


async def test_what_is_settled_wakes_nobody(mariadb_url: str, store: MariadbStore) -> None:
    put(mariadb_url, count=3)
    ear = Ear()
    async with listening(store, ear):
        woken = ear.count
        with closing(connected(mariadb_url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute("delete from pillarbox_outbox")
        put(mariadb_url)
        await ear.hear()
        assert ear.count == woken + 1


async def test_a_connection_that_was_killed_is_replaced(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECONNECT_AFTER", 0.05)
    ear = Ear()
    async with listening(store, ear) as watcher:
        first = watcher._connection
        with closing(connected(mariadb_url, autocommit=True)) as connection:
            connection.kill(first.thread_id())
        await until(lambda: watcher._connection not in (first, None) and watcher.is_listening)
        await ear.hear()  # listening begins with one
        put(mariadb_url)
        await ear.hear()


async def test_nobody_watches_while_the_relay_is_busy(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Seen] = []
    wait = CommitWatcher._wait_for_change

    def note(self: CommitWatcher, seen: Seen) -> Seen:
        waits.append(seen)
        return wait(self, seen)

    monkeypatch.setattr(CommitWatcher, "_wait_for_change", note)
    relay = RelayInfo(
        relay_id=uuid4(), service="s", host="h", pid=1, version="1", destinations=["orders"], reachable=["orders"]
    )
    await store.register(relay, lease=LEASE)
    ear = Ear()
    async with listening(store, ear):
        put(mariadb_url)
        await store.renew(relay.relay_id, lease=LEASE, reachable=["orders"])
        assert waits == []
        await store.renew(relay.relay_id, lease=LEASE, reachable=["orders"], asleep=True)
        await ear.hear()


async def test_an_old_connection_is_not_used_again(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the relay was busy for long, the server or a firewall may have dropped it."""
    monkeypatch.setattr(module, "_LONGEST_IDLE", -1.0)
    connections: list[Any] = []

    def count(url: str, *, timeout: float) -> Any:
        connections.append(connect(url, timeout=timeout))
        return connections[-1]

    monkeypatch.setattr(module, "connect", count)
    ear = Ear()
    async with listening(store, ear) as watcher:
        put(mariadb_url)
        await ear.hear()
        assert len(connections) > 1
        assert watcher.is_listening


async def test_a_server_without_loops_is_asked_again_and_again(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOP", "begin no loop")
    ear = Ear()
    async with listening(store, ear) as watcher:
        for _ in range(3):
            put(mariadb_url)
            await ear.hear()
        assert not watcher._has_loops


async def test_the_end_does_not_wait_for_an_answer(
    mariadb_url: str, store: MariadbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BOUND", 600.0)
    number = 0
    try:
        async with asyncio.timeout(PATIENCE):
            async with listening(store, Ear()) as watcher:
                number = watcher._connection.thread_id()
                await asyncio.sleep(0.05)  # most likely in the middle of a statement
        await until(lambda: not [one for one in threading.enumerate() if one.name.startswith(_THREAD)])
    finally:
        with closing(connected(mariadb_url, autocommit=True)) as connection, suppress(pymysql.Error):
            connection.kill(number)  # it may be gone already


async def test_it_can_be_switched_off(mariadb_url: str, store: MariadbStore) -> None:
    quiet = open_store(f"{mariadb_url}?wakeups=off")
    ear = Ear()
    async with quiet.wakeups(ear.wake) as watcher:
        assert not watcher.is_listening
        assert not isinstance(watcher, CommitWatcher)


@pytest.mark.parametrize(
    ("before", "now", "is_news"),
    [
        (Seen(0, 0, 0, 0), Seen(0, 1, 7, 7), True),
        (Seen(0, 2, 12, 7), Seen(0, 1, 7, 7), False),
        (Seen(0, 2, 12, 7), Seen(0, 3, 18, 7), True),
        (Seen(0, 2, 12, 7), Seen(0, 2, 13, 7), True),
        (Seen(0, 2, 12, 7), Seen(0, 2, 12, 7), False),
        (Seen(0, 9, 60, 9), Seen(0, 1, 10, 10), True),
    ],
)
def test_only_what_came_is_news(before: Seen, now: Seen, *, is_news: bool) -> None:
    assert now.is_news(before) is is_news
