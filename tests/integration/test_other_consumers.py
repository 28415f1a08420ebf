"""Consumers that know nothing of Pillarbox read what it sends to NATS and Redis."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from faststream.nats import JStream, NatsBroker
from faststream.nats.annotations import NatsMessage
from nats.js.api import DeliverPolicy

from pillarbox.brokers.factory import transport_from_url
from pillarbox.testing.samples import sample
from tests.support.nats_server import NatsServer, stream_at
from tests.support.redis_server import RedisServer
from tests.support.servers import found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


async def test_faststream_reads_body_id_and_headers(url: str) -> None:
    got: asyncio.Queue[tuple[dict[str, int], dict[str, str]]] = asyncio.Queue()
    async with stream_at(url) as stream:
        broker = NatsBroker(url)

        @broker.subscriber(
            f"{stream.name}.orders", stream=JStream(stream.name, declare=False), deliver_policy=DeliverPolicy.ALL
        )
        async def handle(body: dict[str, int], message: NatsMessage) -> None:
            await got.put((body, dict(message.headers)))

        message = sample(
            topic=f"{stream.name}.orders", key="customer 1", payload=b'{"order_id": 7}', headers={"tenant": "shop-1"}
        )
        transport = transport_from_url(url)
        await transport.open()
        await transport.send([message])
        await transport.close()
        async with broker:
            await broker.start()
            body, headers = await asyncio.wait_for(got.get(), 30)
    assert body == {"order_id": 7}
    assert headers["Nats-Msg-Id"] == headers["ce-id"] == str(message.message_id)
    assert headers["ce-type"] == "orders.placed"
    assert headers["ce-partitionkey"] == "customer%201"
    assert headers["ce-correlationid"] == message.correlation_id
    assert headers["tenant"] == "shop-1"
    assert headers["content-type"] == "application/json"


async def test_a_consumer_group_reads_body_id_and_fields() -> None:
    key = f"pillarbox-test-{secrets.token_hex(6)}"
    message = sample(topic=key, key="zákazník 1", payload=b'{"order_id": 7}', headers={"tenant": "shop-1"})
    with found(RedisServer(), environ=os.environ) as url:
        plain: Any = redis.Redis.from_url(url, protocol=2)
        with closing(plain) as client:
            client.xgroup_create(key, "mail", id="0", mkstream=True)
            transport = transport_from_url(url)
            await transport.open()
            await transport.send([message])
            await transport.close()
            ((_, ((entry, fields),)),) = client.xreadgroup("mail", "me", {key: ">"})
            assert client.xack(key, "mail", entry) == 1
            client.delete(key)
    assert fields[b"data"] == b'{"order_id": 7}'
    assert fields[b"ce-id"].decode() == str(message.message_id)
    assert fields[b"ce-type"] == b"orders.placed"
    assert fields[b"ce-partitionkey"].decode() == "zákazník 1"
    assert fields[b"ce-correlationid"].decode() == message.correlation_id
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"tenant"] == b"shop-1"
