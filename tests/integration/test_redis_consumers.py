"""A consumer that knows nothing of Pillarbox reads what it adds to Redis."""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from typing import Any

import redis

from pillarbox.brokers.factory import transport_from_url
from pillarbox.testing.samples import sample
from tests.support.redis_server import RedisServer
from tests.support.servers import found


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
