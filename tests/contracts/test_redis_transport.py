"""The contract on real servers: Redis and Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from itertools import count
from typing import Any, Literal

import msgspec
import pytest
import redis.asyncio as plain

from pillarbox.brokers.redis import RedisSettings, RedisTransport
from pillarbox.cloudevents import REDIS, CloudEvent, read
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.transport_contract import TransportContract, TransportHarness
from tests.support.redis_server import PrivateRedis, PrivateValkey, private_redis, private_valkey

_SETTINGS = ("--notify-keyspace-events", "Et", "--proto-max-bulk-len", "1mb", "--save", "")
_ADDED, _BARRIER = "__keyevent@0__:xadd", "barrier"
_LAST_ID = "18446744073709551615-18446744073709551615"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[PrivateRedis]:
    with closing(private_redis(*_SETTINGS)) as server:
        yield server


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with closing(private_valkey(*_SETTINGS)) as server:
        yield server


class Arrivals:
    """In which order entries were added to whatever stream, as the server itself tells."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._listening = client.pubsub()

    async def begin(self) -> None:
        await self._listening.subscribe(_ADDED, _BARRIER)
        await self.keys()

    async def keys(self) -> list[str]:
        """The streams of the entries that were added since the last call."""
        await self._client.publish(_BARRIER, "now")
        keys = []
        async for told in self._listening.listen():
            if told["type"] == "message" and told["channel"] == _BARRIER.encode():
                break
            if told["type"] == "message":
                keys.append(told["data"].decode())
        return keys

    async def end(self) -> None:
        await self._listening.aclose()


class RedisHarness(TransportHarness):
    """A stream for each message, so that one alone can be refused."""

    def __init__(self, proxy: FaultProxy, client: Any, settings: RedisSettings) -> None:
        self.transport = _Watched(settings, self)
        self.arrivals = Arrivals(client)
        self._proxy = proxy
        self._client = client
        self._numbers = count()
        self._last = ""
        self._arrived: list[str] = []
        self._is_full = False

    def fit(self, message: Message) -> Message:
        self._last = f"{next(self._numbers)}.{message.topic}"
        return msgspec.structs.replace(message, topic=self._last)

    async def received(self) -> Sequence[CloudEvent]:
        self._arrived += await self.arrivals.keys()
        entries = {key: iter(await self._client.xrange(key)) for key in set(self._arrived)}
        return [_event(next(entries[key])[1]) for key in self._arrived]

    async def refuse_next(self) -> None:
        """The stream has used up its ids."""
        self._arrived += await self.arrivals.keys()
        await self._client.xadd(self._last, {"in": "the way"}, id=_LAST_ID)
        await self.arrivals.keys()
        self._is_full = True

    async def refused(self) -> None:
        """Once is enough."""
        if self._is_full:
            await self._client.delete(self._last)
            self._is_full = False

    async def reject_next(self, message: Message) -> Message:
        return msgspec.structs.replace(message, payload=b"x" * (1024 * 1024 + 1))

    async def cut_next(self) -> None:
        self._proxy.cut_after(1)

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        self._proxy.heal()
        await self._proxy.up()

    async def hang(self) -> asyncio.Event:
        self._proxy.hang()
        self._proxy.requested.clear()
        return self._proxy.requested


def _event(fields: dict[bytes, bytes]) -> CloudEvent:
    headers = {name.decode(): value for name, value in fields.items() if name != b"data"}
    return read(headers, fields[b"data"], binding=REDIS)


class _Watched(RedisTransport):
    """Tells the harness when a message was refused."""

    def __init__(self, settings: RedisSettings, harness: RedisHarness) -> None:
        super().__init__(settings)
        self._harness = harness

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = await super().send(messages)
        if not all(outcome.delivered for outcome in outcomes):
            await self._harness.refused()
        return outcomes


@asynccontextmanager
async def _opened(
    server: PrivateRedis, *, mode: Literal["binary", "structured"] = "binary", durability: str = "none"
) -> AsyncIterator[RedisHarness]:
    async with (
        aclosing(plain.Redis(port=server.port, protocol=2)) as client,
        FaultProxy("127.0.0.1", server.port) as proxy,
    ):
        await client.flushall()
        settings = RedisSettings(url=f"redis://{proxy.host}:{proxy.port}", mode=mode, durability=durability)
        harness = RedisHarness(proxy, client, settings)
        try:
            await harness.arrivals.begin()
            await harness.transport.open()
            yield harness
        finally:
            await harness.transport.close()
            await harness.arrivals.end()


class TestRedisTransport(TransportContract):
    @pytest.fixture
    async def harness(self, redis_server: PrivateRedis) -> AsyncIterator[RedisHarness]:
        async with _opened(redis_server) as harness:
            yield harness


class TestStructuredRedisTransport(TransportContract):
    @pytest.fixture
    async def harness(self, redis_server: PrivateRedis) -> AsyncIterator[RedisHarness]:
        async with _opened(redis_server, mode="structured") as harness:
            yield harness


class TestValkeyTransport(TransportContract):
    @pytest.fixture
    async def harness(self, valkey: PrivateValkey) -> AsyncIterator[RedisHarness]:
        async with _opened(valkey) as harness:
            yield harness


class TestSyncedValkeyTransport(TransportContract):
    """Every message on disk before it counts."""

    @pytest.fixture
    async def harness(self, valkey: PrivateValkey) -> AsyncIterator[RedisHarness]:
        async with _opened(valkey, durability="waitaof") as harness:
            yield harness
