"""A message as SQS and SNS have it: a text and at most ten attributes. Pure.

There is no CloudEvents binding for them, so this one is ours.

- `structured`: the text is the event as one JSON document. Attributes are copies, for filters: `content-type`, `ce_id`,
  `ce_source`, `ce_type`, `ce_topic`, `ce_kind`, `ce_partitionkey`, `ce_correlationid`, `ce_causationid`,
  `ce_traceparent`.
- `binary`: the text is the payload, as it is or in base64. Attributes: `content-type`, `ce_id`, `ce_source`, `ce_type`,
  `ce_time`, `ce_partitionkey`, `ce_correlationid`, `ce_traceparent`; `pillarbox`, a JSON document with the rest; and
  `content-encoding`, if it is `base64`, or `empty`.

The text holds only characters that XML 1.0 has, and is never empty; nor is an attribute. One that would be is left to
the JSON document.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from pillarbox.cloudevents import KAFKA, STRUCTURED, CloudEvent, from_binary, from_structured, to_binary, to_structured
from pillarbox.errors import DecodeError
from pillarbox.message import Message

__all__ = ["Parts", "from_parts", "to_parts"]

_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COPIES: Final = (
    "id",
    "source",
    "type",
    "topic",
    "kind",
    "partitionkey",
    "correlationid",
    "causationid",
    "traceparent",
)
_OWN: Final = frozenset({"id", "source", "type", "time", "partitionkey", "correlationid", "traceparent"})
"""In binary mode, these have an attribute each."""
_PREFIX: Final = KAFKA.prefix
_TYPE: Final = "content-type"
_ENCODING: Final = "content-encoding"
_REST: Final = "pillarbox"
_NOTHING: Final = "-"
"""Stands for a text that is empty."""


class Parts(msgspec.Struct, frozen=True):
    """What goes over the wire."""

    text: str
    attributes: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes, as AWS counts them: the text, and each attribute's name, type and value."""
        said = sum(len(name) + len("String") + _bytes(value) for name, value in self.attributes.items())
        return _bytes(self.text) + said


def to_parts(message: Message, *, mode: Literal["binary", "structured"]) -> Parts:
    """The message in that mode."""
    headers, payload = to_binary(message, binding=KAFKA)
    if mode == "structured":
        copies = {name: headers.get(name, "") for name in (_PREFIX + name for name in _COPIES)}
        return Parts(_document(message), {_TYPE: STRUCTURED} | _usable(copies))
    own = _usable({name: value for name, value in headers.items() if name == _TYPE or name[len(_PREFIX) :] in _OWN})
    rest = {name: value for name, value in headers.items() if name not in own}
    text, encoding = _encoded(payload)
    return Parts(text, own | {_REST: json.dumps(rest)} | ({_ENCODING: encoding} if encoding else {}))


def from_parts(text: str, attributes: Mapping[str, str]) -> CloudEvent:
    """The event that these parts are, in either mode; `DecodeError` when they are none.

    Of SNS, the parts as raw message delivery brings them.
    """
    if attributes.get(_TYPE) == STRUCTURED:
        return from_structured(text)
    try:
        rest = msgspec.json.decode(attributes.get(_REST, "{}"), type=dict[str, str])
        payload = _decoded(text, attributes.get(_ENCODING))
    except (ValueError, binascii.Error) as error:
        raise DecodeError(f"A received message is not a CloudEvent: {error}.") from None
    own = {name: value for name, value in attributes.items() if name not in (_REST, _ENCODING)}
    return from_binary(rest | own, payload, binding=KAFKA)


def _document(message: Message) -> str:
    """As JSON. A payload with a character that XML lacks goes as base64, so that it stays the same to the last byte."""
    document = to_structured(message)
    text = document.decode()
    if not _ILLEGAL.search(text):
        return text
    members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    if members.pop("data", None) is not None:
        members["data_base64"] = msgspec.Raw(msgspec.json.encode(base64.b64encode(message.payload).decode()))
    return _ILLEGAL.sub(lambda one: f"\\u{ord(one[0]):04x}", msgspec.json.encode(members).decode())


def _usable(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value and not _ILLEGAL.search(value)}


def _encoded(payload: bytes) -> tuple[str, str | None]:
    if not payload:
        return _NOTHING, "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _ILLEGAL.search(text):
        return base64.b64encode(payload).decode(), "base64"
    return text, None


def _decoded(text: str, encoding: str | None) -> bytes:
    if encoding == "empty":
        return b""
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
