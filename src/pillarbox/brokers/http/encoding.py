"""Messages as HTTP requests: headers and body. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from pillarbox.brokers.http import signing
from pillarbox.brokers.http.settings import FRAMING_HEADERS, is_valid_header
from pillarbox.cloudevents import HTTP, STRUCTURED, to_binary, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.message import RESERVED_HEADERS, RESERVED_PREFIXES, Message

__all__ = ["BATCH", "EncodedMessage", "RequestTemplate", "encode", "encode_batch"]

BATCH: Final = "application/cloudevents-batch+json"

_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_RESERVED: Final = (FRAMING_HEADERS | RESERVED_HEADERS).difference(_TRACE_HEADERS)
"""Headers that change what the request is, or in whose name it is sent."""


class RequestTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The part that all requests to one endpoint have in common."""

    mode: Literal["binary", "structured"] = "binary"
    keys: Sequence[bytes] = ()
    """Signing keys. Each adds a signature."""
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"RequestTemplate({self.mode!r}, {len(self.keys)} keys, {', '.join(self.headers)})"


class EncodedMessage(msgspec.Struct, frozen=True):
    """Headers and body of one request."""

    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"EncodedMessage({', '.join(self.headers)}, {len(self.body)} bytes)"


def encode(message: Message, template: RequestTemplate, *, at: datetime) -> EncodedMessage:
    """Encode a message for one attempt at this time; raise `MessageRejected` if a header cannot be sent.

    Where several headers have one name, in any letter case, the transport's own wins, then the endpoint's from the
    settings, then the message's.
    """
    event_headers, body = _encode_event(message, template.mode)
    trace = {name: message.headers[name] for name in _TRACE_HEADERS if name in message.headers}
    return _build_request(str(message.message_id), {**trace, **event_headers}, body, template, at=at)


def encode_batch(
    messages: Sequence[Message], documents: Sequence[bytes], template: RequestTemplate, *, at: datetime
) -> EncodedMessage:
    """Encode the structured documents of several messages as one request, signed as a whole.

    Its id stands for exactly these messages: with the id of one of them, an endpoint that remembers ids would take a
    longer batch for a repeat, and lose the rest of it.
    """
    digest = hashlib.sha256(b"".join([message.message_id.bytes for message in messages])).hexdigest()
    body = b"[" + b",".join(documents) + b"]"
    return _build_request(f"batch_{digest[:40]}", {"content-type": BATCH}, body, template, at=at)


def _build_request(
    request_id: str, event_headers: Mapping[str, str], body: bytes, template: RequestTemplate, *, at: datetime
) -> EncodedMessage:
    own_headers = {signing.ID: request_id, signing.TIMESTAMP: str(int(at.timestamp()))}
    if template.keys:
        own_headers[signing.SIGNATURE] = signing.sign(template.keys, message_id=request_id, at=at, body=body)
    headers = _merge({"idempotency-key": request_id}, event_headers, template.headers, own_headers)
    for name, value in headers.items():
        if not is_valid_header(name, value):
            raise MessageRejected(
                f"The header {name!r} of the message cannot be sent over HTTP; correct its name or value."
            )
    return EncodedMessage(headers, body)


def _encode_event(message: Message, mode: Literal["binary", "structured"]) -> tuple[dict[str, str], bytes]:
    if mode == "structured":
        return {"content-type": STRUCTURED}, to_structured(message)
    for name in message.headers:
        # `publish` refuses these names, but another program may have written the row.
        if name.lower() in _RESERVED or name.lower().startswith(RESERVED_PREFIXES):
            raise MessageRejected(f"The header {name!r} of the message would change what the request is; remove it.")
    return to_binary(message, binding=HTTP)


def _merge(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge headers without regard to letter case. Later layers win."""
    merged = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(merged.values())
