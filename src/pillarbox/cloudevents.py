"""CloudEvents 1.0: messages to binary and structured mode, and back. Pure functions over attributes and bytes.

| attribute                   | message                                                              |
|-----------------------------|----------------------------------------------------------------------|
| id, source, type, subject   | message_id, source, type, subject                                    |
| time                        | event_time                                                           |
| datacontenttype             | content_type                                                         |
| partitionkey                | key                                                                  |
| correlationid, causationid  | correlation_id, causation_id                                         |
| topic, kind                 | the same                                                             |
| traceparent, tracestate     | the headers of that name                                             |
| other headers               | binary: native headers; structured: `pillarboxheaders`, JSON text    |
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from pillarbox.errors import DecodeError
from pillarbox.events import JSON, is_json
from pillarbox.message import MAX_TEXT, RESERVED_HEADERS, Kind, Message

__all__ = [
    "AMQP",
    "HTTP",
    "KAFKA",
    "MQTT",
    "NATS",
    "REDIS",
    "STRUCTURED",
    "Binding",
    "CloudEvent",
    "from_binary",
    "from_message",
    "from_structured",
    "read",
    "select_headers",
    "to_binary",
    "to_structured",
]

STRUCTURED: Final = "application/cloudevents+json"
"""The content type of a message in structured mode."""
_TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""Headers that are attributes on the wire."""
_HEADERS_ATTRIBUTE: Final = "pillarboxheaders"
"""The attribute that holds the other headers in structured mode, as JSON text: attributes cannot be maps."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The form of attributes of one protocol in binary mode."""

    prefix: str
    """Prefix of the name of an attribute. Empty: attributes have their bare names, only those that are known are
    distinguished from headers, and a header with such a name is sent as `header-NAME`."""
    also_read: tuple[str, ...] = ()
    """Other prefixes that a receiver must accept."""
    percent_encoded: bool = False
    native_times: bool = False
    """Times may be received as milliseconds since 1970."""
    joined_headers: bool = False
    """The other headers may be received as one attribute, as in structured mode: Debezium cannot take a map apart."""


HTTP: Final = Binding(prefix="ce-", percent_encoded=True)
KAFKA: Final = Binding(prefix="ce_", joined_headers=True)
AMQP: Final = Binding(prefix="cloudEvents:", also_read=("cloudEvents_", "ce-"), native_times=True)
"""`ce-` is no part of the AMQP binding: the official SDK writes it to RabbitMQ."""
MQTT: Final = Binding(prefix="")
NATS: Final = Binding(prefix="ce-", percent_encoded=True)
REDIS: Final = Binding(prefix="ce-")
"""No binding for Redis has been published. This is ours: see docs/transports/redis.md."""

_HEADER_ESCAPE: Final = "header-"
"""Prefix of a header that would otherwise be read as an attribute, where attributes have no prefix."""
_KNOWN_ATTRIBUTES: Final = frozenset(
    {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "partitionkey",
        "correlationid", "causationid", "topic", "kind", *_TRACE_HEADERS,
    }
)  # fmt: skip
"""Attributes that are recognised by their bare name."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is received. Its id is any text that the producer chose.

    Attributes that a foreign producer leaves out are filled in: the kind is event, the topic is the type, the
    correlation id is the event's own id.
    """

    message_id: str
    source: str
    type: str
    kind: Kind = Kind.EVENT
    topic: str
    key: str | None = None
    payload: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    subject: str | None = None
    correlation_id: str
    causation_id: str | None = None
    event_time: datetime | None = None
    extensions: Mapping[str, str] = {}
    """Attributes that have no field here, such as `dataschema` and what other producers add."""


def from_message(message: Message) -> CloudEvent:
    """Build the event that a receiver gets for a message."""
    return CloudEvent(
        message_id=str(message.message_id),
        source=message.source,
        type=message.type,
        kind=message.kind,
        topic=message.topic,
        key=message.key,
        payload=message.payload,
        content_type=message.content_type,
        headers=message.headers,
        subject=message.subject,
        correlation_id=message.correlation_id,
        causation_id=message.causation_id,
        event_time=message.event_time,
    )


_UNKNOWN_TYPE: Final = "application/octet-stream"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST_CHARACTER: Final = 4
"""Bytes in UTF-8."""
_KINDS: Final = frozenset(kind.value for kind in Kind)
_NO_BINDING: Final = Binding(prefix="")
_LIMITED: Final = frozenset(
    {"id", "source", "type", "subject", "topic", "partitionkey", "correlationid", "causationid", "datacontenttype"}
)
"""Attributes that end up in index entries or in the next message."""


