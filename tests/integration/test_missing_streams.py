"""A stream that is missing costs no message anything, however long it takes somebody to create it.

Not even beside another that is there, and whose messages get through.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox import Outbox, Route, Routes
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.store import Selection, Store
from pillarbox.message import Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry
from tests.support.nats_server import private_nats, stream_named
from tests.support.redis_server import private_redis

KEYS, EACH = 5, 4
SERVED = DestinationSettings(name="broker", retry=RetryPolicy(attempts=1))
"""One attempt spent is one message failed."""
QUICK = RelaySettings(poll_interval=timedelta(milliseconds=50))
PATIENCE = 60.0
Create = Callable[[str], Awaitable[None]]


@asynccontextmanager
async def _nats() -> AsyncIterator[tuple[str, Create]]:
    with closing(await asyncio.to_thread(private_nats)) as server:

        async def create(name: str) -> None:
            async with stream_named(server.url, name):
                pass

        yield f"{server.url}?subject={{topic}}.new", create


@asynccontextmanager
async def _redis() -> AsyncIterator[tuple[str, Create]]:
    with closing(await asyncio.to_thread(private_redis)) as server, closing(server.client()) as client:

        async def create(name: str) -> None:
            client.xgroup_create(name, "group", mkstream=True)

        yield f"{server.url}?create=false", create


class Troubles(Telemetry):
    """What the relay says of the destination."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        assert is_missing
        self.reasons.append(reason)


@pytest.mark.parametrize("broker", [_nats, _redis], ids=["nats", "redis"])
async def test_its_messages_wait_until_the_stream_is_there(
    broker: Callable[[], AbstractAsyncContextManager[tuple[str, Create]]], tmp_path: Path
) -> None:
    path, failures = tmp_path / "outbox.db", Troubles()
    await _publish(path)
    async with broker() as (url, create), _opened(path) as store:
        await create("there")
        relay = Relay(
            SqliteStore(path),
            [Destination(lambda: transport_from_url(url), SERVED)],
            settings=QUICK,
            telemetry=failures,
        )
        async with relay, asyncio.timeout(PATIENCE):
            while await _open(store, topic="there") or not failures.reasons:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert "no stream" in failures.reasons[0].lower()
            assert await _open(store, topic="missing")
            await create("missing")
            while await _open(store, topic="missing"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        messages = await store.find(Selection(), limit=1_000)
    assert [(message.state, message.attempts) for message in messages] == [(State.DELIVERED, 0)] * (2 * KEYS * EACH)


async def _open(store: Store, *, topic: str) -> bool:
    selection = Selection(states=[State.PENDING, State.SENDING], topic=topic)
    return bool(await store.find(selection, limit=1, payloads=False))


@asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Store]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _publish(path: Path) -> None:
    await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
    outbox = Outbox(routes=Routes([Route(to=["broker"])]), source="/shop")
    with closing(sqlite3.connect(path)) as connection:
        for number in range(KEYS * EACH):
            for topic in ("there", "missing"):
                key = f"{topic}-{number % KEYS}"
                outbox.publish(connection, {"number": number}, type="orders.placed", topic=topic, key=key)
        connection.commit()
