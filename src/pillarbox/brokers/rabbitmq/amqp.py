"""AMQP 0-9-1 as bytes: frames, methods, properties and deliveries. Pure.

Frequent methods and everything that carries foreign text are encoded and decoded here; pamqp describes and encodes the
rare ones. It needs 45 µs to encode one publish with its headers, this file 6, and a relay encodes one per message.
Foreign values never break the connection: text that is not UTF-8, an impossible time or a field of an unknown
type costs its own value and nothing else.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from pillarbox.brokers.rabbitmq.errors import NotAmqp
from pillarbox.errors import MissingExtra

try:
    from pamqp import commands
    from pamqp.base import Frame
    from pamqp.common import FieldTable
    from pamqp.encode import field_table
    from pamqp.frame import marshal
except ModuleNotFoundError as error:
    raise MissingExtra("pamqp", extra="rabbitmq", needed_for="RabbitMQ") from error

__all__ = [
    "ACK",
    "BODY",
    "FRAME_MAX",
    "HEADER",
    "HEARTBEAT_FRAME",
    "MAX_BODY",
    "METHOD",
    "NACK",
    "PROTOCOL_HEADER",
    "RETURN",
    "SMALLEST_FRAME_MAX",
    "Delivery",
    "DeliveryReader",
    "FieldTable",
    "Frame",
    "Properties",
    "commands",
    "encode",
    "encode_ack",
    "encode_consume",
    "encode_content",
    "encode_exchange_declare",
    "encode_nack",
    "encode_open",
    "encode_properties",
    "encode_publish",
    "encode_queue_bind",
    "encode_queue_declare",
    "expect",
    "is_delivery",
    "read_confirm",
    "read_content_header",
    "read_method",
    "split_frames",
]

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
"""Types of frames."""
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
ACK: Final = b"\x00\x3c\x00\x50"
NACK: Final = b"\x00\x3c\x00\x78"
RETURN: Final = b"\x00\x3c\x00\x32"
_DELIVER: Final = b"\x00\x3c\x00\x3c"
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_FRAME_START: Final = struct.Struct(">BHL")
_FRAME_END: Final = b"\xce"
_OVERHEAD: Final = 8
"""Bytes of a frame around its payload."""
SMALLEST_FRAME_MAX: Final = 4_096
"""A server may not ask for less."""
FRAME_MAX: Final = 128 * 1024


# --- encoding ------------------------------------------------------------------------------------

_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_MANDATORY: Final = b"\x01"
_PERSISTENT: Final = b"\x02"
_REQUEUE: Final = b"\x02"
_CONTENT: Final = struct.Struct(">HHQH")

# The flags of the properties that a published message has, in the order in which they follow.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE = 1 << 15, 1 << 13, 1 << 12
_CORRELATION_ID, _MESSAGE_ID, _TIMESTAMP, _TYPE = 1 << 10, 1 << 7, 1 << 6, 1 << 5
_ALWAYS: Final = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | _TYPE


@lru_cache(maxsize=4_096)
def encode_publish(channel: int, exchange: str, routing_key: str) -> bytes:
    """Encode a mandatory publish to this address. Raises `ValueError` when a part is longer than 255 bytes."""
    return _encode_method(channel, _PUBLISH + _encode_short(exchange) + _encode_short(routing_key) + _MANDATORY)


def encode_properties(
    *,
    size: int,
    content_type: str,
    headers: Mapping[str, str],
    correlation_id: str | None,
    message_id: str,
    at: int | None,
    type: str,
) -> bytes:
    """Encode the content header of a persistent message. Raises `ValueError` when a text is too long."""
    flags, tail = _ALWAYS, [_PERSISTENT]
    if correlation_id is not None:
        flags |= _CORRELATION_ID
        tail.append(_encode_short(correlation_id))
    tail.append(_encode_short(message_id))
    if at is not None:
        flags |= _TIMESTAMP
        tail.append(at.to_bytes(8))
    tail.append(_encode_frequent(type))
    return b"".join((_CONTENT.pack(60, 0, size, flags), _encode_frequent(content_type), _encode_table(headers), *tail))


def encode_content(channel: int, header: bytes, body: bytes, *, frame_max: int) -> list[bytes]:
    """Encode the frames of a content header and a body. Raises `ValueError` when the header does not fit into one."""
    most = frame_max - _OVERHEAD
    if len(header) > most:
        raise ValueError(f"its headers are larger than the {most} bytes that fit into a frame")
    pieces = [_FRAME_START.pack(HEADER, channel, len(header)), header, _FRAME_END]
    for start in range(0, len(body), most):
        piece = body if len(body) <= most else body[start : start + most]
        pieces += (_FRAME_START.pack(BODY, channel, len(piece)), piece, _FRAME_END)
    return pieces


def encode_ack(channel: int, tag: int) -> bytes:
    """Encode the acknowledgement of one delivery."""
    return _encode_method(channel, ACK + tag.to_bytes(8) + b"\x00")


def encode_nack(channel: int, tag: int) -> bytes:
    """Encode the return of one delivery to its queue."""
    return _encode_method(channel, NACK + tag.to_bytes(8) + _REQUEUE)


def encode(channel: int, method: Frame) -> bytes:
    """Encode a method as pamqp describes it."""
    return marshal(method, channel)


# pamqp refuses names with characters that RabbitMQ takes, so whatever has a foreign name is encoded here.


def encode_exchange_declare(channel: int, name: str, *, type: str = "", passive: bool) -> bytes:
    """Encode the declaration of a durable exchange, or the question whether it exists."""
    bits = b"\x01" if passive else b"\x02"
    return _encode_method(
        channel, b"\x00\x28\x00\x0a\x00\x00" + _encode_short(name) + _encode_short(type) + bits + _encode_table({})
    )


def encode_queue_declare(channel: int, name: str, *, arguments: FieldTable | None = None) -> bytes:
    """Encode the declaration of a durable queue, or without arguments the question whether it exists."""
    bits, table = (b"\x01", _encode_table({})) if arguments is None else (b"\x02", field_table(arguments))
    return _encode_method(channel, b"\x00\x32\x00\x0a\x00\x00" + _encode_short(name) + bits + table)


def encode_queue_bind(channel: int, queue: str, exchange: str, routing_key: str) -> bytes:
    """Encode the binding of a queue to an exchange."""
    names = _encode_short(queue) + _encode_short(exchange) + _encode_short(routing_key)
    return _encode_method(channel, b"\x00\x32\x00\x14\x00\x00" + names + b"\x00" + _encode_table({}))


def encode_consume(channel: int, queue: str, *, tag: str = "") -> bytes:
    """Encode the subscription to a queue, with manual acknowledgement. Without a tag the broker chooses one."""
    names = _encode_short(queue) + _encode_short(tag)
    return _encode_method(channel, b"\x00\x3c\x00\x14\x00\x00" + names + b"\x00" + _encode_table({}))


def encode_open(vhost: str) -> bytes:
    """Encode the choice of a virtual host, the last step of the handshake."""
    return _encode_method(0, b"\x00\x0a\x00\x28" + _encode_short(vhost) + b"\x00\x00")


def _encode_method(channel: int, payload: bytes) -> bytes:
    return _FRAME_START.pack(METHOD, channel, len(payload)) + payload + _FRAME_END


def _encode_table(headers: Mapping[str, str]) -> bytes:
    pieces: list[bytes] = []
    for name, value in headers.items():
        text = value.encode()
        pieces += (_encode_frequent(name), b"S", len(text).to_bytes(4), text)
    table = b"".join(pieces)
    return len(table).to_bytes(4) + table


def _encode_short(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > 255:
        raise ValueError(f"{text[:40]}… is longer than the 255 bytes that AMQP allows there")
    return len(encoded).to_bytes(1) + encoded


_encode_frequent: Final = lru_cache(maxsize=4_096)(_encode_short)
"""For texts that come again."""


# --- decoding frames and methods -----------------------------------------------------------------

_CONFIRM: Final = struct.Struct(">4xQB")
F = TypeVar("F", bound=Frame)


def split_frames(buffer: bytearray, *, frame_max: int = FRAME_MAX) -> Iterator[tuple[int, int, bytes]]:
    """Take the complete frames out of the buffer: type, channel, payload.

    Raises `NotAmqp` for a frame of an unknown type, one that is larger than `frame_max`, and one without its end byte.
    """
    position, most = 0, frame_max - _OVERHEAD
    try:
        while len(buffer) - position >= _OVERHEAD:
            kind, channel, size = _FRAME_START.unpack_from(buffer, position)
            if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
                raise NotAmqp("it does not answer in AMQP 0-9-1")
            if size > most:  # checked before its end has come: a wrong length must not fill the memory
                raise NotAmqp(f"it sent a frame of {size + _OVERHEAD} bytes, and at most {frame_max} were agreed on")
            end = position + _OVERHEAD - 1 + size
            if len(buffer) <= end:
                return
            if buffer[end] != _FRAME_END[0]:
                raise NotAmqp("a frame does not end where it should")
            payload = bytes(buffer[position + _OVERHEAD - 1 : end])
            position = end + 1
            yield kind, channel, payload
    finally:
        del buffer[:position]


def read_confirm(payload: bytes) -> tuple[int, bool]:
    """Read the delivery tag of an ack or a nack, and whether it counts for all before it too."""
    try:
        tag, bits = _CONFIRM.unpack_from(payload)
    except struct.error as error:
        raise NotAmqp("it sent a confirm that cannot be read") from error
    return tag, bool(bits & 1)


def read_method(payload: bytes) -> Frame:
    """Read the method in a frame's payload; raise `NotAmqp` when it is none."""
    found = commands.INDEX_MAPPING.get(int.from_bytes(payload[:4]))
    if found is None:
        raise NotAmqp("it sent a method that AMQP 0-9-1 does not have")
    frame: Frame = found()
    at, bit = 4, 0
    try:
        for name in frame.attributes():
            kind = frame.amqp_type(name)
            if kind == "bit":  # neighbours share an octet
                value: object = bool(payload[at] >> bit & 1)
                bit += 1
            else:
                at, bit = at + (bit > 0), 0
                value, at = _ARGUMENTS[kind](payload, at)
            setattr(frame, name, value)
    except (LookupError, struct.error) as error:
        raise NotAmqp("it sent a method that cannot be read") from error
    return frame


