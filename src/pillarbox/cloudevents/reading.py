"""CloudEvents to what a consumer handles. Whatever comes is either an event or a `DecodeError`."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from urllib.parse import unquote

import msgspec

from pillarbox.cloudevents.event import ESCAPE, HEADERS, KAFKA, OWN, STRUCTURED, TRACE, Binding, CloudEvent
from pillarbox.codec import JSON, is_json
from pillarbox.errors import DecodeError
from pillarbox.limits import MAX_TEXT, RESERVED_HEADERS
from pillarbox.message import Kind

__all__ = ["from_binary", "from_structured", "native_headers", "read"]

_UNKNOWN: Final = "application/octet-stream"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST_CHARACTER: Final = 4
"""Bytes in UTF-8."""
_KINDS: Final = frozenset(kind.value for kind in Kind)
_AS_IT_IS: Final = Binding(prefix="")
_LIMITED: Final = frozenset(
    {"id", "source", "type", "subject", "topic", "partitionkey", "correlationid", "causationid", "datacontenttype"}
)
"""Texts that end up in index entries or in the next message."""


def read(headers: Mapping[str, object], body: bytes, *, binding: Binding) -> CloudEvent:
    """A received message in either mode, told apart by its content type; `DecodeError` when it is neither."""
    content_type = _content_type(headers)
    if content_type.lower().startswith("application/cloudevents"):
        if content_type.partition(";")[0].strip().lower() != STRUCTURED:
            raise DecodeError(f"A CloudEvent came as {content_type!r}; only {STRUCTURED} and binary mode are read.")
        return from_structured(body)
    return from_binary(headers, body, binding=binding)


def _content_type(headers: Mapping[str, object]) -> str:
    found = headers.get("content-type")
    if found is None:
        found = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    return _text(found) or ""


def from_binary(headers: Mapping[str, object], body: bytes, *, binding: Binding) -> CloudEvent:
    """The event in these headers and this body; `DecodeError` when they do not make one.

    Names of attributes are compared without letter case; values may be text, bytes, numbers or times, as protocols
    have them. Headers that belong to the protocol itself, or are not text, are dropped.
    """
    if not binding.prefix:
        headers, binding = _told_apart(headers), KAFKA
    prefixes = _prefixes(binding)
    attributes: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower.startswith(prefixes):
            attribute = lower[_length(prefixes, lower) :]
            attributes[attribute] = _attribute(attribute, value, binding)
            continue
        text = value if isinstance(value, str) else _text(value)
        if text is None or _has_control(text):
            continue
        if lower == "content-type":
            attributes["datacontenttype"] = text
        elif lower in TRACE:
            attributes.setdefault(lower, text)
        elif lower not in RESERVED_HEADERS:
            others[name] = text
    return _event(attributes, body, others, content_type=_UNKNOWN)


@cache
def _prefixes(binding: Binding) -> tuple[str, ...]:
    return tuple(prefix.lower() for prefix in (binding.prefix, *binding.also_read))


def _length(prefixes: tuple[str, ...], name: str) -> int:
    """Of the prefix that this name begins with."""
    for prefix in prefixes:
        if name.startswith(prefix):
            return len(prefix)
    return 0


def _told_apart(headers: Mapping[str, object]) -> dict[str, object]:
    """Attributes with a prefix, and headers without, where both came by their bare names."""
    return {_prefixed(name): value for name, value in headers.items()}


def _prefixed(name: str) -> str:
    lower = name.lower()
    if lower in OWN:
        return KAFKA.prefix + lower
    return name[len(ESCAPE) :] if lower.startswith(ESCAPE) else name


def _attribute(name: str, value: object, binding: Binding) -> str:
    if binding.native_times and name == "time" and isinstance(value, int):
        value = _from_milliseconds(value)
    text = value if isinstance(value, str) else _text(value)
    if text is None:
        raise DecodeError(f"The attribute {name} of a received CloudEvent is not text, a number or a time.")
    return _percent_decoded(text) if binding.percent_encoded and ("%" in text or '"' in text) else text


def native_headers(headers: Mapping[str, object]) -> tuple[dict[str, str], str | None]:
    """Of a message that is no CloudEvent: the headers that are text, and the content type."""
    content_type = None
    others: dict[str, str] = {}
    for name, value in headers.items():
        lower, text = name.lower(), _text(value)
        if text is None or _has_control(text):
            continue
        if lower == "content-type":
            content_type = text
        elif lower not in RESERVED_HEADERS or lower in TRACE:
            others[lower if lower in TRACE else name] = text
    return others, content_type


def from_structured(document: bytes | str) -> CloudEvent:
    """The event in this JSON document; `DecodeError` when it does not make one."""
    try:
        members: dict[str, msgspec.Raw] = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        data, data_base64 = members.pop("data", None), members.pop("data_base64", None)
        decoded = {name: msgspec.json.decode(value) for name, value in members.items()}
        attributes = {name: _attribute(name, value, _AS_IT_IS) for name, value in decoded.items() if value is not None}
        headers = _headers(attributes)
        payload = _payload(data, data_base64, attributes.get("datacontenttype") or JSON)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"A received document is not a CloudEvent: {error}.") from None
    return _event(attributes, payload, headers, content_type=JSON)


def _headers(attributes: dict[str, str]) -> dict[str, str]:
    text = attributes.pop(HEADERS, None)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, str])


def _payload(data: msgspec.Raw | None, data_base64: msgspec.Raw | None, content_type: str) -> bytes:
    if data is not None and data_base64 is not None:
        raise DecodeError("A received CloudEvent has both data and data_base64; it may have one.")
    if data_base64 is not None:
        return base64.b64decode(msgspec.json.decode(data_base64, type=str), validate=True)
    if data is None:
        return b""
    if not is_json(content_type) and bytes(data).startswith((b'"', b"null")):
        return (msgspec.json.decode(data, type=str | None) or "").encode()
    return bytes(data)


def _event(attributes: dict[str, str], payload: bytes, headers: dict[str, str], *, content_type: str) -> CloudEvent:
    attributes = {name: _checked(name, value) for name, value in attributes.items() if value}
    if attributes.pop("specversion", None) != "1.0":
        raise DecodeError("A received message is not a CloudEvent of version 1.0; look at its specversion.")
    try:
        message_id, source, type_ = attributes.pop("id"), attributes.pop("source"), attributes.pop("type")
    except KeyError as error:
        raise DecodeError(f"A received CloudEvent has no {error.args[0]}, which every CloudEvent needs.") from None
    trace = {name: attributes.pop(name) for name in TRACE if name in attributes}
    return CloudEvent(
        message_id=message_id,
        source=source,
        type=type_,
        kind=_kind(attributes),
        topic=attributes.pop("topic", type_),
        key=attributes.pop("partitionkey", None),
        payload=payload,
        content_type=attributes.pop("datacontenttype", content_type),
        headers=headers | trace,
        subject=attributes.pop("subject", None),
        correlation_id=attributes.pop("correlationid", message_id),
        causation_id=attributes.pop("causationid", None),
        event_time=_time(attributes.pop("time", None)),
        extensions=attributes,
    )


def _kind(attributes: dict[str, str]) -> Kind:
    """Ours, if it is one of ours: other producers may use the word for something else."""
    if attributes.get("kind") not in _KINDS:
        return Kind.EVENT
    return Kind(attributes.pop("kind"))


def _checked(name: str, value: str) -> str:
    if _has_control(value):
        raise DecodeError(f"The attribute {name} of a received CloudEvent holds a control character.")
    if len(value) * _LONGEST_CHARACTER > MAX_TEXT and name in _LIMITED and len(value.encode()) > MAX_TEXT:
        raise DecodeError(f"The attribute {name} of a received CloudEvent is longer than {MAX_TEXT} bytes.")
    return value


def _has_control(text: str) -> bool:
    """Plain text is told quickly."""
    return not (text.isascii() and text.isprintable()) and _CONTROL.search(text) is not None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        at = None
    if at is None or at.tzinfo is None:
        raise DecodeError("The time of a received CloudEvent is not an RFC 3339 time with its offset.")
    return at


def _text(value: object) -> str | None:
    """A native value in its CloudEvents text form; None when it has none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, (bytes, bytearray)):
        return _utf8(value)
    return str(value) if isinstance(value, (str, int)) else None


def _utf8(value: bytes | bytearray) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _from_milliseconds(count: int) -> datetime | None:
    """AMQP has its own type for times."""
    try:
        return _EPOCH + timedelta(milliseconds=count)
    except OverflowError:
        return None


def _percent_decoded(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise DecodeError("An attribute of a received CloudEvent is not percent-encoded UTF-8.") from None
