"""CloudEvents 1.0: messages to binary and structured mode, and back. Pure functions over attributes and bytes.

| attribute                   | message                                                              |
|-----------------------------|----------------------------------------------------------------------|
| id, source, type, subject   | message_id, source, type, subject                                    |
| time                        | event_time                                                           |
| datacontenttype             | content_type                                                         |
| partitionkey                | key                                                                  |
| correlationid, causationid  | correlation_id, causation_id                                         |
| topic, kind                 | the same                                                             |
| traceparent, tracestate     | the headers of that name                                             |
| other headers               | binary: native headers; structured: `pillarboxheaders`, JSON text    |
"""

from __future__ import annotations

from pillarbox.cloudevents.event import AMQP, HTTP, KAFKA, MQTT, NATS, REDIS, STRUCTURED, Binding, CloudEvent, of
from pillarbox.cloudevents.reading import from_binary, from_structured, read
from pillarbox.cloudevents.writing import to_binary, to_structured

__all__ = [
    "AMQP",
    "HTTP",
    "KAFKA",
    "MQTT",
    "NATS",
    "REDIS",
    "STRUCTURED",
    "Binding",
    "CloudEvent",
    "from_binary",
    "from_structured",
    "of",
    "read",
    "to_binary",
    "to_structured",
]
