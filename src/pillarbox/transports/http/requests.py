"""A message as a request: headers and body. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from pillarbox import signing
from pillarbox.cloudevents import HTTP, STRUCTURED, to_binary, to_structured
from pillarbox.errors import MessageRejected
from pillarbox.limits import RESERVED_PREFIXES
from pillarbox.message import Message
from pillarbox.transports.http.checks import FRAMING, is_header

__all__ = ["Form", "Request", "request_for"]

_TRACE: Final = ("traceparent", "tracestate")


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests to one endpoint have in common."""

    mode: Literal["binary", "structured"] = "binary"
    keys: Sequence[bytes] = ()
    """Each signs."""
    headers: Mapping[str, str] = {}


class Request(msgspec.Struct, frozen=True):
    """What goes over the wire."""

    headers: Mapping[str, str]
    body: bytes


def request_for(message: Message, form: Form, *, at: datetime) -> Request:
    """The request for one attempt at this time; `MessageRejected` when the message cannot be put into one.

    Of headers with one name, in any letter case, the transport's own count first, then those of the endpoint's
    settings, then the message's.
    """
    message_id = str(message.message_id)
    given, body = _event(message, form.mode)
    ours = {signing.ID: message_id, signing.TIMESTAMP: str(int(at.timestamp()))}
    if form.keys:
        ours[signing.SIGNATURE] = signing.signature(form.keys, message_id=message_id, at=at, body=body)
    trace = {name: message.headers[name] for name in _TRACE if name in message.headers}
    headers = _merged({"idempotency-key": message_id, **trace}, given, form.headers, ours)
    for name, value in headers.items():
        if not is_header(name, value):
            raise MessageRejected(
                f"The header {name!r} of the message cannot be sent over HTTP; correct its name or value."
            )
    return Request(headers, body)


def _event(message: Message, mode: Literal["binary", "structured"]) -> tuple[dict[str, str], bytes]:
    if mode == "structured":
        return {"content-type": STRUCTURED}, to_structured(message)
    for name in message.headers:
        # Publishing refuses these; a row may have been written by other means.
        if name.lower() in FRAMING or name.lower().startswith(RESERVED_PREFIXES):
            raise MessageRejected(f"The header {name!r} of the message would change what the request is; remove it.")
    return to_binary(message, binding=HTTP)


def _merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later layers count first."""
    merged = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(merged.values())
