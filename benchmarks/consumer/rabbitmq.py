"""RabbitMQ: aio-pika's consumer with manual acknowledgement."""

from __future__ import annotations

from typing import Final

import aio_pika

from benchmarks.brokers.rabbitmq import URL, Rabbitmq
from benchmarks.consumer.runner import Handle, Workers, build_orders, measure
from pillarbox.brokers.factory import receiver_from_url
from pillarbox.contracts.receiver import Receiver

__all__ = ["rabbitmq"]

_PREFETCH: Final = 200
"""The receiver's default."""


class RabbitmqSource(Rabbitmq):
    """A durable queue."""

    async def fill(self, messages: int) -> None:
        await self.empty()
        await self.send(build_orders(messages))

    def receiver(self) -> Receiver:
        return receiver_from_url(URL, options={"queue": self._name})

    async def bare(self, handle: Handle, *, messages: int, concurrency: int) -> None:
        async def handle_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await handle(message.body)
            await message.ack()

        connection = await aio_pika.connect(URL)
        async with connection, Workers(handle_message, messages=messages, concurrency=concurrency) as workers:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=_PREFETCH)
            queue = await channel.get_queue(self._name)
            tag = await queue.consume(workers.put)
            await workers.wait_until_done()
            await queue.cancel(tag)


async def rabbitmq() -> None:
    """`consumer.rabbitmq`."""
    await measure(RabbitmqSource())
