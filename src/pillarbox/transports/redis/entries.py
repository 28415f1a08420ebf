"""A message as it goes over the wire to Redis: the command that adds it to a stream. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

from pillarbox.cloudevents import STRUCTURED, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.limits import RESERVED_PREFIXES
from pillarbox.message import Kind, Message
from pillarbox.transports.redis.settings import Durability
from pillarbox.transports.templates import Address

__all__ = ["DATA", "Entry", "Form", "command", "waiting"]

DATA: Final = "data"
"""The field that holds the payload."""
_TRACE: Final = ("traceparent", "tracestate")
_RESERVED: Final = (DATA, "content-type")
_text: Final = msgspec.to_builtins


class Entry(NamedTuple):
    """One message, ready to be added."""

    key: str
    head: bytes
    """The command, up to the payload."""
    payload: bytes

    @property
    def pieces(self) -> tuple[bytes, bytes, bytes]:
        """The command. In pieces, so that a large payload is copied once."""
        return self.head, self.payload, b"\r\n"

    @property
    def size(self) -> int:
        return len(self.head) + len(self.payload) + 2


def command(*words: str) -> bytes:
    """A command in the protocol's form."""
    return f"*{len(words)}\r\n{''.join([_bulk(word) for word in words])}".encode()


def waiting(durability: Durability, *, milliseconds: int) -> bytes | None:
    """The command that waits until what was written before it on the same connection is as safe as wanted."""
    replicas, patience = str(durability.replicas), str(milliseconds)
    if durability.is_synced:
        return command("WAITAOF", "1", replicas, patience)
    return command("WAIT", replicas, patience) if durability.replicas else None


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How the messages of one destination are added."""

    key: Address
    mode: Literal["binary", "structured"] = "binary"
    create: bool = True
    maxlen: int | None = None

    def entry(self, message: Message, *, limit: int) -> Entry:
        """The message on the wire; `MessageRejected` when Redis would not take it."""
        key = self.key(message)
        fields = _binary(message) if self.mode == "binary" else _structured(message)
        payload = message.payload if self.mode == "binary" else to_structured(message)
        if len(payload) > limit:
            raise MessageRejected(f"it has {len(payload)} bytes, and the server takes at most {limit} in a field")
        options = _options(self.create, self.maxlen)
        head = (
            f"*{5 + options.words + fields.words}\r\n$4\r\nXADD\r\n{_bulk(key)}{options.text}$1\r\n*\r\n{fields.text}"
        )
        return Entry(key, f"{head}$4\r\n{DATA}\r\n${len(payload)}\r\n".encode(), payload)


class _Words(NamedTuple):
    """A part of a command, and how many words it has."""

    words: int
    text: str


@lru_cache
def _options(create: bool, maxlen: int | None) -> _Words:
    words = [*(() if create else ("NOMKSTREAM",)), *(() if maxlen is None else ("MAXLEN", "~", str(maxlen)))]
    return _Words(len(words), "".join([_bulk(word) for word in words]))


def _structured(message: Message) -> _Words:
    fields = {"content-type": STRUCTURED}
    fields.update({name: message.headers[name] for name in _TRACE if name in message.headers})
    return _Words(2 * len(fields), "".join([_pair(name, value) for name, value in fields.items()]))


def _binary(message: Message) -> _Words:
    """As `cloudevents.to_binary` says, and in the protocol's form at once: this is most of what a message costs."""
    shared = _shared(message.source, message.type, message.topic, message.kind, message.content_type)
    parts = [
        shared.text,
        _pair("ce-id", _text(message.message_id)),
        _pair("ce-time", _text(message.event_time)),
        _pair("ce-correlationid", message.correlation_id),
    ]
    if message.key is not None:
        parts.append(_pair("ce-partitionkey", message.key))
    if message.subject is not None:
        parts.append(_pair("ce-subject", message.subject))
    if message.causation_id is not None:
        parts.append(_pair("ce-causationid", message.causation_id))
    if message.headers:
        parts += [_pair(f"ce-{name}", message.headers[name]) for name in _TRACE if name in message.headers]
        parts += [_pair(_checked(name), value) for name, value in message.headers.items()]
    return _Words(shared.words + 2 * (len(parts) - 1), "".join(parts))


@lru_cache(maxsize=4_096)
def _shared(source: str, type_: str, topic: str, kind: Kind, content_type: str) -> _Words:
    """What many messages have in common."""
    attributes = {"specversion": "1.0", "source": source, "type": type_, "topic": topic, "kind": kind.value}
    pairs = [_pair(f"ce-{name}", value) for name, value in attributes.items()]
    pairs.append(_pair("content-type", content_type))
    return _Words(2 * len(pairs), "".join(pairs))


def _checked(name: str) -> str:
    """Publishing refuses most of these; a row may have been written by other means."""
    if name.lower() in _RESERVED or name.lower().startswith(RESERVED_PREFIXES):
        raise MessageRejected(f"its header {name[:100]!r} has the name of a field that means something else")
    return name


def _pair(name: str, value: str) -> str:
    return f"{_name(name)}${len(value)}\r\n{value}\r\n" if value.isascii() else _name(name) + _bulk(value)


def _bulk(text: str) -> str:
    size = len(text) if text.isascii() else len(text.encode())
    return f"${size}\r\n{text}\r\n"


_name: Final = lru_cache(maxsize=1_024)(_bulk)
"""Names of fields are few."""
