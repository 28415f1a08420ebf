"""Messages as Kafka records, and consumed records as incoming messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from pillarbox.brokers.kafka.offsets import PartitionProgress
from pillarbox.brokers.templates import AddressRules, AddressTemplate
from pillarbox.cloudevents import KAFKA, STRUCTURED, to_structured
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.errors import MessageRejected
from pillarbox.message import Kind, Message

if TYPE_CHECKING:
    from confluent_kafka import Message as KafkaMessage

__all__ = ["TOPIC_RULES", "ConsumedRecord", "EncodedMessage", "Headers", "decode", "encode", "is_topic_name"]

TOPIC_RULES: Final = AddressRules(
    reserved=r"__|_schemas$|_confluent",
    reserved_words="topics with this beginning belong to the cluster and its tools",
    separator=".",
)
"""`__consumer_offsets` and `__transaction_state` are Kafka's own, `_schemas` is the schema registry's."""

Headers = list[tuple[str, str]]

_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_PREFIX: Final = KAFKA.prefix
_ID, _TIME, _CORRELATION, _KEY, _SUBJECT, _CAUSATION, _SPEC_VERSION = (
    _PREFIX + name for name in ("id", "time", "correlationid", "partitionkey", "subject", "causationid", "specversion")
)
_to_text: Final = msgspec.to_builtins


class EncodedMessage(msgspec.Struct, frozen=True, gc=False):
    """One Kafka record, ready to be produced."""

    topic: str
    key: str | None
    value: bytes
    headers: Headers
    partition: int = -1
    """The partition to write to; -1 for the one of the key."""


@lru_cache(maxsize=1_000)
def is_topic_name(name: str) -> bool:
    """Return True if Kafka accepts this as the name of a topic."""
    return _TOPIC_NAME.fullmatch(name) is not None


def encode(message: Message, *, topic: AddressTemplate, mode: Literal["binary", "structured"]) -> EncodedMessage:
    """Encode a message as a record; raise `MessageRejected` if Kafka has no such topic name."""
    name = topic(message)
    if not is_topic_name(name):
        raise MessageRejected(
            f"{name[:100]!r} is no name for a Kafka topic: at most 249 letters, digits, '.', '_' and '-'; correct the "
            "message's topic, or the option topic."
        )
    if mode == "structured":
        headers = [("content-type", STRUCTURED), *_select_trace_headers(message)]
        return EncodedMessage(name, message.key, to_structured(message), headers)
    return EncodedMessage(name, message.key, message.payload, _build_binary_headers(message))


def _build_binary_headers(message: Message) -> Headers:
    """Return the headers of `cloudevents.to_binary` as a list.

    Written out here because headers are the largest part of a message's cost on this path.
    """
    headers = [
        *_build_common_headers(message.source, message.type, message.topic, message.kind, message.content_type),
        (_ID, _to_text(message.message_id)),
        (_TIME, _to_text(message.event_time)),
        (_CORRELATION, message.correlation_id),
    ]
    if message.key is not None:
        headers.append((_KEY, message.key))
    if message.subject is not None:
        headers.append((_SUBJECT, message.subject))
    if message.causation_id is not None:
        headers.append((_CAUSATION, message.causation_id))
    if message.headers:
        headers += [(_PREFIX + name, value) for name, value in _select_trace_headers(message)]
        headers += message.headers.items()
    return headers


@lru_cache(maxsize=4_096)
def _build_common_headers(
    source: str, type_: str, topic: str, kind: Kind, content_type: str
) -> tuple[tuple[str, str], ...]:
    """Return the headers that are the same for many messages."""
    attributes = {"specversion": "1.0", "source": source, "type": type_, "topic": topic, "kind": kind.value}
    return ("content-type", content_type), *((_PREFIX + name, value) for name, value in attributes.items())


def _select_trace_headers(message: Message) -> Headers:
    return [(name, message.headers[name]) for name in _TRACE_HEADERS if name in message.headers]


class ConsumedRecord(msgspec.Struct, frozen=True, eq=False):
    """A record that was read from a partition. It is compared by identity: the same offset can be read twice."""

    progress: PartitionProgress
    offset: int
    message: KafkaMessage
    redelivered: bool

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return len(self.message)


def decode(record: ConsumedRecord, *, token: object) -> IncomingMessage:
    """Return the record as an incoming message. Its fallback id is its position, for Kafka has no message ids."""
    message, topic = record.message, record.progress.topic
    raw_key = message.key()
    key = None if raw_key is None else _decode_text(raw_key)
    headers = _read_headers(message)
    if not isinstance(key, str):
        key = None
    elif _SPEC_VERSION in headers:
        # A producer that follows the binding may have written the partition key as the record's key alone.
        headers.setdefault(_KEY, key)
    return IncomingMessage(
        headers=headers,
        body=message.value() or b"",
        binding=KAFKA,
        fallback=FallbackIdentity(
            message_id=f"{topic}/{record.progress.partition}/{record.offset}",
            source=f"kafka:{topic}",
            type="kafka",
            topic=topic,
            key=key,
        ),
        redelivered=record.redelivered,
        token=token,
    )


def _read_headers(message: KafkaMessage) -> dict[str, object]:
    """Return the headers. The client raises for a name that is not UTF-8, and then gives none of them."""
    try:
        pairs = cast("Sequence[tuple[str, bytes | None]]", message.headers() or ())
    except (ValueError, SystemError) as error:
        # As a broken CloudEvent it is kept with a reason, and not taken for the plain message of another producer.
        return {_SPEC_VERSION: f"unreadable ({error})"}
    return {name: _decode_text(value) for name, value in pairs}


def _decode_text(value: str | bytes | None) -> str | bytes:
    """Return the value as text, or unchanged if it is not UTF-8."""
    if not isinstance(value, bytes):
        return value or ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
