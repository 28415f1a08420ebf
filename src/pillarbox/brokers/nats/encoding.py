"""Messages on the wire of NATS: subject, headers and body of a publish, and of a delivery. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from pillarbox.brokers.templates import AddressRules, AddressTemplate
from pillarbox.cloudevents import NATS, STRUCTURED, to_structured
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import to_usable_id
from pillarbox.errors import MessageRejected
from pillarbox.message import Kind, Message

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = [
    "BATCH_HEADERS",
    "MAX_SUBJECT",
    "SUBJECT_RULES",
    "Delivery",
    "EncodedMessage",
    "Encoder",
    "build_batch_frame",
    "is_pattern",
    "is_subject",
    "parse_delivery",
    "to_incoming_message",
]

MAX_SUBJECT: Final = 3_500
"""Bytes. A server closes the connection over a command line of more than 4,096, which holds the reply subject too."""
SUBJECT_RULES: Final = AddressRules(
    forbidden=r"[*>\s]",
    forbidden_words="a wildcard or a space",
    reserved=r"\$|(?:_INBOX|_R_|_GR_)(?:\.|$)",
    reserved_words="subjects with this beginning belong to the server and to answers",
    separator=".",
)
"""With the relay's login, a message to `$JS.API.STREAM.PURGE.X` would purge a stream."""
_SUBJECT: Final = re.compile(r"(?:(?![*>](?:\.|$))[^\s.\x00-\x1f\x7f]+)(?:\.(?![*>](?:\.|$))[^\s.\x00-\x1f\x7f]+)*")
_PATTERN: Final = re.compile(r"[^\s.\x00-\x1f\x7f]+(?:\.[^\s.\x00-\x1f\x7f]+)*")


@lru_cache(maxsize=8_192)
def is_subject(text: str) -> bool:
    """Return True if a message can be published to this: words between dots, without spaces and wildcards."""
    return _SUBJECT.fullmatch(text) is not None and len(text.encode()) <= MAX_SUBJECT


def is_pattern(text: str) -> bool:
    """Return True if this can be subscribed to: a subject, perhaps with wildcards."""
    return _PATTERN.fullmatch(text) is not None


_TRACE: Final = ("traceparent", "tracestate")
_UNESCAPED: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_HEADER_VALUE: Final = re.compile(r"[^\r\n\x00]*")
_RESERVED: Final = ("nats-", "ce-", "content-type")
_to_text: Final = msgspec.to_builtins


class EncodedMessage(NamedTuple):
    """A message ready to be published."""

    subject: str
    headers: bytes
    """The header block, to the empty line at its end."""
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that count against the server's limit."""
        return len(self.headers) + len(self.payload)

    def build_frame(self, reply: str) -> bytes:
        """Return the command that publishes it and requests the acknowledgement at `reply`."""
        head, body = self.headers, self.payload
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            self.subject.encode(), reply.encode(), len(head), len(head) + len(body), head, body,
        )  # fmt: skip


BATCH_HEADERS: Final = 128
"""Bytes that a message grows by at most in an atomic batch."""
_FIRST_LINE: Final = len(b"NATS/1.0\r\n")


def build_batch_frame(message: EncodedMessage, *, batch: str, number: int, is_last: bool, reply: str | None) -> bytes:
    """Return the command that publishes a message as one of an atomic batch, and requests an answer at `reply`."""
    commit = "Nats-Batch-Commit: 1\r\n" if is_last else ""
    extra = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n{commit}".encode()
    head, body = message.headers[:_FIRST_LINE] + extra + message.headers[_FIRST_LINE:], message.payload
    address = message.subject if reply is None else f"{message.subject} {reply}"
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (address.encode(), len(head), len(head) + len(body), head, body)


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """Encodes the messages of one destination."""

    subject: AddressTemplate
    stream: str | None = None
    inbox: str = "_INBOX"
    """The prefix of the subjects that answers come to. Nothing is published there."""
    mode: Literal["binary", "structured"] = "binary"

    def encode(self, message: Message, *, limit: int) -> EncodedMessage:
        """Encode a message; raise `MessageRejected` when NATS would not take it."""
        subject = self.subject(message)
        if not is_subject(subject):
            raise MessageRejected(
                f"its subject {subject[:100]!r} is none that NATS takes: words between dots, no spaces, * or >"
            )
        if subject.startswith(self.inbox) and f"{subject}.".startswith(f"{self.inbox}."):
            raise MessageRejected(f"its subject {subject[:100]!r} is in the inbox, where answers come to")
        expected = "" if self.stream is None else f"Nats-Expected-Stream: {self.stream}\r\n"
        is_binary = self.mode == "binary"
        attributes = _encode_attributes(message) if is_binary else _encode_structured_headers(message)
        block = f"NATS/1.0\r\nNats-Msg-Id: {_to_text(message.message_id)}\r\n{expected}{attributes}\r\n"
        encoded = EncodedMessage(subject, block.encode(), message.payload if is_binary else to_structured(message))
        if encoded.size > limit:
            raise MessageRejected(f"with its headers it has {encoded.size} bytes, and the server takes at most {limit}")
        return encoded