def read(headers: Mapping[str, object], body: bytes, *, binding: Binding) -> CloudEvent:
    """Read a received message in binary or structured mode, by its content type; raise `DecodeError` for others."""
    content_type = _find_content_type(headers)
    if content_type.lower().startswith("application/cloudevents"):
        if content_type.partition(";")[0].strip().lower() != STRUCTURED:
            raise DecodeError(f"A CloudEvent came as {content_type!r}; only {STRUCTURED} and binary mode are read.")
        return from_structured(body)
    return from_binary(headers, body, binding=binding)


def _find_content_type(headers: Mapping[str, object]) -> str:
    found = headers.get("content-type")
    if found is None:
        found = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    return _to_text(found) or ""


def from_binary(headers: Mapping[str, object], body: bytes, *, binding: Binding) -> CloudEvent:
    """Read the event in these headers and this body; raise `DecodeError` when they are none.

    Names of attributes are compared without letter case; values may be text, bytes, numbers or times, as protocols
    have them. Headers that belong to the protocol itself, or are not text, are dropped.
    """
    if not binding.prefix:
        headers, binding = _prefix_attributes(headers), KAFKA
    prefixes = _lower_prefixes(binding)
    attributes: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower.startswith(prefixes):
            attribute = lower[_prefix_length(prefixes, lower) :]
            attributes[attribute] = _to_attribute(attribute, value, binding)
            continue
        text = value if isinstance(value, str) else _to_text(value)
        if text is None or _has_control(text):
            continue
        if lower == "content-type":
            attributes["datacontenttype"] = text
        elif lower in _TRACE_HEADERS:
            attributes.setdefault(lower, text)
        elif lower not in RESERVED_HEADERS:
            others[name] = text
    if binding.joined_headers and attributes.get(_HEADERS_ATTRIBUTE):
        others = _split_headers(attributes) | others
    return _build_event(attributes, body, others, content_type=_UNKNOWN_TYPE)


@cache
def _lower_prefixes(binding: Binding) -> tuple[str, ...]:
    return tuple(prefix.lower() for prefix in (binding.prefix, *binding.also_read))


def _prefix_length(prefixes: tuple[str, ...], name: str) -> int:
    """Return the length of the prefix that this name begins with."""
    for prefix in prefixes:
        if name.startswith(prefix):
            return len(prefix)
    return 0


def _prefix_attributes(headers: Mapping[str, object]) -> dict[str, object]:
    """Give attributes a prefix, and headers none, where both were received by their bare names."""
    return {_prefix_name(name): value for name, value in headers.items()}


def _prefix_name(name: str) -> str:
    lower = name.lower()
    if lower in _KNOWN_ATTRIBUTES:
        return KAFKA.prefix + lower
    return name[len(_HEADER_ESCAPE) :] if lower.startswith(_HEADER_ESCAPE) else name


def _to_attribute(name: str, value: object, binding: Binding) -> str:
    if binding.native_times and name == "time" and isinstance(value, int):
        value = _from_milliseconds(value)
    text = value if isinstance(value, str) else _to_text(value)
    if text is None:
        raise DecodeError(f"The attribute {name} of a received CloudEvent is not text, a number or a time.")
    return _percent_decode(text) if binding.percent_encoded and ("%" in text or '"' in text) else text


def select_headers(headers: Mapping[str, object]) -> tuple[dict[str, str], str | None]:
    """Return the text headers and the content type of a message that is no CloudEvent."""
    content_type = None
    others: dict[str, str] = {}
    for name, value in headers.items():
        lower, text = name.lower(), _to_text(value)
        if text is None or _has_control(text):
            continue
        if lower == "content-type":
            content_type = text
        elif lower not in RESERVED_HEADERS or lower in _TRACE_HEADERS:
            others[lower if lower in _TRACE_HEADERS else name] = text
    return others, content_type


def from_structured(document: bytes | str) -> CloudEvent:
    """Read the event in this JSON document; raise `DecodeError` when it is none."""
    try:
        members: dict[str, msgspec.Raw] = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
        data, data_base64 = members.pop("data", None), members.pop("data_base64", None)
        decoded = {name: msgspec.json.decode(value) for name, value in members.items()}
        attributes = {
            name: _to_attribute(name, value, _NO_BINDING) for name, value in decoded.items() if value is not None
        }
        headers = _pop_headers(attributes)
        payload = _read_payload(data, data_base64, attributes.get("datacontenttype") or JSON)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"A received document is not a CloudEvent: {error}.") from None
    return _build_event(attributes, payload, headers, content_type=JSON)


