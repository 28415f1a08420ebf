"""Messages as MQTT packets: topic, properties and body. Pure.

Properties are packed here and not by paho, which takes longer for them than for the rest of sending a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

import msgspec

from pillarbox.brokers.templates import AddressRules, AddressTemplate
from pillarbox.cloudevents import MQTT, STRUCTURED, to_binary, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.message import Message

__all__ = ["TOPIC_RULES", "EncodedMessage", "Encoder", "build_encoder"]

TOPIC_RULES: Final = AddressRules(
    forbidden=r"[+#]",
    forbidden_words="a wildcard",
    reserved=r"\$",
    reserved_words="topics that begin with $ belong to the broker",
    separator="/",
)
"""`$SYS` and `$share` mean something to every broker, and many have more of that kind."""

_CONTENT_TYPE: Final = b"\x03"
_CORRELATION_DATA: Final = b"\x09"
_USER_PROPERTY: Final = b"\x26"
_MAX_BYTES: Final = 0xFFFF
"""Limit of a text or of binary data in a property, and of a topic."""

_NONCHARACTERS: Final = "".join(
    f"{chr(0x10000 * plane + 0xFFFE)}{chr(0x10000 * plane + 0xFFFF)}" for plane in range(17)
)
_FORBIDDEN: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
"""Characters on which a broker may close the connection. Mosquitto does."""


class EncodedMessage(msgspec.Struct, frozen=True, gc=False):
    """Topic, properties and body of one PUBLISH packet."""

    topic: str
    properties: bytes
    """Packed, with their length in front."""
    body: bytes

    @property
    def size(self) -> int:
        """Size of the whole packet in bytes."""
        rest = 4 + len(self.topic.encode()) + len(self.properties) + len(self.body)
        return 1 + len(_encode_length(rest)) + rest


Encoder = Callable[[Message], EncodedMessage]
"""Encodes a message; raises `MessageRejected` if MQTT cannot carry it."""


def build_encoder(topic: AddressTemplate, *, mode: Literal["binary", "structured"]) -> Encoder:
    """Return the encoder for messages of one destination."""
    if mode == "structured":
        return lambda message: EncodedMessage(
            _check_topic(topic(message)), _pack_structured(message), to_structured(message)
        )
    return lambda message: EncodedMessage(_check_topic(topic(message)), _pack_binary(message), message.payload)


def _pack_structured(message: Message) -> bytes:
    return _pack([_CONTENT_TYPE + _encode_text(STRUCTURED), _encode_correlation_data(message)])


def _pack_binary(message: Message) -> bytes:
    headers, _ = to_binary(message, binding=MQTT)
    properties = [_CONTENT_TYPE + _encode_text(headers.pop("content-type")), _encode_correlation_data(message)]
    properties += [_encode_name(name) + _encode_text(value) for name, value in headers.items()]
    return _pack(properties)


def _encode_correlation_data(message: Message) -> bytes:
    return _CORRELATION_DATA + _encode_text(message.correlation_id)


@lru_cache(maxsize=1_024)
def _encode_name(name: str) -> bytes:
    return _USER_PROPERTY + _encode_text(name)


def _encode_text(text: str) -> bytes:
    if not (text.isascii() and text.isprintable()) and _FORBIDDEN.search(text):
        raise MessageRejected("A header or an attribute of the message holds a character that MQTT does not carry.")
    data = text.encode()
    if len(data) > _MAX_BYTES:
        raise MessageRejected(f"A header or an attribute of the message is longer than {_MAX_BYTES} bytes.")
    return len(data).to_bytes(2) + data


def _pack(properties: list[bytes]) -> bytes:
    packed = b"".join(properties)
    return _encode_length(len(packed)) + packed


def _encode_length(count: int) -> bytes:
    """Return a number as MQTT's variable byte integer."""
    if count < 0x80:
        return bytes((count,))
    digits = bytearray()
    while count >= 0x80:
        digits.append(count & 0x7F | 0x80)
        count >>= 7
    digits.append(count)
    return bytes(digits)


@lru_cache(maxsize=1_024)
def _check_topic(topic: str) -> str:
    if not topic or "+" in topic or "#" in topic or _FORBIDDEN.search(topic) or len(topic.encode()) > _MAX_BYTES:
        raise MessageRejected(
            f"The topic {topic[:100]!r} is none that MQTT can publish to: it must not be empty or hold '+', '#' or "
            "control characters."
        )
    return topic
