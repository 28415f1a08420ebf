"""From a message to what the producer is given. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

import msgspec

from pillarbox.cloudevents import KAFKA, STRUCTURED, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.message import Kind, Message
from pillarbox.transports.templates import Address

__all__ = ["Headers", "Record", "is_topic", "record_of"]

Headers = list[tuple[str, str]]

_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_TRACE: Final = ("traceparent", "tracestate")
_PREFIX: Final = KAFKA.prefix
_ID, _TIME, _CORRELATION, _KEY, _SUBJECT, _CAUSATION = (
    _PREFIX + name for name in ("id", "time", "correlationid", "partitionkey", "subject", "causationid")
)
_text: Final = msgspec.to_builtins


class Record(msgspec.Struct, frozen=True, gc=False):
    """One Kafka record."""

    topic: str
    key: str | None
    value: bytes
    headers: Headers


@lru_cache(maxsize=1_000)
def is_topic(name: str) -> bool:
    """Whether Kafka takes it as the name of a topic."""
    return _TOPIC.fullmatch(name) is not None


def record_of(message: Message, *, topic: Address, mode: Literal["binary", "structured"]) -> Record:
    """The record of a message; `MessageRejected` when it cannot have one."""
    name = topic(message)
    if not is_topic(name):
        raise MessageRejected(
            f"{name[:100]!r} is no name for a Kafka topic: at most 249 letters, digits, '.', '_' and '-'; correct the "
            "message's topic, or the option topic."
        )
    if mode == "structured":
        return Record(name, message.key, to_structured(message), [("content-type", STRUCTURED), *_trace(message)])
    return Record(name, message.key, message.payload, _binary(message))


def _binary(message: Message) -> Headers:
    """As `cloudevents.to_binary` says, but as a list: this is the largest part of what a message costs here."""
    headers = [
        *_shared(message.source, message.type, message.topic, message.kind, message.content_type),
        (_ID, _text(message.message_id)),
        (_TIME, _text(message.event_time)),
        (_CORRELATION, message.correlation_id),
    ]
    if message.key is not None:
        headers.append((_KEY, message.key))
    if message.subject is not None:
        headers.append((_SUBJECT, message.subject))
    if message.causation_id is not None:
        headers.append((_CAUSATION, message.causation_id))
    if message.headers:
        headers += [(_PREFIX + name, value) for name, value in _trace(message)]
        headers += message.headers.items()
    return headers


@lru_cache(maxsize=4_096)
def _shared(source: str, type_: str, topic: str, kind: Kind, content_type: str) -> tuple[tuple[str, str], ...]:
    """What many messages have in common."""
    attributes = {"specversion": "1.0", "source": source, "type": type_, "topic": topic, "kind": kind.value}
    return ("content-type", content_type), *((_PREFIX + name, value) for name, value in attributes.items())


def _trace(message: Message) -> Headers:
    return [(name, message.headers[name]) for name in _TRACE if name in message.headers]