def expect(frame: Frame, kind: type[F]) -> F:
    """Return the method if it is of this kind; else raise `NotAmqp`."""
    if not isinstance(frame, kind):
        raise NotAmqp(f"it answered with {frame.name} instead of {kind.name}")
    return frame


# --- decoding what other producers wrote ---------------------------------------------------------

_DEEPEST: Final = 32
"""Levels of tables and arrays inside each other that are read: a frame has room for 20,000."""
_CONTENT_SIZE: Final = struct.Struct(">4xQ")
_UINT64: Final = struct.Struct(">Q")
_MILLISECONDS_FROM: Final = 1 << 32
"""AMQP counts seconds. Above these, which are in the year 2106, some producer has counted milliseconds."""


class Properties(msgspec.Struct, gc=False):
    """The properties of a message. Text that is not UTF-8 has replacement characters, except in `message_id`."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    """Values that are text but not UTF-8 stay bytes."""
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    """Bytes that are not UTF-8 are lone surrogates here: two ids that differ must not become the same."""
    timestamp: datetime | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message that the broker delivered to a consumer."""

    tag: int
    redelivered: bool
    routing_key: str
    properties: Properties
    body: bytes
    header_size: int = 0

    @property
    def size(self) -> int:
        """Bytes of the properties and the body."""
        return self.header_size + len(self.body)


