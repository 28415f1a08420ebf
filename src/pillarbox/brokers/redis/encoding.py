"""Messages on the wire of Redis: the commands that add them to a stream, and the replies that bring them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from pillarbox.brokers.redis.settings import Durability
from pillarbox.brokers.templates import AddressTemplate
from pillarbox.cloudevents import REDIS, STRUCTURED, to_structured
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.decoding import to_usable_id
from pillarbox.errors import MessageRejected
from pillarbox.message import RESERVED_PREFIXES, Kind, Message

__all__ = [
    "MAX_SCRIPT_WORDS",
    "ClaimReply",
    "Delivery",
    "EncodedMessage",
    "Encoder",
    "ReadReply",
    "encode_command",
    "encode_run",
    "encode_wait",
    "parse_claim_reply",
    "parse_entry_id",
    "parse_pending_ids",
    "parse_read_reply",
    "to_incoming_message",
]

_DATA: Final = "data"
"""The field that holds the payload."""
_TRACE: Final = ("traceparent", "tracestate")
_RESERVED: Final = (_DATA, "content-type")
_LONGEST_KEY: Final = 4_096
"""Bytes. Redis itself takes 512 MiB, which helps nobody who has to find a stream."""
_to_text: Final = msgspec.to_builtins


class EncodedMessage(NamedTuple):
    """A message ready to be added to a stream."""

    key: str
    words: int
    """Number of words of the command."""
    head: bytes
    """The command, up to the payload."""
    payload: bytes

    @property
    def pieces(self) -> tuple[bytes, bytes, bytes]:
        """The command, in pieces, so that a large payload is copied only once."""
        return self.head, self.payload, b"\r\n"

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload) + 2


def encode_command(*words: str) -> bytes:
    """Encode a command in the protocol."""
    return f"*{len(words)}\r\n{''.join([_encode_bulk(word) for word in words])}".encode()


def encode_wait(durability: Durability, *, milliseconds: int) -> bytes | None:
    """Encode the command that waits until what was written before it on the same connection is durable."""
    replicas, timeout = str(durability.replicas), str(milliseconds)
    if durability.is_synced:
        return encode_command("WAITAOF", "1", replicas, timeout)
    return encode_command("WAIT", replicas, timeout) if durability.replicas else None


_ADD_RUN: Final = """\
local replies, at = {}, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  local reply = redis.pcall('XADD', KEYS[1], unpack(ARGV, at + 1, at + words))
  replies[#replies + 1] = reply
  if type(reply) ~= 'string' then break end
  at = at + words + 1
end
return replies
"""
"""Adds entries to one stream until the server does not take one; returns the replies up to that one.

A script, because between the commands of a pipeline the server's state changes, and a transaction goes on after a
command that fails: either could leave a later message without an earlier one.
"""
MAX_SCRIPT_WORDS: Final = 1_000
"""Words of a message that a script adds. Lua cannot unpack much more than 7,000; such a message goes alone."""


def encode_run(messages: Sequence[EncodedMessage]) -> list[bytes]:
    """Encode the command that adds messages to the stream of the first one, in pieces, up to the first failure."""
    key = messages[0].key
    words = 4 + sum(message.words - 1 for message in messages)  # each without XADD and key, but with their number
    start = "".join([_encode_bulk(word) for word in ("EVAL", _ADD_RUN, "1", key)])
    pieces = [f"*{words}\r\n{start}".encode()]
    for message in messages:
        skipped = len(f"*{message.words}\r\n$4\r\nXADD\r\n{_encode_bulk(key)}".encode())
        pieces += (_encode_bulk(str(message.words - 2)).encode(), message.head[skipped:], message.payload, b"\r\n")
    return pieces


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """Encodes the messages of one destination."""

    key: AddressTemplate
    mode: Literal["binary", "structured"] = "binary"
    create: bool = True
    maxlen: int | None = None

    def encode(self, message: Message, *, limit: int) -> EncodedMessage:
        """Encode a message; raise `MessageRejected` when Redis would not take it."""
        key = self.key(message)
        if len(key.encode()) > _LONGEST_KEY:
            raise MessageRejected(f"its key {key[:100]!r}… is longer than {_LONGEST_KEY} bytes")
        fields = _encode_attributes(message) if self.mode == "binary" else _encode_structured_fields(message)
        payload = message.payload if self.mode == "binary" else to_structured(message)
        if len(payload) > limit:
            raise MessageRejected(f"it has {len(payload)} bytes, and the server takes at most {limit} in a field")
        options = _encode_options(self.create, self.maxlen)
        words = 5 + options.words + fields.words
        head = f"*{words}\r\n$4\r\nXADD\r\n{_encode_bulk(key)}{options.text}$1\r\n*\r\n{fields.text}"
        return EncodedMessage(key, words, f"{head}$4\r\n{_DATA}\r\n${len(payload)}\r\n".encode(), payload)


class _Fragment(NamedTuple):
    """A part of a command, and how many words it has."""

    words: int
    text: str


@lru_cache
def _encode_options(create: bool, maxlen: int | None) -> _Fragment:
    words = [*(() if create else ("NOMKSTREAM",)), *(() if maxlen is None else ("MAXLEN", "~", str(maxlen)))]
    return _Fragment(len(words), "".join([_encode_bulk(word) for word in words]))


def _encode_structured_fields(message: Message) -> _Fragment:
    fields = {"content-type": STRUCTURED}
    fields.update({name: message.headers[name] for name in _TRACE if name in message.headers})
    return _Fragment(2 * len(fields), "".join([_encode_field(name, value) for name, value in fields.items()]))


def _encode_attributes(message: Message) -> _Fragment:
    # The same as `cloudevents.to_binary`, but in the protocol at once: this is most of what a message costs.
    shared = _encode_shared(message.source, message.type, message.topic, message.kind, message.content_type)
    parts = [
        shared.text,
        _encode_field("ce-id", _to_text(message.message_id)),
        _encode_field("ce-time", _to_text(message.event_time)),
        _encode_field("ce-correlationid", message.correlation_id),
    ]
    if message.key is not None:
        parts.append(_encode_field("ce-partitionkey", message.key))
    if message.subject is not None:
        parts.append(_encode_field("ce-subject", message.subject))
    if message.causation_id is not None:
        parts.append(_encode_field("ce-causationid", message.causation_id))
    if message.headers:
        parts += [_encode_field(f"ce-{name}", message.headers[name]) for name in _TRACE if name in message.headers]
        parts += [_encode_field(_check_name(name), value) for name, value in message.headers.items()]
    return _Fragment(shared.words + 2 * (len(parts) - 1), "".join(parts))


@lru_cache(maxsize=4_096)
def _encode_shared(source: str, type_: str, topic: str, kind: Kind, content_type: str) -> _Fragment:
    """Encode the attributes that many messages have in common."""
    attributes = {"specversion": "1.0", "source": source, "type": type_, "topic": topic, "kind": kind.value}
    pairs = [_encode_field(f"ce-{name}", value) for name, value in attributes.items()]
    pairs.append(_encode_field("content-type", content_type))
    return _Fragment(2 * len(pairs), "".join(pairs))


def _check_name(name: str) -> str:
    # The outbox refuses most of these, but a row may have been written by other means.
    if name.lower() in _RESERVED or name.lower().startswith(RESERVED_PREFIXES):
        raise MessageRejected(f"its header {name[:100]!r} has the name of a field that means something else")
    return name


def _encode_field(name: str, value: str) -> str:
    if value.isascii():  # nearly always: saves a call
        return f"{_encode_name(name)}${len(value)}\r\n{value}\r\n"
    return _encode_name(name) + _encode_bulk(value)


def _encode_bulk(text: str) -> str:
    size = len(text) if text.isascii() else len(text.encode())
    return f"${size}\r\n{text}\r\n"


_encode_name: Final = lru_cache(maxsize=1_024)(_encode_bulk)
"""The names of fields are few, so that remembering them pays."""


_SPECVERSION: Final = f"{REDIS.prefix}specversion"


class Delivery(msgspec.Struct, frozen=True, eq=False):
    """An entry that was delivered. The same entry may come again, as another delivery."""

    id: str
    fields: Sequence[bytes]
    """Names and values by turns."""
    redelivered: bool

    @property
    def size(self) -> int:
        """Bytes of all names and values."""
        return sum(map(len, self.fields))


class ReadReply(NamedTuple):
    """The reply to XREADGROUP."""

    deliveries: list[Delivery]
    trimmed: list[str]
    """Entries that are pending, but no longer in the stream."""


class ClaimReply(NamedTuple):
    """The reply to XAUTOCLAIM."""

    cursor: str
    """The id to continue at. `0-0`: all was looked at."""
    deliveries: list[Delivery]
    trimmed: list[str]


def parse_read_reply(reply: Any, *, redelivered: bool) -> ReadReply:
    """Parse the reply to XREADGROUP on one stream."""
    entries = reply[0][1] if reply else []
    return ReadReply(_to_deliveries(entries, redelivered), [id.decode() for id, fields in entries if fields is None])


def parse_claim_reply(reply: Any) -> ClaimReply:
    """Parse the reply to XAUTOCLAIM. Before Redis 7 a trimmed entry is nil in it, without its id."""
    cursor, entries, *deleted = reply
    trimmed = [id.decode() for id in deleted[0]] if deleted else []
    return ClaimReply(cursor.decode(), _to_deliveries([entry for entry in entries if entry], True), trimmed)


def parse_pending_ids(reply: Any) -> list[str]:
    """Parse the ids in the reply to XPENDING over a range."""
    return [entry[0].decode() for entry in reply]


def parse_entry_id(id: str) -> tuple[int, int]:
    """Parse an id into what orders it: milliseconds, and a number."""
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number)


def _to_deliveries(entries: Iterable[Any], redelivered: bool) -> list[Delivery]:
    return [Delivery(id.decode(), fields, redelivered) for id, fields in entries if fields is not None]


def to_incoming_message(delivery: Delivery, *, stream: str, token: object) -> IncomingMessage:
    """Convert a delivery. An entry that is no CloudEvent is identified by its place in the stream."""
    fields = dict(zip(*[iter(delivery.fields)] * 2, strict=True))
    headers: dict[str, object] = {name.decode(errors="replace"): _decode_value(value) for name, value in fields.items()}
    body = fields.get(_DATA.encode())
    if body is not None:
        del headers[_DATA]
    elif _SPECVERSION not in headers:  # a producer that writes fields and no payload
        body, headers = msgspec.json.encode(headers), {"content-type": "application/json", **headers}
    return IncomingMessage(
        headers=headers,
        body=body or b"",
        binding=REDIS,
        fallback=FallbackIdentity(
            message_id=to_usable_id(f"{stream}/{delivery.id}"), source=f"redis:{stream}", type="redis", topic=stream
        ),
        redelivered=delivery.redelivered,
        token=token,
    )


def _decode_value(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
