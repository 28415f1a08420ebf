"""RabbitMQ: aio-pika's publishes with confirms, all of a window sent before the first confirm is awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from secrets import token_hex
from typing import Final

import aio_pika
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractQueue

from benchmarks.brokers.broker import Row, make_attribute_builder
from benchmarks.brokers.runner import measure
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport

__all__ = ["URL", "Rabbitmq", "rabbitmq"]

URL: Final = os.environ.get("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672/")
_attributes: Final = make_attribute_builder("cloudEvents:")


class Rabbitmq:
    """An exchange of its own, and a durable queue behind it."""

    name = "rabbitmq"
    messages = 10_000

    def __init__(self) -> None:
        self._name = f"pillarbox-bench-{token_hex(4)}"
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None
        self._queue: AbstractQueue | None = None

    @property
    def exchange(self) -> str:
        return self._name

    async def open(self) -> None:
        self._connection = await aio_pika.connect(URL)
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._exchange = await channel.declare_exchange(self._name, ExchangeType.TOPIC, durable=True)
        self._queue = await channel.declare_queue(self._name, durable=True)
        await self._queue.bind(self._exchange, "#")

    async def close(self) -> None:
        assert self._connection is not None
        assert self._exchange is not None
        assert self._queue is not None
        await self._queue.delete(if_unused=False, if_empty=False)
        await self._exchange.delete()
        await self._connection.close()

    async def send(self, rows: Sequence[Row]) -> None:
        await asyncio.gather(*(self._publish(row) for row in rows))

    async def _publish(self, row: Row) -> None:
        assert self._exchange is not None
        message = Message(
            row.payload,
            headers=_attributes(row),  # type: ignore[arg-type]
            content_type=row.content_type,
            delivery_mode=DeliveryMode.PERSISTENT,
            message_id=str(row.message_id),
            correlation_id=row.correlation_id,
            type=row.type,
            timestamp=row.event_time,
        )
        await self._exchange.publish(message, row.topic, mandatory=True, timeout=10)

    async def empty(self) -> None:
        assert self._queue is not None
        await self._queue.purge()

    def transport(self) -> Transport:
        return transport_from_url(f"{URL}?exchange={self._name}")


async def rabbitmq() -> None:
    """`rabbitmq`."""
    await measure(Rabbitmq())