MAX_BODY: Final = 512 * 1024 * 1024
"""Bytes. No RabbitMQ accepts a larger message, whatever its settings."""


class DeliveryReader:
    """Puts deliveries together from their frames."""

    def __init__(self) -> None:
        self._method: tuple[int, bool, str] | None = None
        self._properties: Properties | None = None
        self._header_size = 0
        self._missing = 0
        self._pieces: list[bytes] = []

    def read(self, kind: int, payload: bytes) -> Delivery | None:
        """Return the delivery that this frame completes. Raises `NotAmqp` when the frame is out of turn."""
        if kind == METHOD:
            if self._method is not None:
                raise NotAmqp("it began a message before the end of another")
            self._method = _read_deliver(payload)
            return None
        if kind == HEADER and self._method is not None and self._properties is None:
            self._missing, self._properties = read_content_header(payload)
            self._header_size = len(payload)
            if self._missing > MAX_BODY:
                raise NotAmqp(f"it announced a message of {self._missing} bytes, and RabbitMQ has none over {MAX_BODY}")
        elif kind == BODY and self._properties is not None and len(payload) <= self._missing:
            self._missing -= len(payload)
            self._pieces.append(payload)
        else:
            raise NotAmqp("it sent a part of a message out of turn")
        return None if self._missing else self._take()

    def _take(self) -> Delivery:
        assert self._method is not None and self._properties is not None  # noqa: PT018, S101
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        delivery = Delivery(*self._method, self._properties, body, self._header_size)
        self._method = self._properties = None
        self._pieces = []
        return delivery


