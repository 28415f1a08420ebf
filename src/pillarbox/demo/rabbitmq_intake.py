"""The consumer at RabbitMQ: a queue of the demo's own, read with a plain client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pillarbox.cloudevents import AMQP, read
from pillarbox.demo.intakes import Taker, reaching, take
from pillarbox.demo.line import Line, broker_line, new_name
from pillarbox.errors import MissingExtra

try:
    import aio_pika
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
    from aio_pika.exceptions import AMQPError
except ModuleNotFoundError as error:
    raise MissingExtra("aio-pika", extra="rabbitmq", needed_for="The demo over RabbitMQ") from error

__all__ = ["RabbitmqIntake", "rabbitmq_line"]

_PREFETCH: Final = 50
"""What is in the consumer's hands when it is killed goes back to its place in the queue."""
_CONNECT_WITHIN: Final = 10.0


def rabbitmq_line(url: str) -> Line:
    """To an exchange and a queue of one new name."""
    name = new_name()
    return broker_line("rabbitmq", url, name=name, options={"exchange": name, "routing_key": "{topic}"})


class RabbitmqIntake:
    """A durable queue that gets everything from a durable exchange."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def prepare(self) -> None:
        async with self._channel() as channel:
            exchange = await channel.declare_exchange(self._line.name, aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue(self._line.name, durable=True)
            await queue.bind(exchange, "#")

    async def remove(self) -> None:
        async with self._channel() as channel:
            await channel.queue_delete(self._line.name)
            await channel.exchange_delete(self._line.name)

    async def is_ready(self) -> bool:
        """Always: the queue keeps what comes."""
        return True

    async def serve(self, taker: Taker) -> None:
        async with self._channel() as channel:
            await channel.set_qos(prefetch_count=_PREFETCH)
            queue = await channel.get_queue(self._line.name)
            async with queue.iterator() as arrivals:
                async for arrival in arrivals:
                    take(taker, read(_headers(arrival), arrival.body, binding=AMQP))
                    await arrival.ack()

    @asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        with reaching(self._line, AMQPError):
            connection = await aio_pika.connect(self._line.at, timeout=_CONNECT_WITHIN)
            async with connection:
                yield await connection.channel()


def _headers(arrival: AbstractIncomingMessage) -> dict[str, object]:
    return {**arrival.headers, "content-type": arrival.content_type}
