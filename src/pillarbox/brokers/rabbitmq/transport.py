"""RabbitMQ: messages to an exchange, confirmed one by one, sent many at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Self

import msgspec

from pillarbox.brokers.errors import describe_error
from pillarbox.brokers.rabbitmq.amqp import (
    ACK,
    HEADER,
    METHOD,
    NACK,
    RETURN,
    commands,
    encode_exchange_declare,
    encode_queue_declare,
    expect,
    read_confirm,
    read_content_header,
    read_method,
)
from pillarbox.brokers.rabbitmq.checks import Inspection, Management
from pillarbox.brokers.rabbitmq.connection import Channel, Connection, Connector
from pillarbox.brokers.rabbitmq.encoding import NAME_RULES, PUBLISHING_CHANNEL, EncodedMessage, MessageEncoder
from pillarbox.brokers.rabbitmq.errors import (
    DUPLICATE,
    NACKED,
    NOT_FOUND,
    Answer,
    Closed,
    Ended,
    NotAmqp,
    map_end,
    map_refusal,
    map_return,
    parse_size_limit,
    to_outcomes,
)
from pillarbox.brokers.rabbitmq.settings import NAME, RabbitmqSettings
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.send_batch import DELIVERED, SendBatch, encode_each
from pillarbox.brokers.settings import TransportUrl, parse_settings
from pillarbox.brokers.templates import ANY_ADDRESS, compile_template, describe_address
from pillarbox.brokers.tls import build_tls_context
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import redact_line

__all__ = ["Publisher", "RabbitmqTransport", "rabbitmq_transport"]

_WRITE_SIZE: Final = 256 * 1024
"""Bytes handed to the socket at a time, roughly."""


class RabbitmqTransport:
    """Publishes messages as CloudEvents, persistent and mandatory.

    Delivered means that the broker confirmed the message: every queue it was routed to has it, on disk if the queue is
    durable, on a majority of nodes if it is a quorum queue. The password is read when this is built.
    """

    def __init__(self, settings: RabbitmqSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(
            name=NAME, max_payload=settings.max_payload, ping_is_witness=True,
            addresses="{" in f"{settings.exchange}{settings.routing_key}",
        )  # fmt: skip
        self.settings = settings
        self._connector = Connector(settings, environ=environ)
        self._connection = PublisherConnection(self._connector, settings)
        self._encoder = MessageEncoder(
            exchange=compile_template(settings.exchange, option="exchange", transport=NAME, rules=NAME_RULES),
            # At the default exchange the routing key is the name of a queue.
            routing_key=compile_template(
                settings.routing_key,
                option="routing_key",
                transport=NAME,
                rules=ANY_ADDRESS if settings.exchange else NAME_RULES,
            ),
            mode=settings.mode,
        )
        self._management = _build_management(settings, self._connector, environ)
        self._size_limit = settings.max_payload
        """The largest body that the broker takes, once that is known."""

    def __repr__(self) -> str:
        return f"RabbitmqTransport({self.settings!r})"

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()

    async def ping(self) -> None:
        """Ask over a channel of its own, and for the exchange, if all messages go to one."""
        await self._connection.ping()

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        """Find what is set on the broker that could lose messages of these topics. Changes nothing."""
        inspection = Inspection(broker=self._connection, encoder=self._encoder, management=self._management)
        return await inspection.run(topics)

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, exchange=self._encoder.exchange, routing_key=self._encoder.routing_key)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if not messages:
            return []
        publisher = await self._connection.get_publisher()
        encode = partial(self._encoder.encode, frame_max=publisher.connection.frame_max, limit=self._size_limit)
        encoded = encode_each(messages, encode, broker="RabbitMQ")
        if self.settings.declare:
            await self._connection.declare({one.exchange for one in encoded if isinstance(one, EncodedMessage)})
            publisher = await self._connection.get_publisher()
        return await self._publish(publisher, encoded)

    async def _publish(self, publisher: Publisher, messages: Sequence[EncodedMessage | Outcome]) -> Sequence[Outcome]:
        try:
            batch = publisher.publish(messages)
        except Ended as error:  # since the publisher was found
            raise TransportUnavailable(
                f"The connection to {self._connector.where} is gone ({describe_error(error)})."
            ) from error
        with contextlib.suppress(TimeoutError):
            connection, end = publisher.connection, publisher.connection.written
            await batch.wait(self._connector.seconds, count_sent=lambda: min(connection.count_sent(), end))
        self._size_limit = parse_size_limit(publisher.reason) or self._size_limit
        late = f"{self._connector.where} gave no answer within {self._connector.seconds:g} s."
        return to_outcomes(batch.answers, late=late, blocked=self._connection.describe_block(publisher))


def _build_management(
    settings: RabbitmqSettings, connector: Connector, environ: Mapping[str, str]
) -> Management | None:
    if settings.management is None:
        return None
    url, server = settings.management.read(option="management", environ=environ), connector.servers.order()[0]
    return Management.from_url(
        url, login=server.login, vhost=server.vhost, timeout=connector.seconds,
        tls=server.tls or build_tls_context(settings, transport=NAME, where="the management API"),
    )  # fmt: skip


def rabbitmq_transport(url: TransportUrl) -> RabbitmqTransport:
    """Build the transport for an `amqp:` or `amqps:` URL."""
    return RabbitmqTransport(parse_settings(RabbitmqSettings, url, broker=NAME))


class PublisherConnection:
    """One connection with a publisher on it, made anew when it has ended and is needed; and the exchanges there."""

    def __init__(self, connector: Connector, settings: RabbitmqSettings) -> None:
        self._connector = connector
        self._settings = settings
        self._publisher = ReconnectingConnection(self._connect, owner="rabbitmq transport")
        self._connection: Connection | None = None
        self._declared: set[str] = set()

    async def open(self) -> None:
        """Connect, and check that the exchange exists."""
        await self._publisher.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect. What is under way gets no answer."""
        await self._publisher.close()
        if self._connection is not None:
            await self._connection.close()

    async def ping(self) -> None:
        """Raise `TransportUnavailable` when the broker does not answer, accepts no messages, or lacks the exchange."""
        exchange = self._settings.exchange
        if not self._settings.has_one_exchange:
            await self._call_apart(None)
        elif self._settings.declare:
            self._declared.clear()
            await self.declare([exchange])
        elif closed := await self._call_apart(lambda channel: encode_exchange_declare(channel, exchange, passive=True)):
            raise self._map_refusal(closed, exchange)

    async def declare(self, exchanges: Iterable[str]) -> None:
        """Declare those that have not been declared since the publisher was made.

        Of many, one that cannot be declared concerns its own messages alone: publishing them will show.
        """
        for name in set(exchanges) - self._declared:
            kind = self._settings.exchange_type
            closed = await self._call_apart(
                lambda channel: encode_exchange_declare(channel, name, type=kind, passive=False)  # noqa: B023
            )
            if closed is not None and self._settings.has_one_exchange:
                raise self._map_refusal(closed, name)
            self._declared.add(name)

    async def get_publisher(self) -> Publisher:
        """Return the publisher; raise `TransportUnavailable` when no server is there or it accepts no messages."""
        publisher = await self._publisher.get()
        if blocked := self.describe_block(publisher):
            raise TransportUnavailable(blocked)
        return publisher

    def describe_block(self, publisher: Publisher) -> str | None:
        """Return why the broker accepts no messages at present, in a sentence; None when it does."""
        reason = publisher.connection.blocked
        if reason is None:
            return None
        return f"{self._connector.where} takes no messages at present ({redact_line(reason)}): give it memory or disk."

    async def has_exchange(self, name: str) -> bool:
        return self._is_found(
            await self._call_apart(lambda channel: encode_exchange_declare(channel, name, passive=True)), name
        )

    async def has_queue(self, name: str) -> bool:
        return self._is_found(await self._call_apart(lambda channel: encode_queue_declare(channel, name)), name)

    def _is_found(self, closed: Closed | None, name: str) -> bool:
        if closed is not None and closed.code != NOT_FOUND:
            raise self._map_refusal(closed, name)
        return closed is None

    def _map_refusal(self, closed: Closed, exchange: str) -> TransportUnavailable:
        return map_refusal(closed, where=self._connector.where, what=f"exchange {redact_line(exchange)!r}")

    async def _call_apart(self, build: Callable[[int], bytes] | None) -> Closed | None:
        return await self._connector.call_apart((await self.get_publisher()).connection, build)

    async def _connect(self) -> Publisher:
        """Open a publisher, on the connection that stands when only a channel has ended, or on a new one."""
        connection = self._connection
        if connection is None or connection.reason is not None:
            connection = self._connection = await self._connector.connect()
        self._declared.clear()  # what was declared may be what is missing now
        try:
            async with asyncio.timeout(self._connector.seconds):
                return await Publisher.open(connection)
        except (TimeoutError, Ended, NotAmqp) as error:
            connection.abort("it gave no channel")
            raise TransportUnavailable(f"{self._connector.where} gave no channel ({describe_error(error)}).") from error
        except BaseException:
            connection.abort("it was given up")
            raise


