"""An exchange with queues behind it, used by one test alone, and a plain client to read them with."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import aio_pika
import aio_pika.abc
import aiormq
import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.rabbitmq import RabbitmqTransport
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.fault_proxy import FaultProxy

__all__ = ["Topology", "opened", "proxied", "refusal", "transport_at"]


def transport_at(url: str, **options: object) -> RabbitmqTransport:
    """A transport, not open yet."""
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, RabbitmqTransport)
    return transport


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RabbitmqTransport]:
    """A transport, open while the block runs."""
    transport = transport_at(url, **options)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def refusal(url: str, **options: object) -> str:
    """Why it cannot be opened."""
    with pytest.raises(TransportUnavailable) as error:
        await transport_at(url, **options).open()
    return str(error.value)


def proxied(url: str, proxy: FaultProxy) -> str:
    """The same by way of the proxy."""
    parts = urlsplit(url)
    login = f"{parts.username}:{parts.password}@" if parts.username else ""
    return parts._replace(netloc=f"{login}{proxy.host}:{proxy.port}").geturl()


class Topology:
    """A durable topic exchange and a durable queue, `exchange` and `queue`; removed when the block ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.exchange = f"pillarbox-test-{secrets.token_hex(6)}"
        self.queue = self.exchange
        self.channel: aio_pika.abc.AbstractChannel
        self._queues: list[str] = []
        self._bound: dict[str, str] = {}
        """By routing key, the queue that it leads to."""

    @classmethod
    @asynccontextmanager
    async def declared(cls, url: str) -> AsyncIterator[Self]:
        topology = cls(url)
        await topology.connect()
        try:
            await topology.declare_exchange()
            await topology.declare_queue(topology.queue)
            yield topology
        finally:
            await topology._remove()

    async def connect(self) -> None:
        """Also again, after `disconnect`."""
        self._connection = await aio_pika.connect(self.url)
        self.channel = await self._connection.channel()

    async def disconnect(self) -> None:
        """Before the server is ended: this client does not like to be left alone."""
        await self._connection.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 5672

    async def declare_exchange(self, **arguments: aiormq.abc.FieldValue) -> None:
        kind = aio_pika.ExchangeType.TOPIC
        await self.channel.declare_exchange(self.exchange, kind, durable=True, arguments=arguments)

    async def declare_queue(
        self, name: str, arguments: Mapping[str, aiormq.abc.FieldValue] | None = None, *, durable: bool = True
    ) -> None:
        await self.channel.declare_queue(name, durable=durable, arguments=dict(arguments or {}))
        self._queues.append(name)

    async def small_queue(self, room: int) -> str:
        """A queue that refuses what is above its room."""
        name = f"{self.queue}-{len(self._queues)}"
        await self.declare_queue(name, {"x-max-length": room, "x-overflow": "reject-publish"})
        return name

    async def bind(self, routing_key: str, queue: str | None = None) -> None:
        """Lead messages to the queue."""
        self._bound[routing_key] = queue or self.queue
        await (await self.channel.get_queue(self._bound[routing_key])).bind(self.exchange, routing_key)

    async def move(self, routing_key: str, *, to: str | None) -> None:
        """Lead them to another queue, or nowhere. In between they go to both."""
        before = self._bound.pop(routing_key)
        if to is not None:
            await self.bind(routing_key, to)
        await (await self.channel.get_queue(before)).unbind(self.exchange, routing_key)

    async def taken(self, queue: str | None = None) -> Sequence[aio_pika.abc.AbstractIncomingMessage]:
        """Take out all that arrived, in order, of one queue or of all of them."""
        found = []
        for name in self._queues if queue is None else [queue]:
            place = await self.channel.get_queue(name)
            while (message := await place.get(no_ack=True, fail=False)) is not None:
                found.append(message)
        return found

    async def _remove(self) -> None:
        channel = await self._connection.channel()  # the test may have lost its own
        for queue in self._queues:
            await channel.queue_delete(queue)
        await channel.exchange_delete(self.exchange)
        await self.disconnect()
