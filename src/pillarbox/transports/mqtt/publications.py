"""A message as MQTT has it: a topic, properties and a body. Pure.

Properties are packed here and not by the driver, whose way takes longer than all the rest of sending a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

import msgspec

from pillarbox.cloudevents import MQTT, STRUCTURED, to_binary, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.message import Message
from pillarbox.transports.templates import Address

__all__ = ["Publication", "Publisher", "publisher"]

_CONTENT_TYPE: Final = b"\x03"
_CORRELATION_DATA: Final = b"\x09"
_USER_PROPERTY: Final = b"\x26"
_MOST: Final = 0xFFFF
"""Bytes of a text or of binary data in a property, and of a topic."""

_NONCHARACTERS: Final = "".join(
    f"{chr(0x10000 * plane + 0xFFFE)}{chr(0x10000 * plane + 0xFFFF)}" for plane in range(17)
)
_UNUSABLE: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
"""A broker may hang up on these, and Mosquitto does."""


class Publication(msgspec.Struct, frozen=True, gc=False):
    """What goes over the wire."""

    topic: str
    properties: bytes
    """Packed, with their length before them."""
    body: bytes

    @property
    def size(self) -> int:
        """Bytes of the whole packet."""
        rest = 4 + len(self.topic.encode()) + len(self.properties) + len(self.body)
        return 1 + len(_length(rest)) + rest


Publisher = Callable[[Message], Publication]
"""`MessageRejected` when the message cannot be put into MQTT."""


def publisher(topic: Address, *, mode: Literal["binary", "structured"]) -> Publisher:
    """How messages of one destination are published."""
    if mode == "structured":
        return lambda message: Publication(_checked_topic(topic(message)), _few(message), to_structured(message))
    return lambda message: Publication(_checked_topic(topic(message)), _all(message), message.payload)


def _few(message: Message) -> bytes:
    """In structured mode the attributes are in the body."""
    return _packed([_CONTENT_TYPE + _text(STRUCTURED), _correlation(message)])


def _all(message: Message) -> bytes:
    headers, _ = to_binary(message, binding=MQTT)
    parts = [_CONTENT_TYPE + _text(headers.pop("content-type")), _correlation(message)]
    parts += [_name(name) + _text(value) for name, value in headers.items()]
    return _packed(parts)


def _correlation(message: Message) -> bytes:
    return _CORRELATION_DATA + _text(message.correlation_id)


@lru_cache(maxsize=1_024)
def _name(name: str) -> bytes:
    return _USER_PROPERTY + _text(name)


def _text(text: str) -> bytes:
    if not (text.isascii() and text.isprintable()) and _UNUSABLE.search(text):
        raise MessageRejected("A header or an attribute of the message holds a character that MQTT does not carry.")
    data = text.encode()
    if len(data) > _MOST:
        raise MessageRejected(f"A header or an attribute of the message is longer than {_MOST} bytes.")
    return len(data).to_bytes(2) + data


def _packed(parts: list[bytes]) -> bytes:
    properties = b"".join(parts)
    return _length(len(properties)) + properties


def _length(count: int) -> bytes:
    """MQTT's variable byte integer."""
    if count < 0x80:
        return bytes((count,))
    digits = bytearray()
    while count >= 0x80:
        digits.append(count & 0x7F | 0x80)
        count >>= 7
    digits.append(count)
    return bytes(digits)


@lru_cache(maxsize=1_024)
def _checked_topic(topic: str) -> str:
    if not topic or "+" in topic or "#" in topic or _UNUSABLE.search(topic) or len(topic.encode()) > _MOST:
        raise MessageRejected(
            f"The topic {topic[:100]!r} is none that MQTT can publish to: it must not be empty or hold '+', '#' or "
            "control characters."
        )
    return topic
