"""A part of a real broker takes nothing: its messages wait and pay nothing, and the others pass them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web

from pillarbox import Outbox, Route, Routes
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.store import Selection
from pillarbox.message import Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry
from tests.support.http_endpoint import Endpoint
from tests.support.mqtt_server import private_mosquitto
from tests.support.rabbitmq_server import found_rabbitmq
from tests.support.rabbitmq_topology import Topology
from tests.support.redis_server import private_redis

PATIENCE = 120.0
ONE_ATTEMPT = RetryPolicy(attempts=1)
"""One attempt spent is one message failed."""


class Shop(Telemetry):
    """A store with messages, and a relay that delivers them to one broker with a small window."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path)
        self.blocked: list[str] = []
        self.outages: list[str] = []
        self._path = path
        self._outbox = Outbox(routes=Routes([Route(to=["broker"])]), source="/shop")
        self._number = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, path: Path) -> AsyncIterator[Self]:
        await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
        shop = cls(path)
        await shop.store.open()
        try:
            yield shop
        finally:
            await shop.store.close()

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        self.blocked.append(address)

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        self.outages.append(reason)

    def put(self, *topics: str, count: int = 100, keys: int = 40) -> None:
        """Commit messages, by turns to each topic."""
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            for _ in range(count):
                self._number += 1
                for topic in topics:
                    key = f"{topic}-{self._number % keys}"
                    self._outbox.publish(connection, {"n": self._number}, type="placed", topic=topic, key=key)
            connection.commit()

    def relay(self, url: str) -> Relay:
        settings = DestinationSettings(name="broker", retry=ONE_ATTEMPT, window=20, batch=10)
        return Relay(
            SqliteStore(self._path),
            [Destination(lambda: transport_from_url(url), settings)],
            settings=RelaySettings(poll_interval=timedelta(milliseconds=50)),
            telemetry=self,
        )

    async def count_open(self, topic: str | None = None) -> int:
        selection = Selection(states=[State.PENDING, State.SENDING], topic=topic)
        return len(await self.store.find(selection, limit=10_000, payloads=False))

    async def drained(self, topic: str | None = None) -> None:
        await until(self.is_drained(topic))

    def is_drained(self, topic: str | None = None) -> Callable[[], Awaitable[bool]]:
        async def is_drained() -> bool:
            return not await self.count_open(topic)

        return is_drained

    async def assert_nothing_was_paid(self) -> None:
        found = await self.store.find(Selection(), limit=10_000, payloads=False)
        assert {(message.state, message.attempts) for message in found} == {(State.DELIVERED, 0)}


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.05)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with Shop.opened(tmp_path / "shop.db") as opened:
        yield opened


@pytest.fixture
async def topology() -> AsyncIterator[Topology]:
    with found_rabbitmq() as url:
        async with Topology.declared(url) as declared:
            yield declared


def amqp(topology: Topology) -> str:
    return f"{topology.url}?exchange={topology.exchange}&routing_key={{topic}}"


async def test_rabbitmq_with_a_full_queue_and_a_slow_reader(shop: Shop, topology: Topology) -> None:
    """The overflow policy that we recommend: `reject-publish`."""
    await topology.bind("free")
    slow = await topology.small_queue(5)
    await topology.bind("slow", slow)
    shop.put("slow", "free", count=80)
    read: list[str] = []
    reads, is_over = asyncio.Event(), asyncio.Event()

    async def read_slowly() -> None:
        queue = await topology.channel.get_queue(slow)
        await reads.wait()
        while not is_over.is_set():  # not until cancelled: the client may swallow that while it waits for an answer
            if (message := await queue.get(no_ack=True, fail=False)) is not None:
                read.append(message.message_id or "")
            await asyncio.sleep(0.02)

    reader = asyncio.create_task(read_slowly())
    async with shop.relay(amqp(topology)):
        await shop.drained("free")
        assert await shop.count_open("slow") == 75  # nobody has read one yet
        reads.set()
        await shop.drained()
        await until(lambda: _is_read(read, 80))
    is_over.set()
    await reader
    await shop.assert_nothing_was_paid()
    assert shop.outages == []


async def _is_read(read: list[str], count: int) -> bool:
    return len(set(read)) == count


async def test_rabbitmq_without_a_binding_before_and_after_the_start(shop: Shop, topology: Topology) -> None:
    await topology.bind("free")
    shop.put("late", "free")
    async with shop.relay(amqp(topology)):
        await shop.drained("free")
        assert await shop.count_open("late") == 100
        await topology.bind("late")
        await shop.drained()
        await topology.move("late", to=None)
        shop.put("late", "free")
        await shop.drained("free")
        await until(lambda: _is_blocked(shop, times=2))
        assert await shop.count_open("late") == 100
        await topology.bind("late")
        await shop.drained()
    await shop.assert_nothing_was_paid()
    assert {"late" in address for address in shop.blocked} == {True}
    assert (shop.outages, len(await topology.taken())) == ([], 400)


async def _is_blocked(shop: Shop, *, times: int = 1) -> bool:
    return len(shop.blocked) >= times


async def test_mosquitto_with_a_denied_topic(shop: Shop) -> None:
    shop.put("denied/a", "open/a")
    with closing(private_mosquitto("acl_file {folder}/acl", files={"acl": "topic readwrite open/#"})) as broker:
        async with shop.relay(f"{broker.url}?topic={{topic}}&no_subscribers=accept"):
            await shop.drained("open/a")
            assert await shop.count_open("denied/a") == 100
            broker.write("acl", "topic readwrite #")
            await asyncio.to_thread(broker.reload)
            await shop.drained()
    await shop.assert_nothing_was_paid()
    assert shop.blocked == ["topic 'denied/a'"]


async def test_redis_without_memory(shop: Shop) -> None:
    """The server answers, and takes nothing for any stream."""
    shop.put("orders", "mails")
    with closing(await asyncio.to_thread(private_redis)) as server, closing(server.client()) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        async with shop.relay(f"{server.url}?key={{topic}}"):
            await until(lambda: _is_blocked(shop, times=2))
            assert await shop.count_open() == 200
            client.config_set("maxmemory", "0")
            await shop.drained()
        assert (client.xlen("orders"), client.xlen("mails")) == (100, 100)
    await shop.assert_nothing_was_paid()


class Throttling(Endpoint):
    """Answers 429 for some keys, with a time to come back."""

    def __init__(self) -> None:
        super().__init__()
        self.throttled: set[str] = set()
        self.refused = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("ce-partitionkey", "") in self.throttled:
            self.refused += 1
            return web.Response(status=429, headers={"retry-after": "1"})
        return await super()._handle(request)


async def test_a_webhook_that_throttles_a_third_of_the_keys(shop: Shop) -> None:
    endpoint = Throttling()
    endpoint.throttled = {f"orders-{number}" for number in range(0, 40, 3)}
    shop.put("orders", count=200)
    await endpoint.start()
    try:
        async with shop.relay(f"{endpoint.url}?allow_private=true"):
            await until(lambda: _has_taken(endpoint, 130))
            assert endpoint.refused < 14 * 20, "no more often than the endpoint asked for"
            endpoint.throttled.clear()
            await shop.drained()
    finally:
        await endpoint.stop()
    await shop.assert_nothing_was_paid()


async def _has_taken(endpoint: Endpoint, count: int) -> bool:
    return len(endpoint.taken) == count