class _InFlight(msgspec.Struct, gc=False):
    """A message under way, and the sends that wait for its answer."""

    message: EncodedMessage
    batch: SendBatch[Answer]
    index: int
    joined: list[tuple[SendBatch[Answer], int]] | None = None
    """Later sends of the same message."""

    def answer(self, answer: Answer) -> None:
        self.batch.answer(self.index, answer)
        for batch, index in self.joined or ():
            batch.answer(index, answer)


class Publisher:
    """Publishes over a channel with confirms, many messages at once.

    No two publishes with one message id are ever under way, because a returned message is known by its id alone: a
    message that is sent again before it was answered waits for the answer to the first.
    """

    def __init__(self, channel: Channel) -> None:
        self.connection = channel.connection
        self._channel = channel
        self._tag = 0
        self._in_flight: dict[int, _InFlight] = {}
        """By delivery tag, in order."""
        self._by_id: dict[str, _InFlight] = {}
        self._returned: commands.Basic.Return | None = None
        channel.on_frame = self._receive
        channel.on_end = self._end

    @classmethod
    async def open(cls, connection: Connection) -> Self:
        """Open a channel on which every message is confirmed."""
        channel = await connection.open_channel(PUBLISHING_CHANNEL)
        publisher = cls(channel)
        expect(await channel.call(commands.Confirm.Select()), commands.Confirm.SelectOk)
        return publisher

    @property
    def reason(self) -> Ended | None:
        """Why it has ended; None while it stands."""
        return self._channel.reason

    async def close(self) -> None:
        """Close the connection; if only the channel has ended, keep it for the next publisher."""
        if self.reason is None:
            await self.connection.close()

    def publish(self, messages: Sequence[EncodedMessage | Outcome]) -> SendBatch[Answer]:
        """Send all of them; what has an outcome already keeps it. Raises `Ended` when the channel has ended."""
        if self._channel.reason is not None:
            raise self._channel.reason
        batch = SendBatch[Answer](message if isinstance(message, Outcome) else None for message in messages)
        pieces, size = [], 0
        for index, message in enumerate(messages):
            if isinstance(message, EncodedMessage) and self._enter(message, batch, index):
                pieces.append(message.frames)
                size += len(message.frames)
                if size >= _WRITE_SIZE:
                    self.connection.write(b"".join(pieces))
                    pieces, size = [], 0
        if pieces:
            self.connection.write(b"".join(pieces))
        return batch

    def _enter(self, message: EncodedMessage, batch: SendBatch[Answer], index: int) -> bool:
        """Return whether the message must be sent; if it is under way already, that answer serves both."""
        earlier = self._by_id.get(message.message_id)
        if earlier is None:
            self._tag += 1
            self._in_flight[self._tag] = self._by_id[message.message_id] = _InFlight(message, batch, index)
            return True
        if earlier.message == message:
            earlier.joined = [*(earlier.joined or ()), (batch, index)]
        else:
            batch.answer(index, DUPLICATE)
        return False

    # --- answers ---

    def _receive(self, kind: int, payload: bytes) -> bool:
        if kind == METHOD:
            if payload.startswith(ACK):
                self._confirm(*read_confirm(payload), DELIVERED)
            elif payload.startswith(NACK):
                self._confirm(*read_confirm(payload), NACKED)
            elif payload.startswith(RETURN):
                # Its properties come next, and then the ack of this message.
                self._returned = expect(read_method(payload), commands.Basic.Return)
            else:
                return False
        elif kind == HEADER and self._returned is not None:
            self._answer_return(self._returned, read_content_header(payload)[1].message_id)
        return True

    def _confirm(self, tag: int, multiple: bool, answer: Outcome) -> None:
        if multiple:
            while self._in_flight and (first := next(iter(self._in_flight))) <= tag:
                self._leave(first, answer)
        else:
            self._leave(tag, answer)

    def _leave(self, tag: int, answer: Outcome) -> None:
        sent = self._in_flight.pop(tag, None)
        # What was returned is no longer known by its id, and its ack means only that it has been dealt with.
        if sent is not None and self._by_id.get(sent.message.message_id) is sent:
            del self._by_id[sent.message.message_id]
            sent.answer(answer)

    def _answer_return(self, why: commands.Basic.Return, message_id: str | None) -> None:
        self._returned = None
        sent = self._by_id.pop(message_id or "", None)
        if sent is None:  # then its ack, which is on its way, would pass for a confirmation
            raise NotAmqp("it returned a message that is not under way")
        sent.answer(map_return(sent.message, code=why.reply_code or 0, text=why.reply_text))

    def _end(self, reason: Ended) -> None:
        in_flight, self._in_flight, self._by_id = list(self._by_id.values()), {}, {}
        for sent in in_flight:
            sent.answer(map_end(reason, sent.message, is_alone=len(in_flight) == 1))
