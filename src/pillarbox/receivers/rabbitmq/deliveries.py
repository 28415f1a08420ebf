"""From what the broker delivers to what a consumer handles. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pillarbox.cloudevents import AMQP
from pillarbox.protocols import Plain, Received
from pillarbox.receivers.identity import identity

if TYPE_CHECKING:
    from aiormq.abc import DeliveredMessage

__all__ = ["received_of"]

_PROPERTIES: Final = {
    "message_id": "message-id",
    "correlation_id": "correlation-id",
    "message_type": "type",
    "timestamp": "timestamp",
    "app_id": "app-id",
    "reply_to": "reply-to",
    "content_encoding": "content-encoding",
}
"""Properties of AMQP, and the headers that a handler sees of them."""
_VERSIONS: Final = tuple(f"{prefix}specversion" for prefix in (AMQP.prefix, *AMQP.also_read))
_COUNT: Final = "x-delivery-count"
"""How often a quorum queue has delivered it before; some versions count without the redelivered flag."""


def received_of(message: DeliveredMessage, *, queue: str, token: object) -> Received:
    """The message as it came: headers of its own, and its properties beside them."""
    headers = _headers(message)
    return Received(
        headers=headers,
        body=message.body,
        binding=AMQP,
        plain=_plain(message, queue=queue),
        redelivered=bool(message.redelivered) or _count(headers) > 0,
        token=token,
    )


def _headers(message: DeliveredMessage) -> dict[str, Any]:
    """A CloudEvent in binary mode says all of it in attributes; there, properties would only look like headers."""
    properties = message.header.properties
    headers: dict[str, Any] = dict(properties.headers or {})
    if not any(version in headers for version in _VERSIONS):
        for name, header in _PROPERTIES.items():
            if (value := getattr(properties, name)) not in (None, ""):
                headers.setdefault(header, value)
    if properties.content_type:
        headers["content-type"] = properties.content_type
    return headers


def _plain(message: DeliveredMessage, *, queue: str) -> Plain:
    """Without a message id from the producer there is none that lasts: AMQP numbers deliveries, not messages."""
    properties = message.header.properties
    return Plain(
        message_id=identity(properties.message_id or str(uuid4())),
        source=f"rabbitmq:{queue}",
        type=properties.message_type or "rabbitmq",
        topic=message.routing_key or queue,
    )


def _count(headers: dict[str, Any]) -> int:
    count = headers.get(_COUNT)
    return count if isinstance(count, int) else 0