def _pop_headers(attributes: dict[str, str]) -> dict[str, str]:
    text = attributes.pop(_HEADERS_ATTRIBUTE, None)
    return {} if text is None else msgspec.json.decode(text, type=dict[str, str])


def _split_headers(attributes: dict[str, str]) -> dict[str, str]:
    """Take the headers out of their attribute. What is an attribute on the wire becomes one, unless it is there."""
    try:
        headers = _pop_headers(attributes)
    except (ValueError, RecursionError):
        raise DecodeError(
            f"The attribute {_HEADERS_ATTRIBUTE} of a received CloudEvent is not a JSON object of texts."
        ) from None
    for name in _TRACE_HEADERS:
        if (value := headers.pop(name, None)) is not None:
            attributes.setdefault(name, value)
    return {
        name: value
        for name, value in headers.items()
        if not _has_control(value) and name.lower() not in RESERVED_HEADERS
    }


def _read_payload(data: msgspec.Raw | None, data_base64: msgspec.Raw | None, content_type: str) -> bytes:
    if data is not None and data_base64 is not None:
        raise DecodeError("A received CloudEvent has both data and data_base64; it may have one.")
    if data_base64 is not None:
        return base64.b64decode(msgspec.json.decode(data_base64, type=str), validate=True)
    if data is None:
        return b""
    if not is_json(content_type) and bytes(data).startswith((b'"', b"null")):
        return (msgspec.json.decode(data, type=str | None) or "").encode()
    return bytes(data)


def _build_event(
    attributes: dict[str, str], payload: bytes, headers: dict[str, str], *, content_type: str
) -> CloudEvent:
    attributes = {name: _check_attribute(name, value) for name, value in attributes.items() if value}
    if attributes.pop("specversion", None) != "1.0":
        raise DecodeError("A received message is not a CloudEvent of version 1.0; look at its specversion.")
    try:
        message_id, source, type_ = attributes.pop("id"), attributes.pop("source"), attributes.pop("type")
    except KeyError as error:
        raise DecodeError(f"A received CloudEvent has no {error.args[0]}, which every CloudEvent needs.") from None
    trace = {name: attributes.pop(name) for name in _TRACE_HEADERS if name in attributes}
    return CloudEvent(
        message_id=message_id,
        source=source,
        type=type_,
        kind=_pop_kind(attributes),
        topic=attributes.pop("topic", type_),
        key=attributes.pop("partitionkey", None),
        payload=payload,
        content_type=attributes.pop("datacontenttype", content_type),
        headers=headers | trace,
        subject=attributes.pop("subject", None),
        correlation_id=attributes.pop("correlationid", message_id),
        causation_id=attributes.pop("causationid", None),
        event_time=_parse_time(attributes.pop("time", None)),
        extensions=attributes,
    )


def _pop_kind(attributes: dict[str, str]) -> Kind:
    # Other producers may use the attribute for something else; then it stays an extension.
    if attributes.get("kind") not in _KINDS:
        return Kind.EVENT
    return Kind(attributes.pop("kind"))


def _check_attribute(name: str, value: str) -> str:
    if _has_control(value):
        raise DecodeError(f"The attribute {name} of a received CloudEvent holds a control character.")
    if len(value) * _LONGEST_CHARACTER > MAX_TEXT and name in _LIMITED and len(value.encode()) > MAX_TEXT:
        raise DecodeError(f"The attribute {name} of a received CloudEvent is longer than {MAX_TEXT} bytes.")
    return value


def _has_control(text: str) -> bool:
    # The first test is quick, and enough for almost every text.
    return not (text.isascii() and text.isprintable()) and _CONTROL.search(text) is not None


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        at = None
    if at is None or at.tzinfo is None:
        raise DecodeError("The time of a received CloudEvent is not an RFC 3339 time with its offset.")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise DecodeError("The time of a received CloudEvent is not within the years 1 to 9999 of UTC.") from None


