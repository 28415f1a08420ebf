"""A queue for one consumer at a time: what a dead one had comes to the next, before what is newer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aio_pika
import pytest

from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.rabbitmq import RabbitmqReceiver
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.receiver_contract import take
from tests.support.rabbitmq_topology import Topology, proxied


@pytest.fixture
async def topology(rabbitmq_url: str) -> AsyncIterator[Topology]:
    async with Topology.declared(rabbitmq_url) as topology, AsyncExitStack() as removing:
        removing.push_async_callback(topology.channel.queue_delete, f"{topology.queue}-own")
        yield topology


def receiver_at(url: str, topology: Topology) -> RabbitmqReceiver:
    options = {
        "queue": f"{topology.queue}-own", "exchange": topology.exchange, "declare": True, "single_active": True,
    }  # fmt: skip
    receiver = receiver_from_url(url, options=options)
    assert isinstance(receiver, RabbitmqReceiver)
    return receiver


async def put(topology: Topology, *numbers: int) -> None:
    exchange = await topology.channel.get_exchange(topology.exchange)
    for number in numbers:
        await exchange.publish(aio_pika.Message(str(number).encode()), "plain")


async def test_what_a_dead_consumer_had_comes_before_what_is_newer_to_one_that_waits(topology: Topology) -> None:
    """Both are there when messages come: a queue without the option would give some of them to each."""
    server = urlsplit(topology.url)
    async with FaultProxy(server.hostname or "127.0.0.1", server.port or 5672) as proxy:
        dead, other = receiver_at(proxied(topology.url, proxy), topology), receiver_at(topology.url, topology)
        await dead.open()
        await other.open()
        try:
            await put(topology, *range(1, 6))
            await take(dead, 5)
            await proxy.down()
            await put(topology, *range(6, 11))
            came = await take(other, 10)
        finally:
            await other.close()
            await dead.close()
    assert [int(received.body) for received in came] == list(range(1, 11))