def is_delivery(payload: bytes) -> bool:
    """Tell whether the method in this payload begins a delivery."""
    return payload.startswith(_DELIVER)


def _read_deliver(payload: bytes) -> tuple[int, bool, str]:
    try:
        at = 5 + payload[4]  # behind the consumer's tag: a channel has one consumer
        (tag,) = _UINT64.unpack_from(payload, at)
        _, after = _read_short(payload, at + 9)  # behind the exchange
        routing_key, _ = _read_short(payload, after)
        return tag, bool(payload[at + 8] & 1), routing_key
    except (LookupError, struct.error) as error:
        raise NotAmqp("it sent a delivery that cannot be read") from error


def read_content_header(payload: bytes) -> tuple[int, Properties]:
    """Read the size of the body and the properties. Properties that are cut off, and all behind them, are left out."""
    properties = Properties()
    try:
        (size,) = _CONTENT_SIZE.unpack_from(payload)
    except struct.error as error:
        raise NotAmqp("it sent a content header that cannot be read") from error
    flags, at = int.from_bytes(payload[12:14]), 14
    more = flags
    while more & 1:  # then another word of flags follows, whose properties AMQP 0-9-1 does not know
        more = int.from_bytes(payload[at : at + 2])
        at += 2
    with contextlib.suppress(LookupError, struct.error):
        for bit, name, read in _PROPERTIES:
            if flags & bit:
                value, at = read(payload, at)
                setattr(properties, name, value)
    return size, properties


def _read_short(data: bytes, at: int) -> tuple[str, int]:
    end = _check_end(data, at + 1 + data[at])
    return data[at + 1 : end].decode(errors="replace"), end


def _read_id(data: bytes, at: int) -> tuple[str, int]:
    end = _check_end(data, at + 1 + data[at])
    return data[at + 1 : end].decode(errors="surrogateescape"), end


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = _check_end(data, at + 4 + int.from_bytes(data[at : at + 4]))
    return data[at + 4 : end], end


def _check_end(data: bytes, end: int) -> int:
    if end > len(data):
        raise IndexError(end)
    return end


def _read_long(data: bytes, at: int) -> tuple[str | bytes, int]:
    raw, end = _read_bytes(data, at)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


