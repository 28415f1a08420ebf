"""From a record to what a consumer handles. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from pillarbox.cloudevents import KAFKA
from pillarbox.protocols import Plain, Received
from pillarbox.receivers.kafka.shares import Share

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["Delivery", "received_of"]

_VERSION: Final = f"{KAFKA.prefix}specversion"
_KEY: Final = f"{KAFKA.prefix}partitionkey"


class Delivery(msgspec.Struct, frozen=True, eq=False):
    """A record in our hands."""

    share: Share
    offset: int
    message: Message
    redelivered: bool


def received_of(delivery: Delivery, *, token: object) -> Received:
    """The record as it came. A plain one is known by its place; Kafka has no id of its own."""
    message, topic = delivery.message, delivery.share.topic
    key = _text(message.key())
    found = cast("Sequence[tuple[str, bytes | None]]", message.headers() or ())
    headers: dict[str, object] = {name: _value(value) for name, value in found}
    if key is not None and _VERSION in headers:
        headers.setdefault(_KEY, key)  # the binding's place for it, where the producer wrote it there alone
    return Received(
        headers=headers,
        body=message.value() or b"",
        binding=KAFKA,
        plain=Plain(
            message_id=f"{topic}/{delivery.share.partition}/{delivery.offset}",
            source=f"kafka:{topic}",
            type="kafka",
            topic=topic,
            key=key,
        ),
        redelivered=delivery.redelivered,
        token=token,
    )


def _text(value: str | bytes | None) -> str | None:
    found = _value(value) if value is not None else None
    return found if isinstance(found, str) else None


def _value(value: str | bytes | None) -> str | bytes:
    if not isinstance(value, bytes):
        return value or ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
