"""One connection to the broker, and what came over it. When it breaks it stays broken: another one is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Self

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.rabbitmq.connecting import Server
from pillarbox.receivers.rabbitmq.reasons import TROUBLES, disliked, said
from pillarbox.receivers.rabbitmq.settings import RabbitmqReceiverSettings
from pillarbox.receivers.rabbitmq.topology import see_to

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel, DeliveredMessage
    from aiormq.connection import Connection

__all__ = ["Link"]

_GOODBYE: Final = 5.0


class Link:
    """A consumer on a queue. Its deliveries can be acknowledged over it and over nothing else."""

    def __init__(self, connection: Connection, *, where: str, seconds: float) -> None:
        self.connection = connection
        self.reason: str | None = None
        """Why it is broken; None while it stands."""
        self._where = where
        self._seconds = seconds
        self._waiting: deque[DeliveredMessage] = deque()
        self._came = asyncio.Event()
        self._channel: AbstractChannel | None = None

    @classmethod
    async def made(cls, server: Server, settings: RabbitmqReceiverSettings) -> Self:
        """A link to the queue, consuming; `TransportUnavailable` when there is no way to it."""
        connection = await server.connection()
        link = cls(connection, where=server.where, seconds=server.seconds)
        try:
            await see_to(connection, settings, where=server.where)
            await link._consume(settings)
        except BaseException:
            await link.close()
            raise
        return link

    async def _consume(self, settings: RabbitmqReceiverSettings) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                channel = self._channel = await self.connection.channel(publisher_confirms=False)
                channel.closing.add_done_callback(self._closed)
                channel.on_consumer_cancel_callbacks.add(lambda _: self.end("the queue was deleted"))
                await channel.basic_qos(prefetch_count=settings.prefetch)
                await channel.basic_consume(settings.queue, self._take_in)
        except TROUBLES as error:
            raise disliked(error, where=self._where, what=f"queue {settings.queue!r}") from error

    async def take(self, limit: int) -> list[DeliveredMessage]:
        """What came, in order, at least one; `TransportUnavailable` as soon as the link is broken."""
        while True:
            if self.reason is not None:
                raise TransportUnavailable(self.reason)
            if self._waiting:
                return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            self._came.clear()
            await self._came.wait()

    async def acknowledge(self, tag: int) -> None:
        """Written, but not waited for: the broker confirms none, and a lost one is a repeat."""
        if self.reason is None and self._channel is not None:
            await self._written(self._channel.basic_ack(tag, wait=False))

    async def give_back(self, tag: int) -> None:
        """The broker delivers it again, from about the place it had."""
        if self.reason is None and self._channel is not None:
            await self._written(self._channel.basic_nack(tag, requeue=True, wait=False))

    async def close(self) -> None:
        """Hang up. What was acknowledged is so; the broker takes the rest back."""
        self.end("it was closed")
        if self._channel is not None:
            # In its turn after the acknowledgements, which closing the connection alone would leave unwritten.
            await _bounded(self._channel.close())
        await _bounded(self.connection.close())

    def end(self, why: str) -> None:
        """Break, and tell who waits."""
        if self.reason is None:
            self.reason = f"The connection to {self._where} broke ({why})."
        self._waiting.clear()
        self._came.set()

    async def _take_in(self, message: DeliveredMessage) -> None:
        if self.reason is None:
            self._waiting.append(message)
            self._came.set()

    def _closed(self, channel: asyncio.Future[object]) -> None:
        error = None if channel.cancelled() else channel.exception()
        self.end("the broker closed it" if error is None else said(error))

    async def _written(self, frame: Awaitable[None]) -> None:
        """Not for ever: when the far side reads no more, the client's own queue is full."""
        try:
            async with asyncio.timeout(self._seconds):
                await frame
        except TROUBLES as error:
            self.end(said(error))


async def _bounded(ending: Awaitable[None]) -> None:
    with contextlib.suppress(*TROUBLES):
        async with asyncio.timeout(_GOODBYE):
            await ending