def _read_time(data: bytes, at: int) -> tuple[datetime | None, int]:
    (count,) = _UINT64.unpack_from(data, at)
    try:
        return datetime.fromtimestamp(count if count < _MILLISECONDS_FROM else count / 1000, tz=UTC), at + 8
    except (ValueError, OverflowError, OSError):
        return None, at + 8


def _read_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    scale, value = struct.unpack_from(">BL", data, at)
    return Decimal(value).scaleb(-scale), at + 5


def _read_table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    content, end = _read_bytes(data, at)
    return _parse_table(content, depth=1), end


def _parse_table(content: bytes, *, depth: int) -> dict[str, Any]:
    """Read the fields up to the end, or up to one that cannot be read."""
    fields: dict[str, Any] = {}
    at = 0
    with contextlib.suppress(LookupError, struct.error):
        while at < len(content):
            name, at = _read_short(content, at)
            fields[name], at = _read_field(content, at, depth)
    return fields


def _parse_array(content: bytes, *, depth: int) -> list[Any]:
    values: list[Any] = []
    at = 0
    with contextlib.suppress(LookupError, struct.error):
        while at < len(content):
            value, at = _read_field(content, at, depth)
            values.append(value)
    return values


def _read_field(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    if kind not in (b"F", b"A"):
        return _FIELDS[kind](data, at + 1)
    content, end = _read_bytes(data, at + 1)
    if depth == _DEEPEST:
        return None, end
    parse = _parse_table if kind == b"F" else _parse_array
    return parse(content, depth=depth + 1), end


def _build_reader(form: str) -> Callable[[bytes, int], tuple[Any, int]]:
    layout = struct.Struct(f">{form}")
    return lambda data, at: (layout.unpack_from(data, at)[0], at + layout.size)


_ARGUMENTS: Final[Mapping[str, Callable[[bytes, int], tuple[Any, int]]]] = {
    "octet": _build_reader("B"),
    "short": _build_reader("H"),
    "long": _build_reader("L"),
    "longlong": _build_reader("Q"),
    "shortstr": _read_short,
    "longstr": _read_long,
    "table": _read_table,
}
"""By type, the reader of a method's argument."""

_FIELDS: Final[Mapping[bytes, Callable[[bytes, int], tuple[Any, int]]]] = {
    # As RabbitMQ has them, not the specification: https://www.rabbitmq.com/amqp-0-9-1-errata
    b"t": _build_reader("?"),
    b"b": _build_reader("b"),
    b"B": _build_reader("B"),
    b"s": _build_reader("h"),
    b"u": _build_reader("H"),
    b"I": _build_reader("l"),
    b"i": _build_reader("L"),
    b"l": _build_reader("q"),
    b"L": _build_reader("q"),
    b"f": _build_reader("f"),
    b"d": _build_reader("d"),
    b"D": _read_decimal,
    b"S": _read_long,
    b"T": _read_time,
    b"x": _read_bytes,
    b"V": lambda _, at: (None, at),
    b"\x00": lambda _, at: (None, at),
}
"""By type, the reader of a field in a table, except for the types that nest."""

_PROPERTIES: Final[tuple[tuple[int, str, Callable[[bytes, int], tuple[Any, int]]], ...]] = (
    (1 << 15, "content_type", _read_short),
    (1 << 14, "content_encoding", _read_short),
    (1 << 13, "headers", _read_table),
    (1 << 12, "delivery_mode", _build_reader("B")),
    (1 << 11, "priority", _build_reader("B")),
    (1 << 10, "correlation_id", _read_short),
    (1 << 9, "reply_to", _read_short),
    (1 << 8, "expiration", _read_short),
    (1 << 7, "message_id", _read_id),
    (1 << 6, "timestamp", _read_time),
    (1 << 5, "type", _read_short),
    (1 << 4, "user_id", _read_short),
    (1 << 3, "app_id", _read_short),
    (1 << 2, "cluster_id", _read_short),
)
"""Flag, name and reader, in the order in which properties follow each other."""