def _to_text(value: object) -> str | None:
    """Convert a native value to its CloudEvents text form; None when it has none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, (bytes, bytearray)):
        return _decode_utf8(value)
    return str(value) if isinstance(value, (str, int)) else None


def _decode_utf8(value: bytes | bytearray) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _from_milliseconds(count: int) -> datetime | None:
    """Convert a time of AMQP, which has its own type for times."""
    try:
        return _EPOCH + timedelta(milliseconds=count)
    except OverflowError:
        return None


def _percent_decode(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise DecodeError("An attribute of a received CloudEvent is not percent-encoded UTF-8.") from None


_ATTRIBUTES: Final = (
    "specversion", "id", "source", "type", "time", "correlationid", "topic", "kind", "partitionkey", "subject",
    "causationid",
)  # fmt: skip


def to_binary(message: Message | CloudEvent, *, binding: Binding) -> tuple[dict[str, str], bytes]:
    """Return the headers, `content-type` among them, and the body: the payload, untouched."""
    headers = _build_attributes(message, binding.prefix)
    if binding.percent_encoded:
        for name, value in headers.items():
            if not _UNRESERVED.fullmatch(value):
                headers[name] = quote(value, safe=_SAFE)
    if native := _select_native(message.headers):
        if not binding.prefix:
            native = {_escape_header(name): value for name, value in native.items()}
        headers = {**native, **headers}
    headers["content-type"] = message.content_type
    return headers, message.payload


def to_structured(message: Message | CloudEvent) -> bytes:
    """Encode the message as one JSON document. JSON and text payloads are in `data`, others in `data_base64`."""
    document: dict[str, object] = {**_build_attributes(message), "datacontenttype": message.content_type}
    headers = _select_native(message.headers)
    if headers:
        document[_HEADERS_ATTRIBUTE] = msgspec.json.encode(headers).decode()
    return msgspec.json.encode(document | _build_data(message.payload, message.content_type))


def _select_native(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _TRACE_HEADERS} if headers else {}


def _escape_header(name: str) -> str:
    """Return a name that cannot be read as an attribute where attributes have no prefix."""
    lower = name.lower()
    return _HEADER_ESCAPE + name if lower in _KNOWN_ATTRIBUTES or lower.startswith(_HEADER_ESCAPE) else name


def _build_attributes(message: Message | CloudEvent, prefix: str = "") -> dict[str, str]:
    """Return every attribute but the content type, as text. A hot path: most transports call it for every message."""
    version, id_, source, type_, time, correlation, topic, kind, key, subject, causation = _attribute_names(prefix)
    own: dict[str, str] = {
        version: "1.0",
        id_: msgspec.to_builtins(message.message_id),
        source: message.source,
        type_: message.type,
        time: msgspec.to_builtins(message.event_time),
        correlation: message.correlation_id,
        topic: message.topic,
        kind: message.kind._value_,
    }
    if message.key is not None:
        own[key] = message.key
    if message.subject is not None:
        own[subject] = message.subject
    if message.causation_id is not None:
        own[causation] = message.causation_id
    if message.headers:
        own |= {prefix + name: message.headers[name] for name in _TRACE_HEADERS if name in message.headers}
    return own if type(message) is Message else _add_extensions(own, message, prefix)


def _add_extensions(own: dict[str, str], message: Message | CloudEvent, prefix: str) -> dict[str, str]:
    """Complete the attributes of a received event: it may lack a time, and have extensions."""
    if message.event_time is None:
        del own[f"{prefix}time"]
    others = message.extensions if isinstance(message, CloudEvent) else {}
    return {**{prefix + name: value for name, value in others.items()}, **own}


@cache
def _attribute_names(prefix: str) -> tuple[str, ...]:
    """Return the prefixed names in the order of `_ATTRIBUTES`, built once and not for every message."""
    return tuple(prefix + name for name in _ATTRIBUTES)


def _build_data(payload: bytes, content_type: str) -> dict[str, object]:
    if not payload:
        return {}
    try:
        text = payload.decode()
        if is_json(content_type) and bytes(msgspec.json.decode(payload, type=msgspec.Raw)) == payload:
            return {"data": msgspec.Raw(payload)}
        if _is_text(content_type):
            return {"data": text}
    except (ValueError, RecursionError):
        pass  # not what its content type says, or nested too deep to read: only base64 brings it over unchanged
    return {"data_base64": base64.b64encode(payload).decode()}


def _is_text(content_type: str) -> bool:
    return _TEXT.fullmatch(content_type) is not None and not is_json(content_type)


_TEXT: Final = re.compile(r"text/[^;]*(?:;(?!.*charset).*|;.*charset=\"?(?:utf-8|us-ascii)\"?.*)?", re.IGNORECASE)
_UNRESERVED: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
