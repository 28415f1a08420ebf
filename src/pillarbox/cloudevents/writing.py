"""Messages to CloudEvents."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import cache
from typing import Final
from urllib.parse import quote

import msgspec

from pillarbox.cloudevents.event import ESCAPE, HEADERS, OWN, TRACE, Binding, CloudEvent
from pillarbox.codec import is_json
from pillarbox.message import Message

__all__ = ["to_binary", "to_structured"]

_ATTRIBUTES: Final = (
    "specversion", "id", "source", "type", "time", "correlationid", "topic", "kind", "partitionkey", "subject",
    "causationid",
)  # fmt: skip


def to_binary(message: Message | CloudEvent, *, binding: Binding) -> tuple[dict[str, str], bytes]:
    """The headers, `content-type` among them, and the body: the payload, untouched."""
    headers = _attributes(message, binding.prefix)
    if binding.percent_encoded:
        for name, value in headers.items():
            if not _PLAIN.fullmatch(value):
                headers[name] = quote(value, safe=_SAFE)
    if native := _native(message.headers):
        if not binding.prefix:
            native = {_escaped(name): value for name, value in native.items()}
        headers = {**native, **headers}
    headers["content-type"] = message.content_type
    return headers, message.payload


def to_structured(message: Message | CloudEvent) -> bytes:
    """One JSON document. JSON and text payloads stand in `data`, others in `data_base64`."""
    document: dict[str, object] = {**_attributes(message), "datacontenttype": message.content_type}
    headers = _native(message.headers)
    if headers:
        document[HEADERS] = msgspec.json.encode(headers).decode()
    return msgspec.json.encode(document | _data(message.payload, message.content_type))


def _native(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in TRACE} if headers else {}


def _escaped(name: str) -> str:
    """A header's name that cannot be taken for an attribute's where those have no prefix."""
    lower = name.lower()
    return ESCAPE + name if lower in OWN or lower.startswith(ESCAPE) else name


def _attributes(message: Message | CloudEvent, prefix: str = "") -> dict[str, str]:
    """Every attribute but the content type, as text. Every message of most transports comes through here."""
    version, id_, source, type_, time, correlation, topic, kind, key, subject, causation = _names(prefix)
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
        own |= {prefix + name: message.headers[name] for name in TRACE if name in message.headers}
    return own if type(message) is Message else _extended(own, message, prefix)


def _extended(own: dict[str, str], message: Message | CloudEvent, prefix: str) -> dict[str, str]:
    """A received event may lack a time, and have attributes that we know nothing of."""
    if message.event_time is None:
        del own[f"{prefix}time"]
    others = message.extensions if isinstance(message, CloudEvent) else {}
    return {**{prefix + name: value for name, value in others.items()}, **own}


@cache
def _names(prefix: str) -> tuple[str, ...]:
    """Made once, not for every message."""
    return tuple(prefix + name for name in _ATTRIBUTES)


def _data(payload: bytes, content_type: str) -> dict[str, object]:
    if not payload:
        return {}
    try:
        text = payload.decode()
        if is_json(content_type) and bytes(msgspec.json.decode(payload, type=msgspec.Raw)) == payload:
            return {"data": msgspec.Raw(payload)}
        if _is_text(content_type):
            return {"data": text}
    except ValueError:
        pass  # not what its content type says, so only base64 brings it over unchanged
    return {"data_base64": base64.b64encode(payload).decode()}


def _is_text(content_type: str) -> bool:
    return _TEXT.fullmatch(content_type) is not None and not is_json(content_type)


_TEXT: Final = re.compile(r"text/[^;]*(?:;(?!.*charset).*|;.*charset=\"?(?:utf-8|us-ascii)\"?.*)?", re.IGNORECASE)
_PLAIN: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
