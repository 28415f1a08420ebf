"""The queue: asked for, and made if it is not there and it is ours to make."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.rabbitmq.reasons import TROUBLES, ChannelNotFoundEntity, disliked
from pillarbox.receivers.rabbitmq.settings import RabbitmqReceiverSettings
from pillarbox.transports.redaction import one_line

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel
    from aiormq.connection import Connection

__all__ = ["queue_arguments", "see_to"]

Question = Callable[["AbstractChannel"], Awaitable[object]]


async def see_to(connection: Connection, settings: RabbitmqReceiverSettings, *, where: str) -> None:
    """The queue is there when this returns; `TransportUnavailable` when it is not. What is there stays as it is."""
    asking = _Asking(connection, seconds=settings.timeout.total_seconds(), where=where)
    queue = f"queue {one_line(settings.queue)!r}"
    is_there = await asking.whether(queue, lambda channel: channel.queue_declare(settings.queue, passive=True),
                                    optional=settings.declare)  # fmt: skip
    if not settings.declare:
        return
    if not is_there:
        arguments = queue_arguments(settings, version=str(connection.server_properties.get("version", "")))
        await asking.whether(
            queue, lambda channel: channel.queue_declare(settings.queue, durable=True, arguments=arguments)
        )
    await _see_to_bindings(asking, settings, queue=queue)


async def _see_to_bindings(asking: _Asking, settings: RabbitmqReceiverSettings, *, queue: str) -> None:
    name, exchange = settings.exchange, f"exchange {one_line(settings.exchange)!r}"
    if not await asking.whether(exchange, lambda channel: channel.exchange_declare(name, passive=True), optional=True):
        await asking.whether(
            exchange,
            lambda channel: channel.exchange_declare(name, exchange_type=settings.exchange_type, durable=True),
        )
    for key in settings.bind:
        await asking.whether(
            f"binding of the {queue} to the {exchange}",
            lambda channel, key=key: channel.queue_bind(settings.queue, name, key),  # type: ignore[misc]
        )


def queue_arguments(settings: RabbitmqReceiverSettings, *, version: str) -> dict[str, Any]:
    """What a queue is made with."""
    arguments: dict[str, Any] = {"x-queue-type": settings.queue_type}
    if settings.queue_type == "quorum" and _is_four(version):
        # From 4.0 on a message is dropped after 20 deliveries, unless this says otherwise. Before, -1 dropped all.
        arguments["x-delivery-limit"] = -1
    if settings.single_active:
        arguments["x-single-active-consumer"] = True
    return arguments


def _is_four(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdigit() and int(major) >= 4


class _Asking:
    """Questions to the broker, each over a channel of its own: one that it dislikes closes the channel."""

    def __init__(self, connection: Connection, *, seconds: float, where: str) -> None:
        self._connection = connection
        self._seconds = seconds
        self._where = where

    async def whether(self, what: str, question: Question, *, optional: bool = False) -> bool:
        """Whether it is so. What is not there is False if that is allowed; all else is `TransportUnavailable`."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._ask(question)
        except ChannelNotFoundEntity as error:
            if not optional:
                raise disliked(error, where=self._where, what=what) from error
            return False
        except TROUBLES as error:
            if self._connection.is_closed:
                raise TransportUnavailable(f"The connection to {self._where} broke.") from error
            raise disliked(error, where=self._where, what=what) from error
        return True

    async def _ask(self, question: Question) -> None:
        channel = await self._connection.channel(publisher_confirms=False)
        try:
            await question(channel)
        finally:
            with contextlib.suppress(*TROUBLES):
                await channel.close()
