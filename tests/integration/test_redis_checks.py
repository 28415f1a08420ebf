"""What the Redis transport finds on servers that can lose messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.redis import RedisTransport
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.transport import Inspector
from tests.support.redis_server import PrivateRedis, private_redis, private_valkey

SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory": "0", "maxmemory-policy": "noeviction"}


@pytest.fixture(scope="module", params=[private_redis, private_valkey], ids=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateRedis]:
    with closing(request.param("--save", "")) as server:
        yield server


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[Any]:
    with closing(server.client()) as client:
        client.flushall()
        for name, value in SAFE.items():
            client.config_set(name, value)
        yield client


async def inspected(url: str, *topics: str, **options: object) -> dict[str, Severity]:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, RedisTransport)
    assert isinstance(transport, Inspector)
    await transport.open()
    try:
        return {finding.code: finding.severity for finding in await transport.inspect(topics=topics)}
    finally:
        await transport.close()


async def test_a_safe_server(server: PrivateRedis, client: Any) -> None:
    assert await inspected(server.url, "orders") == {}


@pytest.mark.parametrize(
    ("settings", "code", "severity"),
    [
        ({"appendfsync": "no"}, "redis.appendfsync-no", Severity.WARNING),
        ({"appendfsync": "everysec"}, "redis.appendfsync-everysec", Severity.WARNING),
        ({"appendonly": "no"}, "redis.no-persistence", Severity.WARNING),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "redis.eviction", Severity.CRITICAL),
    ],
)
async def test_a_server_that_can_lose(
    server: PrivateRedis, client: Any, settings: dict[str, str], code: str, severity: Severity
) -> None:
    for name, value in settings.items():
        client.config_set(name, value)
    assert await inspected(server.url, "orders") == {code: severity}


async def test_what_waits_for_the_disk_is_safe_every_second(server: PrivateRedis, client: Any) -> None:
    client.config_set("appendfsync", "everysec")
    assert await inspected(server.url, "orders", durability="waitaof") == {}


async def test_snapshots_alone(server: PrivateRedis, client: Any) -> None:
    client.config_set("appendonly", "no")
    client.config_set("save", "3600 1")
    assert await inspected(server.url) == {"redis.snapshots-only": Severity.WARNING}
    client.config_set("save", "")


async def test_keys_that_are_not_in_order(server: PrivateRedis, client: Any) -> None:
    client.set("text", "x")
    client.xadd("mortal", {"a": "b"})
    client.expire("mortal", 1000)
    assert await inspected(server.url, "text") == {"redis.wrong-type": Severity.CRITICAL}
    assert await inspected(server.url, "mortal") == {"redis.stream-expires": Severity.CRITICAL}
    assert await inspected(server.url, "missing", create=False) == {"redis.no-stream": Severity.CRITICAL}
    assert await inspected(server.url, "missing") == {}


async def test_options_that_can_lose(server: PrivateRedis, client: Any) -> None:
    assert await inspected(server.url, maxlen=10) == {"redis.maxlen": Severity.WARNING}
    assert await inspected(server.url, "a", key="x:{key}") == {"redis.streams-unknown": Severity.INFO}


async def test_what_this_login_may_not_see(server: PrivateRedis, client: Any) -> None:
    client.execute_command("ACL", "SETUSER", "blind", "on", ">p", "~*", "+@all", "-config")
    url = f"redis://blind:p@127.0.0.1:{server.port}"
    assert await inspected(url, "orders") == {"redis.settings-unseen": Severity.INFO}


async def test_replicas() -> None:
    with (
        closing(private_redis()) as master,
        closing(private_redis("--replicaof", "127.0.0.1", str(master.port))) as replica,
        closing(master.client()) as client,
    ):
        assert (await inspected(replica.url))["redis.replica"] is Severity.CRITICAL
        async with asyncio.timeout(30):
            while not client.info("replication")["connected_slaves"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await inspected(master.url))["redis.min-replicas"] is Severity.WARNING
        client.config_set("min-replicas-to-write", "1")
        assert "redis.min-replicas" not in await inspected(master.url)
