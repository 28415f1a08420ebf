"""The Redis receiver keeps the contract on real servers: Redis and Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis.asyncio as plain

from pillarbox.brokers.redis import RedisReceiver, RedisReceiverSettings, RedisSettings, RedisTransport
from pillarbox.contracts.receiver import Receiver
from pillarbox.message import Message
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness
from tests.support.redis_server import PrivateRedis, PrivateValkey, private_redis, private_valkey

_STREAM = "contract"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[PrivateRedis]:
    with closing(private_redis("--save", "")) as server:
        yield server


@pytest.fixture(scope="module")
def valkey() -> Iterator[PrivateValkey]:
    with closing(private_valkey("--save", "")) as server:
        yield server


class RedisHarness(ReceiverHarness):
    """The receiver declares its stream and group itself."""

    def __init__(self, server: PrivateRedis, client: Any, proxy: FaultProxy, *, closing: AsyncExitStack) -> None:
        self._client = client
        self._proxy = proxy
        self._closing = closing
        self._url = server.url
        # Long enough for a busy machine to say that it lives, and short enough to wait for.
        self._settings = RedisReceiverSettings(
            url=server.url, stream=_STREAM, group="contract", declare=True, claim_after=timedelta(seconds=5)
        )
        self.transport = RedisTransport(RedisSettings(url=server.url, key=_STREAM))
        self.receiver = self._made(f"redis://{proxy.host}:{proxy.port}")

    async def publish(self, message: Message) -> None:
        (outcome,) = await self.transport.send([message])
        assert outcome.delivered

    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        await self._client.xadd(_STREAM, {**headers, "data": body})

    async def open_another(self) -> Receiver:
        other = self._made(self._url)
        await other.open()
        return other

    async def die(self) -> None:
        self._proxy.cut()

    async def go_down(self) -> None:
        await self._proxy.down()

    async def come_back(self) -> None:
        await self._proxy.up()

    def _made(self, url: str) -> RedisReceiver:
        receiver = RedisReceiver(msgspec.structs.replace(self._settings, url=url))
        self._closing.push_async_callback(receiver.close)
        return receiver


@asynccontextmanager
async def _opened(server: PrivateRedis) -> AsyncIterator[RedisHarness]:
    async with (
        aclosing(plain.Redis(port=server.port, protocol=2)) as client,
        FaultProxy("127.0.0.1", server.port) as proxy,
        AsyncExitStack() as closing,
    ):
        await client.flushall()
        harness = RedisHarness(server, client, proxy, closing=closing)
        closing.push_async_callback(harness.transport.close)
        await harness.transport.open()
        await harness.receiver.open()
        yield harness


class TestRedisReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self, redis_server: PrivateRedis) -> AsyncIterator[RedisHarness]:
        async with _opened(redis_server) as harness:
            yield harness


class TestValkeyReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self, valkey: PrivateValkey) -> AsyncIterator[RedisHarness]:
        async with _opened(valkey) as harness:
            yield harness
