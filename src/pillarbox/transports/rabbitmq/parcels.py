"""A message as it goes over the wire: address, properties, body. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pillarbox.cloudevents import AMQP, STRUCTURED, to_binary, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.transports.rabbitmq import frames
from pillarbox.transports.templates import Address

__all__ = ["PUBLISHING", "Parcel", "Parcels"]

PUBLISHING: Final = 1
"""The channel that messages go over."""
_TRACE: Final = ("traceparent", "tracestate")
_SHORT: Final = 255


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """What one publish sends, and what is needed to recognise the answer to it."""

    message_id: str
    exchange: str
    routing_key: str
    size: int
    """Bytes of the body: what the broker's limit is about."""
    wire: bytes


class Parcels(msgspec.Struct, frozen=True, kw_only=True):
    """Packs the messages of one destination."""

    exchange: Address
    routing_key: Address
    mode: Literal["binary", "structured"]

    def packed(self, message: Message, *, frame_max: int, most: int | None) -> Parcel:
        """The message on the wire; `MessageRejected` when it cannot be put there."""
        headers, content_type, body = self._event(message)
        if most is not None and len(body) > most:
            raise MessageRejected(f"its body has {len(body)} bytes, and the broker takes at most {most}")
        message_id = str(message.message_id)
        exchange, routing_key = self.exchange(message), self.routing_key(message)
        try:
            header = frames.message_header(
                size=len(body), content_type=content_type, headers=headers,
                correlation_id=_if_short(message.correlation_id), message_id=message_id,
                at=_seconds(message), type=message.type,
            )  # fmt: skip
            publish = frames.publish(PUBLISHING, exchange, routing_key)
            content = frames.content(PUBLISHING, header, body, frame_max=frame_max)
        except ValueError as error:
            raise MessageRejected(f"it cannot be sent over AMQP: {error}") from error
        return Parcel(message_id, exchange, routing_key, len(body), b"".join((publish, *content)))

    def _event(self, message: Message) -> tuple[dict[str, str], str, bytes]:
        trace = {name: message.headers[name] for name in _TRACE if name in message.headers} if message.headers else {}
        if self.mode == "structured":
            return trace, STRUCTURED, to_structured(message)
        headers, body = to_binary(message, binding=AMQP)
        content_type = headers.pop("content-type")
        headers.update(trace)
        return headers, content_type, body


def _if_short(text: str) -> str | None:
    """A property holds 255 bytes; the header `cloudEvents:correlationid` holds it whole in any case."""
    return text if len(text) <= _SHORT and len(text.encode()) <= _SHORT else None


def _seconds(message: Message) -> int | None:
    seconds = int(message.event_time.timestamp())
    return seconds if seconds >= 0 else None
