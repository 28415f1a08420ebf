"""Receivers hold a bounded number of bytes, and their connections stay alive meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import aio_pika
import pytest
import redis.asyncio as plain

from pillarbox.brokers.rabbitmq import RabbitmqReceiver, RabbitmqReceiverSettings
from pillarbox.brokers.rabbitmq import connection as rabbitmq_connection
from pillarbox.brokers.redis import RedisReceiver, RedisReceiverSettings
from pillarbox.testing.receiver_contract import take
from tests.support.rabbitmq_topology import Topology
from tests.support.redis_server import PrivateRedis, private_redis

SIZE = 1024 * 1024
COUNT = 24


@pytest.fixture
async def topology(rabbitmq_url: str) -> AsyncIterator[Topology]:
    async with Topology.declared(rabbitmq_url) as topology:
        await topology.bind("#")
        yield topology


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with closing(private_redis("--save", "")) as server:
        yield server


def rabbitmq_at(topology: Topology, *, pending_bytes: int, **options: object) -> RabbitmqReceiver:
    settings = RabbitmqReceiverSettings(url=topology.url, queue=topology.queue, **options)  # type: ignore[arg-type]
    receiver = RabbitmqReceiver(settings)
    receiver.pending_bytes = pending_bytes
    return receiver


async def put(topology: Topology, bodies: list[bytes]) -> None:
    exchange = await topology.channel.get_exchange(topology.exchange)
    for number, body in enumerate(bodies):
        await exchange.publish(aio_pika.Message(body, message_id=str(number)), "plain")


@pytest.mark.parametrize("single_active", [False, True])
async def test_rabbitmq_does_not_read_more_than_fits(topology: Topology, single_active: bool) -> None:
    await put(topology, [b"x" * SIZE] * COUNT)
    receiver = rabbitmq_at(topology, pending_bytes=4 * SIZE, single_active=single_active)
    await receiver.open()
    try:
        ids: list[str] = []
        while len(ids) < COUNT:
            (received,) = await take(receiver, 1)
            await receiver.ping()
            ids.append(received.fallback.message_id)
            await receiver.acknowledge(received)
        assert ids == [str(number) for number in range(COUNT)]
        assert SIZE <= receiver._held.highest <= 5.5 * SIZE
    finally:
        await receiver.close()


async def test_large_messages_after_small_ones_do_not_exceed_the_bound(topology: Topology) -> None:
    """The prefetch has grown to hundreds by then."""
    await put(topology, [b"x"] * 600)
    receiver = rabbitmq_at(topology, pending_bytes=4 * SIZE)
    await receiver.open()
    try:
        for received in await take(receiver, 600):
            await receiver.acknowledge(received)
        assert receiver._prefetch._count > 100
        await put(topology, [b"x" * SIZE] * COUNT)
        for received in await take(receiver, 4):
            assert len(received.body) == SIZE
            await receiver.acknowledge(received)
        for _ in range(COUNT - 4):
            (received,) = await take(receiver, 1)
            await receiver.acknowledge(received)
    finally:
        highest, count = receiver._held.highest, receiver._prefetch._count
        await receiver.close()
    assert highest <= 5.5 * SIZE
    assert count <= 4


async def test_a_connection_that_is_not_read_is_not_given_up(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_connection, "_HEARTBEAT", 1)
    await put(topology, [b"x" * SIZE] * COUNT)
    receiver = rabbitmq_at(topology, pending_bytes=SIZE, single_active=True)
    await receiver.open()
    try:
        (received,) = await take(receiver, 1)
        consumer, _ = received.token
        assert consumer.connection.is_paused
        await asyncio.sleep(3.5)  # longer than the two intervals of silence after which a broker is given up
        assert consumer.reason is None
        await receiver.ping()  # over another connection: the answer would stand behind the messages
        await receiver.acknowledge(received)
        (again,) = await take(receiver, 1)
        assert again.fallback.message_id == "1"
        assert again.token[0] is consumer
    finally:
        await receiver.close()


async def test_small_messages_get_the_whole_prefetch(topology: Topology) -> None:
    await put(topology, [b"x"] * 1_000)
    receiver = rabbitmq_at(topology, pending_bytes=4 * SIZE)
    await receiver.open()
    try:
        taken = await take(receiver, 1_000, limit=1_000)
        assert [one.fallback.message_id for one in taken] == [str(number) for number in range(1_000)]
        assert not any(one.redelivered for one in taken)
    finally:
        await receiver.close()


@pytest.mark.parametrize("may_run_scripts", [True, False])
async def test_redis_does_not_read_more_than_fits(server: PrivateRedis, may_run_scripts: bool) -> None:
    client: Any
    async with plain.Redis(port=server.port) as client:
        await client.flushall()
        rights = "+@all" if may_run_scripts else "-eval"
        await client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", rights)
        await client.xgroup_create("orders", "g", "0", mkstream=True)
        for _ in range(COUNT):
            await client.xadd("orders", {"data": b"x" * SIZE})
        receiver = RedisReceiver(
            RedisReceiverSettings(url=f"redis://reader:secret@127.0.0.1:{server.port}", stream="orders", group="g")
        )
        receiver.pending_bytes = 4 * SIZE
        await receiver.open()
        try:
            ids: list[str] = []
            while len(ids) < COUNT:
                taken = await receiver.receive(limit=200)
                pending = await client.xpending("orders", "g")
                assert pending["pending"] <= 5
                for received in taken:
                    ids.append(received.fallback.message_id)
                    await receiver.acknowledge(received)
            assert len(set(ids)) == COUNT
            assert receiver._held.highest <= 5.5 * SIZE
        finally:
            await receiver.close()


async def test_redis_takes_over_large_entries_one_after_the_other(server: PrivateRedis) -> None:
    """Of a consumer that died, and of its own name."""
    client: Any
    async with plain.Redis(port=server.port) as client:
        for name in ("other", "own"):
            await client.flushall()
            await client.xgroup_create("orders", "g", "0", mkstream=True)
            for _ in range(COUNT):
                await client.xadd("orders", {"data": b"x" * SIZE})
            await client.xreadgroup("g", name, {"orders": ">"}, count=COUNT)
            if name == "other":
                ids = [entry["message_id"] for entry in await client.xpending_range("orders", "g", "-", "+", COUNT)]
                await client.xclaim("orders", "g", name, 0, ids, idle=1_000_000, justid=True)
            receiver = RedisReceiver(
                RedisReceiverSettings(
                    url=f"redis://127.0.0.1:{server.port}", stream="orders", group="g", consumer="own"
                )
            )
            receiver.pending_bytes = 4 * SIZE
            await receiver.open()
            try:
                for received in await take(receiver, 4):
                    assert received.redelivered
                    await receiver.acknowledge(received)
                rest = 4
                while rest < COUNT:
                    for received in await take(receiver, 1):
                        rest += 1
                        await receiver.acknowledge(received)
                assert receiver._held.highest <= 5.5 * SIZE
            finally:
                await receiver.close()
