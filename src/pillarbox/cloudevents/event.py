"""The values: a received event, and how one protocol names its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from pillarbox.codec import JSON
from pillarbox.message import Kind, Message

__all__ = [
    "AMQP",
    "ESCAPE",
    "HEADERS",
    "HTTP",
    "KAFKA",
    "MQTT",
    "NATS",
    "OWN",
    "REDIS",
    "STRUCTURED",
    "TRACE",
    "Binding",
    "CloudEvent",
    "of",
]

STRUCTURED: Final = "application/cloudevents+json"
"""The content type of a message in structured mode."""
TRACE: Final = ("traceparent", "tracestate")
"""Headers that are attributes on the wire."""
HEADERS: Final = "pillarboxheaders"
"""The attribute that holds the other headers in structured mode, as JSON text: attributes cannot be maps."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """How one protocol names attributes in binary mode."""

    prefix: str
    """Before the name of an attribute. Empty: attributes have their bare names, and only those in `OWN` are told apart
    from headers; a header with such a name is sent as `header-NAME`."""
    also_read: tuple[str, ...] = ()
    """Other prefixes that a receiver must understand."""
    percent_encoded: bool = False
    native_times: bool = False
    """Times may come as milliseconds since 1970."""


HTTP: Final = Binding(prefix="ce-", percent_encoded=True)
KAFKA: Final = Binding(prefix="ce_")
AMQP: Final = Binding(prefix="cloudEvents:", also_read=("cloudEvents_",), native_times=True)
MQTT: Final = Binding(prefix="")
NATS: Final = Binding(prefix="ce-", percent_encoded=True)
REDIS: Final = Binding(prefix="ce-")
"""No binding for Redis has been published. This is ours: see docs/transports/redis.md."""

ESCAPE: Final = "header-"
"""Before the name of a header that would else be taken for an attribute, where attributes have no prefix."""
OWN: Final = frozenset(
    {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "partitionkey",
        "correlationid", "causationid", "topic", "kind", *TRACE,
    }
)  # fmt: skip
"""Attributes that are known by their bare name."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is received. Its id is whatever text the producer chose.

    What a foreign producer leaves out is filled in: the kind is event, the topic is the type, the correlation
    id is the event's own id.
    """

    message_id: str
    source: str
    type: str
    kind: Kind = Kind.EVENT
    topic: str
    key: str | None = None
    payload: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    subject: str | None = None
    correlation_id: str
    causation_id: str | None = None
    event_time: datetime | None = None
    extensions: Mapping[str, str] = {}
    """Attributes that have no field here, such as `dataschema` and what other producers add."""


def of(message: Message) -> CloudEvent:
    """What a receiver will see of a message."""
    return CloudEvent(
        message_id=str(message.message_id),
        source=message.source,
        type=message.type,
        kind=message.kind,
        topic=message.topic,
        key=message.key,
        payload=message.payload,
        content_type=message.content_type,
        headers=message.headers,
        subject=message.subject,
        correlation_id=message.correlation_id,
        causation_id=message.causation_id,
        event_time=message.event_time,
    )
