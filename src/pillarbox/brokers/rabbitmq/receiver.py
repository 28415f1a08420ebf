"""RabbitMQ: a queue, read with manual acknowledgement."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from pillarbox.brokers.errors import connection_broken_error, describe_error
from pillarbox.brokers.rabbitmq.amqp import (
    METHOD,
    Delivery,
    DeliveryReader,
    FieldTable,
    commands,
    encode_ack,
    encode_consume,
    encode_exchange_declare,
    encode_nack,
    encode_queue_bind,
    encode_queue_declare,
    expect,
    is_delivery,
)
from pillarbox.brokers.rabbitmq.connection import Channel, Connection, Connector
from pillarbox.brokers.rabbitmq.encoding import to_incoming
from pillarbox.brokers.rabbitmq.errors import NOT_FOUND, Closed, Ended, NotAmqp, map_refusal
from pillarbox.brokers.rabbitmq.settings import NAME, RabbitmqReceiverSettings
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.settings import TransportUrl, parse_settings
from pillarbox.contracts.receiver import IncomingMessage, ReceiverFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_line

__all__ = ["Consumer", "RabbitmqReceiver", "build_queue_arguments", "rabbitmq_receiver"]

_CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the broker to read the last acknowledgements."""
_NACK_DELAY: Final = 0.05
"""Seconds in which messages that are given back are collected, to be returned in the queue's order."""
_CANCEL: Final = b"\x00\x3c\x00\x1e"