def _encode_structured_headers(message: Message) -> str:
    trace = {name: message.headers[name] for name in _TRACE if name in message.headers} if message.headers else {}
    return f"content-type: {STRUCTURED}\r\n{_encode_headers(trace)}"


def _encode_attributes(message: Message) -> str:
    # The same as `cloudevents.to_binary`, but text at once: this is the largest part of what a message costs.
    lines = [
        _encode_shared(message.source, message.type, message.topic, message.kind, message.content_type),
        f"ce-id: {_to_text(message.message_id)}\r\nce-time: {_to_text(message.event_time)}\r\n"
        f"ce-correlationid: {_escape(message.correlation_id)}\r\n",
    ]
    if message.key is not None:
        lines.append(f"ce-partitionkey: {_escape(message.key)}\r\n")
    if message.subject is not None:
        lines.append(f"ce-subject: {_escape(message.subject)}\r\n")
    if message.causation_id is not None:
        lines.append(f"ce-causationid: {_escape(message.causation_id)}\r\n")
    if message.headers:
        for name in _TRACE:
            if name in message.headers:
                lines.append(f"ce-{name}: {_escape(message.headers[name])}\r\n")
        lines.append(_encode_headers(message.headers))
    return "".join(lines)


@lru_cache(maxsize=4_096)
def _encode_shared(source: str, type_: str, topic: str, kind: Kind, content_type: str) -> str:
    """Encode the attributes that many messages have in common."""
    # The content type is there twice: as the binding has it, and where consumers without CloudEvents look for it.
    attributes = {"source": source, "type": type_, "topic": topic, "kind": kind.value, "datacontenttype": content_type}
    lines = [f"ce-{name}: {_escape(value)}\r\n" for name, value in attributes.items()]
    return "".join(["ce-specversion: 1.0\r\n", *lines, f"content-type: {_check_value(content_type)}\r\n"])


def _escape(value: str) -> str:
    return value if _UNESCAPED.fullmatch(value) else quote(value, safe=_SAFE)


def _encode_headers(headers: Mapping[str, str]) -> str:
    """Encode the message's own headers unchanged."""
    # The outbox refuses harmful names and values, but a row may have been written by other means.
    for name in headers:
        if name.lower().startswith(_RESERVED) or not _HEADER_NAME.fullmatch(name):
            raise MessageRejected(f"its header {name[:100]!r} would change what the publish is")
    return "".join([f"{name}: {_check_value(value)}\r\n" for name, value in headers.items()])


def _check_value(value: str) -> str:
    if not _HEADER_VALUE.fullmatch(value):
        raise MessageRejected("a header of it holds a line break")
    return value


_OLD_PARTS: Final = 9
"""Parts of the reply subject from servers that put no domain and account into it."""


class Delivery(NamedTuple):
    """A message of a stream, and what its reply subject says about it."""

    message: Msg
    sequence: int
    """Its number in the stream."""
    times: int
    """The count of deliveries, including this one."""

    @property
    def reply(self) -> str:
        """The subject to acknowledge it at."""
        return self.message.reply


def parse_delivery(message: Msg) -> Delivery | None:
    """Parse what the server sent; None if it is a status of the pull request."""
    parts = message.reply.split(".")
    if len(parts) < _OLD_PARTS or parts[:2] != ["$JS", "ACK"]:
        return None
    times, sequence = parts[4:6] if len(parts) == _OLD_PARTS else parts[6:8]
    return Delivery(message, int(sequence), int(times))


def to_incoming_message(delivery: Delivery, *, stream: str, token: object) -> IncomingMessage:
    """Convert a delivery. Without an id from the producer its place in the stream identifies it."""
    message = delivery.message
    headers = message.headers or {}
    message_id = headers.get("Nats-Msg-Id")
    return IncomingMessage(
        headers=headers,
        body=message.data,
        binding=NATS,
        fallback=FallbackIdentity(
            message_id=to_usable_id(message_id) if message_id else f"{stream}/{delivery.sequence}",
            source=f"nats:{stream}",
            type="nats",
            topic=message.subject,
        ),
        redelivered=delivery.times > 1,
        token=token,
    )
