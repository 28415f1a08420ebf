"""NATS: nats-py's pull subscription, which fetches a batch as soon as the one before was received."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Final

import nats as client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.brokers.nats import URL, Nats
from benchmarks.consumer.runner import Handle, Workers, build_orders, measure
from pillarbox.brokers.factory import receiver_from_url
from pillarbox.contracts.receiver import Receiver

__all__ = ["nats"]

_BATCH: Final = 200
"""The consumer's prefetch, by default."""


class NatsSource(Nats):
    """A stream on disk, with a new durable consumer for each run."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()
        self._durable = ""

    async def fill(self, messages: int) -> None:
        assert self._stream is not None
        await self.empty()
        await self.send(build_orders(messages))
        self._durable = f"bench-{next(self._numbers)}"
        config = ConsumerConfig(durable_name=self._durable, ack_policy=AckPolicy.EXPLICIT)
        await self._stream.add_consumer(self._name, config)

    def receiver(self) -> Receiver:
        return receiver_from_url(URL, options={"stream": self._name, "durable": self._durable})

    async def bare(self, handle: Handle, *, messages: int, concurrency: int) -> None:
        async def handle_message(message: Msg) -> None:
            await handle(message.data)
            await message.ack()

        connection = await client.connect(URL)
        async with Workers(handle_message, messages=messages, concurrency=concurrency) as workers:
            pulled = await connection.jetstream().pull_subscribe_bind(self._durable, self._name)
            asked = 0
            while asked < messages:
                await workers.wait_for_room(_BATCH)
                with contextlib.suppress(TimeoutError):
                    for message in await pulled.fetch(min(_BATCH, messages - asked), timeout=5):
                        asked += 1
                        await workers.put(message)
            await workers.wait_until_done()
        await connection.drain()


async def nats() -> None:
    """`consumer.nats`."""
    await measure(NatsSource())
