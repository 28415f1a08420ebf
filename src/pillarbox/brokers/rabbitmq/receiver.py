"""RabbitMQ: a queue, read with manual acknowledgement."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from pillarbox.brokers.errors import connection_broken_error, describe_error
from pillarbox.brokers.held_bytes import GROWTH, HeldBytes
from pillarbox.brokers.rabbitmq.amqp import (
    METHOD,
    Delivery,
    DeliveryReader,
    FieldTable,
    commands,
    encode,
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
from pillarbox.tasks import cancel_all

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
        self._held = HeldBytes()
        self._prefetch = Prefetch(self._held, most=settings.prefetch, is_fixed=settings.single_active)
        self._connector = Connector(settings, environ=environ)
        self._connection = ReconnectingConnection(
            lambda: Consumer.open(self._connector, settings, prefetch=self._prefetch), owner="rabbitmq receiver"
        )

    def __repr__(self) -> str:
        return f"RabbitmqReceiver({self.settings!r})"

    @property
    def pending_bytes(self) -> int:
        return self._held.limit

    @pending_bytes.setter
    def pending_bytes(self, limit: int) -> None:
        self._held.limit = limit

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()
        self._held.clear()

    async def ping(self) -> None:
        """Ask for the queue; one that `declare` made is made again, should somebody have removed it."""
        consumer = await self._connection.get()
        if not consumer.connection.is_paused and await self._ask_over(consumer.connection):
            return
        # The answer would wait behind messages that are not read: another connection has to ask.
        connection = await self._connector.connect()
        try:
            await _Topology(self._connector, connection, self.settings).prepare()
        finally:
            await connection.close()

    async def _ask_over(self, connection: Connection) -> bool:
        """Ask for the queue; return False if the connection stops being read before the answer has come."""
        asked = asyncio.create_task(_Topology(self._connector, connection, self.settings).prepare())
        paused = asyncio.create_task(connection.wait_for_pause())
        try:
            await asyncio.wait({asked, paused}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                asked.result()
                return True
            return False
        finally:
            await cancel_all([asked, paused])

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        consumer = await self._connection.get()
        queue = self.settings.queue
        return [
            to_incoming(delivery, queue=queue, token=(consumer, delivery.tag))
            for delivery in await consumer.take(limit)
        ]

    async def acknowledge(self, received: IncomingMessage) -> None:
        consumer, tag = received.token
        self._held.remove(received.token)
        if self._connection.is_current(consumer):
            await consumer.acknowledge(tag)

    async def give_back(self, received: IncomingMessage) -> None:
        consumer, tag = received.token
        self._held.remove(received.token)
        if self._connection.is_current(consumer):
            await consumer.give_back(tag)


def rabbitmq_receiver(url: TransportUrl) -> RabbitmqReceiver:
    """Build the receiver for an `amqp:` or `amqps:` URL."""
    return RabbitmqReceiver(parse_settings(RabbitmqReceiverSettings, url, broker=NAME, kind="receiver"))


class Prefetch:
    """Number of messages that the broker may deliver before they are acknowledged, so that they fit into `held`.

    It grows while the messages are small, and shrinks at once when they do not fit. `is_fixed` keeps it: a queue with
    a single active consumer would give another one its turn. A small prefetch stays as well.
    """

    def __init__(self, held: HeldBytes, *, most: int, is_fixed: bool = False) -> None:
        self.held = held
        self._most = most
        self._is_fixed = is_fixed or most <= GROWTH
        self._count = most if self._is_fixed else 1
        self._seen = 0
        self._bytes = 0

    def start(self) -> int:
        """Return the prefetch of a new connection. It is what the last one had learned."""
        self._seen = self._bytes = 0
        return self._count

    def adapt(self, size: int) -> int | None:
        """Count a delivery of so many bytes; return the prefetch to use from now on, None if it is still right."""
        self._seen += 1
        self._bytes += size
        is_too_large = self.held.is_full and self._count > 1
        if self._is_fixed or not (is_too_large or self._seen >= self._count):
            return None
        mean = max(self._bytes / self._seen, self.held.mean if is_too_large else 0, 1)
        target = max(1, min(self._most, self._count * GROWTH, int(self.held.limit / mean)))
        # What is held now stays beside what the new subscription brings.
        fitting = max(1, target - self.held.count)
        self._seen = self._bytes = 0
        if target > self._count / 2 and fitting < self._count * 2:
            return None
        self._count = fitting
        return fitting


class Consumer:
    """A consumer on a queue. Its deliveries can be acknowledged over it and over nothing else.

    It begins with a prefetch of one message and adapts it to their sizes. If they suddenly become larger, nothing is
    read while too many bytes are held. That alone would not do: RabbitMQ closes a connection that takes nothing for
    half a minute.
    """

    def __init__(self, channel: Channel, *, where: str, queue: str, prefetch: Prefetch) -> None:
        self.connection = channel.connection
        self._queue = queue
        self._prefetch = prefetch
        self._subscriptions = 0
        """The number of the current subscription is its tag."""
        self._held = held = prefetch.held
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
        held.on_room = self._control_reading
        channel.on_frame = self._receive
        channel.on_end = lambda reason: self.end(describe_error(reason))

    @classmethod
    async def open(cls, connector: Connector, settings: RabbitmqReceiverSettings, *, prefetch: Prefetch) -> Self:
        """Connect and consume; raise `TransportUnavailable` when there is no way to the queue."""
        connection = await connector.connect()
        try:
            await _Topology(connector, connection, settings).prepare()
            return await cls._consume(connector, connection, settings, prefetch)
        except BaseException:
            await connection.close()
            raise

    @classmethod
    async def _consume(
        cls, connector: Connector, connection: Connection, settings: RabbitmqReceiverSettings, prefetch: Prefetch
    ) -> Self:
        try:
            async with asyncio.timeout(connector.seconds):
                channel = await connection.open_channel()
                consumer = cls(channel, where=connector.where, queue=settings.queue, prefetch=prefetch)
                qos = commands.Basic.Qos(prefetch_count=prefetch.start())
                expect(await channel.call(qos), commands.Basic.QosOk)
                consume = encode_consume(channel.number, settings.queue, tag=consumer.tag)
                expect(await channel.call(consume), commands.Basic.ConsumeOk)
                return consumer
        except Closed as error:
            raise map_refusal(error, where=connector.where, what=_quote_queue(settings)) from error
        except (TimeoutError, Ended, NotAmqp) as error:
            text = f"{connector.where} gave no messages of the {_quote_queue(settings)} ({describe_error(error)})."
            raise TransportUnavailable(text) from error

    @property
    def tag(self) -> str:
        return f"pillarbox-{self._subscriptions}"

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
        for delivery in self._waiting:
            self._held.remove((self, delivery.tag))
        self._waiting.clear()
        self._arrived.set()
        self.connection.resume_reading()
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
            self._held.add((self, delivery.tag), delivery.size)
            self._control_reading()
            if (count := self._prefetch.adapt(delivery.size)) is not None:
                self._subscribe_again(count)
            self._arrived.set()
        return True

    def _subscribe_again(self, prefetch: int) -> None:
        """Replace the subscription by one with another prefetch: that of a subscription cannot be changed.

        The old one ends first, so the queue's order is kept. What it has delivered stays unacknowledged.
        """
        number, old = self._channel.number, self.tag
        self._subscriptions += 1
        self.connection.write(
            encode(number, commands.Basic.Cancel(old))
            + encode(number, commands.Basic.Qos(prefetch_count=prefetch))
            + encode_consume(number, self._queue, tag=self.tag)
        )

    def _control_reading(self) -> None:
        if self._held.is_full and self.reason is None:
            self.connection.pause_reading()
        else:
            self.connection.resume_reading()


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
