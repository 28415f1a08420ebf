"""Topics that would reach what belongs to a broker or to others: the message fails, its neighbours arrive."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import aclosing

import aiormq
import pytest
import redis.asyncio as plain

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message
from pillarbox.testing.samples import sample
from tests.support.kafka_cluster import KafkaCluster
from tests.support.mqtt_server import MqttServer
from tests.support.nats_server import NatsServer, stream_at
from tests.support.rabbitmq_server import found_rabbitmq
from tests.support.redis_server import RedisServer
from tests.support.servers import found


async def send(url: str, messages: list[Message], **options: object) -> list[Outcome]:
    transport = transport_from_url(url, options=options)
    await transport.open()
    try:
        return list(await transport.send(messages))
    finally:
        await transport.close()


def check(outcomes: list[Outcome], *, rejected: set[int]) -> None:
    """Check that these are rejected with a reason, and all others delivered."""
    for index, outcome in enumerate(outcomes):
        assert outcome.rejected is (index in rejected), outcome
        assert outcome.delivered is (index not in rejected), outcome
        assert bool(outcome.error) is (index in rejected)


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


async def test_a_topic_cannot_purge_a_stream_of_nats(nats_url: str) -> None:
    async with stream_at(nats_url) as stream:
        name = stream.name
        topics = [
            f"{name}.1", f"$JS.API.STREAM.PURGE.{name}", f"{name}.2", f"$JS.API.STREAM.DELETE.{name}", "_INBOX.x.1",
            f"{name}.*", f"{name}. 3", f"{name}..3", f"{name}.4",
        ]  # fmt: skip
        check(await send(nats_url, [sample(topic=topic, key=None) for topic in topics]), rejected={1, 3, 4, 5, 6, 7})
        assert [one.subject for one in await stream.messages()] == [f"{name}.{number}" for number in (1, 2, 4)]


async def test_a_topic_reaches_no_private_queue_of_rabbitmq() -> None:
    with found_rabbitmq() as url:
        connection = await aiormq.connect(url)
        try:
            channel = await connection.channel()
            private = (await channel.queue_declare(exclusive=True)).queue
            ours = (await channel.queue_declare(f"pillarbox-{secrets.token_hex(6)}", exclusive=True)).queue
            assert private
            assert ours
            assert private.startswith("amq.gen-")
            messages = [
                sample(topic=ours), sample(topic=private), sample(topic=""), sample(topic="x" * 256),
                sample(topic=ours, headers={"CC": private}), sample(topic=ours),
            ]  # fmt: skip
            check(await send(url, messages, exchange=""), rejected={1, 2, 3, 4})
            counts = [(await channel.queue_declare(name, passive=True)).message_count for name in (private, ours)]
            assert counts == [0, 2]
            # An empty topic as the exchange would be the default exchange: any queue.
            hostile = [sample(topic="", key=private), sample(topic="amq.direct", key=private)]
            check(await send(url, hostile, exchange="{topic}", routing_key="{key}"), rejected={0, 1})
        finally:
            await connection.close()


async def test_a_topic_reaches_nothing_of_the_mqtt_broker() -> None:
    with found(MqttServer(), environ=os.environ) as url:
        prefix = f"pillarbox-{secrets.token_hex(6)}"
        topics = [prefix, "$SYS/broker/version", "$share/g/a", f"{prefix}/+", f"{prefix}/#", f"{prefix}\x00", prefix]
        outcomes = await send(url, [sample(topic=topic, key=None) for topic in topics], no_subscribers="accept")
        check(outcomes, rejected={1, 2, 3, 4, 5})


async def test_a_topic_changes_no_other_key_of_redis() -> None:
    with found(RedisServer(), environ=os.environ) as url:
        prefix = f"pillarbox-{secrets.token_hex(6)}"
        async with aclosing(plain.Redis.from_url(url, protocol=2)) as client:
            await client.set(f"{prefix}:session", "kept", ex=60)
            topics = [f"{prefix}:a", f"{prefix}:session", "", "a\r\nFLUSHALL", f"{prefix}:a"]
            try:
                first, session, *others = await send(url, [sample(topic=topic, key=None) for topic in topics])
                check([first, *others], rejected={1, 2})
                # The key of something else blocks this topic alone, and fails no message.
                assert (session.missing, session.rejected, session.delivered) == (True, False, False)
                assert await client.get(f"{prefix}:session") == b"kept"
                assert await client.xlen(f"{prefix}:a") == 2
            finally:
                await client.delete(f"{prefix}:a", f"{prefix}:session")


async def test_a_topic_reaches_no_internal_topic_of_kafka() -> None:
    with KafkaCluster() as cluster:
        for topic in ("orders", "__consumer_offsets"):
            cluster.create(topic, partitions=1)
        topics = ["orders", "__consumer_offsets", "two words", "", "..", "x" * 250, "orders"]
        outcomes = await send(cluster.url, [sample(topic=topic, key=None) for topic in topics])
        check(outcomes, rejected={1, 2, 3, 4, 5})
