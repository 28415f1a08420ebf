"""Messages as AMQP has them: to the wire for the transport, from the wire for the receiver. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

from pillarbox.brokers.rabbitmq.amqp import Delivery, Properties, encode_content, encode_properties, encode_publish
from pillarbox.brokers.templates import AddressRules, AddressTemplate
from pillarbox.cloudevents import AMQP, STRUCTURED, to_binary, to_structured
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import to_usable_id
from pillarbox.errors import MessageRejected
from pillarbox.message import Message

__all__ = ["NAME_RULES", "PUBLISHING_CHANNEL", "EncodedMessage", "MessageEncoder", "to_incoming"]

NAME_RULES: Final = AddressRules(
    reserved=r"amq\.",
    reserved_words="RabbitMQ keeps the names that begin with amq. for itself",
    separator=".",
)
"""For names of exchanges, and of queues where the routing key is one: `amq.gen-…` is a queue of somebody else."""

PUBLISHING_CHANNEL: Final = 1
_TRACE: Final = ("traceparent", "tracestate")
_LONGEST_PROPERTY: Final = 255
_ROUTING_HEADERS: Final = frozenset({"CC", "BCC"})
"""Headers by which a sender adds routing keys. The broker closes the channel over one that is text."""


class EncodedMessage(msgspec.Struct, frozen=True, gc=False):
    """The frames of one publish, and what is needed to match the broker's answer to it."""

    message_id: str
    exchange: str
    routing_key: str
    size: int
    """Bytes of the body: the broker limits those."""
    frames: bytes


class MessageEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """Encodes the messages of one destination."""

    exchange: AddressTemplate
    routing_key: AddressTemplate
    mode: Literal["binary", "structured"]

    def encode(self, message: Message, *, frame_max: int, limit: int | None) -> EncodedMessage:
        """Encode a message with at most `limit` bytes of body; raise `MessageRejected` when AMQP cannot carry it."""
        headers, content_type, body = self._encode_event(message)
        if limit is not None and len(body) > limit:
            raise MessageRejected(f"its body has {len(body)} bytes, and the broker takes at most {limit}")
        message_id = str(message.message_id)
        exchange, routing_key = self.exchange(message), self.routing_key(message)
        try:
            header = encode_properties(
                size=len(body), content_type=content_type, headers=headers,
                correlation_id=_select_short(message.correlation_id), message_id=message_id,
                at=_count_seconds(message), type=message.type,
            )  # fmt: skip
            publish = encode_publish(PUBLISHING_CHANNEL, exchange, routing_key)
            content = encode_content(PUBLISHING_CHANNEL, header, body, frame_max=frame_max)
        except ValueError as error:
            raise MessageRejected(f"it cannot be sent over AMQP: {error}") from error
        return EncodedMessage(message_id, exchange, routing_key, len(body), b"".join((publish, *content)))

    def _encode_event(self, message: Message) -> tuple[dict[str, str], str, bytes]:
        trace = {name: message.headers[name] for name in _TRACE if name in message.headers} if message.headers else {}
        if self.mode == "structured":
            return trace, STRUCTURED, to_structured(message)
        if not _ROUTING_HEADERS.isdisjoint(message.headers):
            raise MessageRejected("its header CC or BCC would change where RabbitMQ delivers it")
        headers, body = to_binary(message, binding=AMQP)
        content_type = headers.pop("content-type")
        headers.update(trace)
        return headers, content_type, body


def _select_short(text: str) -> str | None:
    """Return what fits into a property; the header `cloudEvents:correlationid` holds the whole in any case."""
    return text if len(text) <= _LONGEST_PROPERTY and len(text.encode()) <= _LONGEST_PROPERTY else None


def _count_seconds(message: Message) -> int | None:
    """Return the time of the event as AMQP counts it, which is from 1970 on."""
    seconds = int(message.event_time.timestamp())
    return seconds if seconds >= 0 else None


_PROPERTY_HEADERS: Final = {
    "message_id": "message-id",
    "correlation_id": "correlation-id",
    "type": "type",
    "timestamp": "timestamp",
    "app_id": "app-id",
    "reply_to": "reply-to",
    "content_encoding": "content-encoding",
}
"""Properties of AMQP, and the headers by which a handler sees them."""
_VERSIONS: Final = tuple(f"{prefix}specversion" for prefix in (AMQP.prefix, *AMQP.also_read))
_DELIVERY_COUNT: Final = "x-delivery-count"
"""Deliveries before this one, from a quorum queue; some versions count without the redelivered flag."""


def to_incoming(delivery: Delivery, *, queue: str, token: object) -> IncomingMessage:
    """Return the message as it came, with its properties beside its own headers."""
    properties = delivery.properties
    headers = _merge_headers(properties)
    count = headers.get(_DELIVERY_COUNT)
    return IncomingMessage(
        headers=headers,
        body=delivery.body,
        binding=AMQP,
        fallback=FallbackIdentity(
            # Without an id from the producer there is none that lasts: AMQP numbers deliveries, not messages.
            message_id=to_usable_id(properties.message_id or str(uuid4())),
            source=f"rabbitmq:{queue}",
            type=properties.type or "rabbitmq",
            topic=delivery.routing_key or queue,
        ),
        redelivered=delivery.redelivered or (isinstance(count, int) and count > 0),
        token=token,
    )


def _merge_headers(properties: Properties) -> dict[str, Any]:
    headers: dict[str, Any] = properties.headers or {}
    # A CloudEvent in binary mode has everything in attributes; there, properties would only look like headers.
    if not any(version in headers for version in _VERSIONS):
        for name, header in _PROPERTY_HEADERS.items():
            value = getattr(properties, name)
            if value not in (None, ""):
                headers.setdefault(header, _to_text(value) if name == "message_id" else value)
    if properties.content_type:
        headers["content-type"] = properties.content_type
    return headers


def _to_text(message_id: str) -> str:
    """Return the id with replacement characters for bytes that are not UTF-8: no store takes lone surrogates."""
    return message_id.encode(errors="surrogateescape").decode(errors="replace")