class RabbitmqReceiver:
    """Reads one queue. The password is read when this is built.

    A connection that broke is made anew by the next `receive` or `ping`, not in the background; the broker
    delivers again what was not acknowledged over the old one.
    """

    def __init__(self, settings: RabbitmqReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = ReceiverFeatures(name=NAME)
        self.settings = settings
        self._connector = Connector(settings, environ=environ)
        self._connection = ReconnectingConnection(
            lambda: Consumer.open(self._connector, settings), owner="rabbitmq receiver"
        )

    def __repr__(self) -> str:
        return f"RabbitmqReceiver({self.settings!r})"

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()

    async def ping(self) -> None:
        """Ask for the queue; one that `declare` made is made again, should somebody have removed it."""
        consumer = await self._connection.get()
        await _Topology(self._connector, consumer.connection, self.settings).prepare()

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        consumer = await self._connection.get()
        queue = self.settings.queue
        return [
            to_incoming(delivery, queue=queue, token=(consumer, delivery.tag))
            for delivery in await consumer.take(limit)
        ]

    async def acknowledge(self, received: IncomingMessage) -> None:
        consumer, tag = received.token
        if self._connection.is_current(consumer):
            await consumer.acknowledge(tag)

    async def give_back(self, received: IncomingMessage) -> None:
        consumer, tag = received.token
        if self._connection.is_current(consumer):
            await consumer.give_back(tag)


def rabbitmq_receiver(url: TransportUrl) -> RabbitmqReceiver:
    """Build the receiver for an `amqp:` or `amqps:` URL."""
    return RabbitmqReceiver(parse_settings(RabbitmqReceiverSettings, url, broker=NAME, kind="receiver"))


class Consumer:
    """A consumer on a queue. Its deliveries can be acknowledged over it and over nothing else."""

    def __init__(self, channel: Channel, *, where: str) -> None:
        self.connection = channel.connection
        self.reason: str | None = None
        """Why it has ended; None while it stands."""
        self._where = where
        self._channel = channel
        self._reader = DeliveryReader()
        self._waiting: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._to_give_back: set[int] = set()
        """Delivery tags that are about to be returned."""
        self._nack_timer: asyncio.TimerHandle | None = None
        channel.on_frame = self._receive
        channel.on_end = lambda reason: self.end(describe_error(reason))

    @classmethod
    async def open(cls, connector: Connector, settings: RabbitmqReceiverSettings) -> Self:
        """Connect and consume; raise `TransportUnavailable` when there is no way to the queue."""
        connection = await connector.connect()
        try:
            await _Topology(connector, connection, settings).prepare()
            return await cls._consume(connector, connection, settings)
        except BaseException:
            await connection.close()
            raise

    @classmethod
    async def _consume(cls, connector: Connector, connection: Connection, settings: RabbitmqReceiverSettings) -> Self:
        try:
            async with asyncio.timeout(connector.seconds):
                channel = await connection.open_channel()
                consumer = cls(channel, where=connector.where)
                qos = commands.Basic.Qos(prefetch_count=settings.prefetch)
                expect(await channel.call(qos), commands.Basic.QosOk)
                consume = encode_consume(channel.number, settings.queue)
                expect(await channel.call(consume), commands.Basic.ConsumeOk)
                return consumer
        except Closed as error:
            raise map_refusal(error, where=connector.where, what=_quote_queue(settings)) from error
        except (TimeoutError, Ended, NotAmqp) as error:
            text = f"{connector.where} gave no messages of the {_quote_queue(settings)} ({describe_error(error)})."
            raise TransportUnavailable(text) from error

    async def take(self, limit: int) -> list[Delivery]:
        """Return deliveries in order, at least one; raise `TransportUnavailable` as soon as the consumer has ended."""
        while True:
            if self.reason is not None:
                raise TransportUnavailable(self.reason)
            if self._waiting:
                return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            self._arrived.clear()
            await self._arrived.wait()

    async def acknowledge(self, tag: int) -> None:
        """Write an acknowledgement, and wait for nothing: the broker confirms none, and a lost one is a repeat."""
        if self.reason is None:
            self.connection.write(encode_ack(self._channel.number, tag))

    async def give_back(self, tag: int) -> None:
        """Return a delivery soon, together with others, the earliest first.

        A quorum queue delivers again in the order of the returns; a classic queue in its own order.
        """
        if self.reason is None:
            self._to_give_back.add(tag)
            if self._nack_timer is None:
                self._nack_timer = asyncio.get_running_loop().call_later(_NACK_DELAY, self._send_nacks)

    def _send_nacks(self) -> None:
        tags, self._to_give_back = sorted(self._to_give_back), set()
        self._nack_timer = None
        if self.reason is None:
            for tag in tags:
                self.connection.write(encode_nack(self._channel.number, tag))

    async def close(self) -> None:
        """Close the connection. What was acknowledged is so; the broker takes the rest back, in the queue's order.

        Nothing is returned one by one: that would change the order in a quorum queue, and the broker would deliver to
        us again what we have just returned.
        """
        self.end("it was closed")
        await self.connection.close(seconds=_CLOSE_TIMEOUT)

    def end(self, why: str) -> None:
        """End, and wake whoever waits."""
        if self.reason is None:
            self.reason = str(connection_broken_error(self._where, why))
        self._waiting.clear()
        self._arrived.set()
        if self._nack_timer is not None:
            self._nack_timer.cancel()

    def _receive(self, kind: int, payload: bytes) -> bool:
        if kind == METHOD and not is_delivery(payload):
            if payload.startswith(_CANCEL):
                self.end("the queue was deleted")
                return True
            return False
        delivery = self._reader.read(kind, payload)
        if delivery is not None and self.reason is None:
            self._waiting.append(delivery)
            self._arrived.set()
        return True


class _Topology:
    """The queue of one receiver, its exchange and its bindings. What exists stays as it is."""

    def __init__(self, connector: Connector, connection: Connection, settings: RabbitmqReceiverSettings) -> None:
        self._connector = connector
        self._connection = connection
        self._settings = settings

    async def prepare(self) -> None:
        """Check that the queue exists, or declare and bind it; raise `TransportUnavailable` when that fails."""
        settings = self._settings
        queue = _quote_queue(settings)
        exists = await self._call(
            queue, lambda channel: encode_queue_declare(channel, settings.queue), optional=settings.declare
        )
        if not settings.declare:
            return
        if not exists:
            arguments = build_queue_arguments(settings, version=self._connection.server_version)
            await self._call(queue, lambda channel: encode_queue_declare(channel, settings.queue, arguments=arguments))
        name, exchange = settings.exchange, f"exchange {redact_line(settings.exchange)!r}"
        if not await self._call(
            exchange, lambda channel: encode_exchange_declare(channel, name, passive=True), optional=True
        ):
            kind = settings.exchange_type
            await self._call(exchange, lambda channel: encode_exchange_declare(channel, name, type=kind, passive=False))
        for key in settings.bind:
            await self._call(
                f"binding of the {queue} to the {exchange}",
                lambda channel, key=key: encode_queue_bind(channel, settings.queue, name, key),  # type: ignore[misc]
            )

    async def _call(self, what: str, encode: Callable[[int], bytes], *, optional: bool = False) -> bool:
        """Return True when it was done, False for what is missing and may be; else raise `TransportUnavailable`."""
        closed = await self._connector.call_apart(self._connection, encode)
        if closed is None:
            return True
        if optional and closed.code == NOT_FOUND:
            return False
        raise map_refusal(closed, where=self._connector.where, what=what) from closed


def build_queue_arguments(settings: RabbitmqReceiverSettings, *, version: str) -> FieldTable:
    """Return the arguments that a queue is declared with, at a broker of this version."""
    arguments: FieldTable = {"x-queue-type": settings.queue_type}
    major = version.partition(".")[0]
    if settings.queue_type == "quorum" and major.isdigit() and int(major) >= 4:
        # From 4.0 on a message is dropped after 20 deliveries, unless this is set. Before, -1 dropped all.
        arguments["x-delivery-limit"] = -1
    if settings.single_active:
        arguments["x-single-active-consumer"] = True
    return arguments


def _quote_queue(settings: RabbitmqReceiverSettings) -> str:
    return f"queue {redact_line(settings.queue)!r}"
