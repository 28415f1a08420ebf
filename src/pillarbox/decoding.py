"""Decoding of received messages: to the event that a consumer handles, and to bytes for the inbox and back. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from pillarbox.cloudevents import STRUCTURED, Binding, CloudEvent, read, select_headers
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.errors import DecodeError
from pillarbox.message import MAX_TEXT

__all__ = ["decode_incoming", "encode_incoming", "to_cloudevent", "to_usable_id"]

_UNKNOWN_TYPE: Final = "application/octet-stream"


def to_cloudevent(received: IncomingMessage) -> CloudEvent:
    """Return the CloudEvent that was received; build one for any other message from its fallback identity.

    Raises `DecodeError` for a message that is marked as a CloudEvent and is none.
    """
    headers = received.headers
    if _is_cloudevent(headers, received.binding):
        return read(headers, received.body, binding=received.binding)
    fallback = received.fallback
    others, content_type = select_headers(headers)
    return CloudEvent(
        message_id=fallback.message_id,
        source=fallback.source,
        type=fallback.type,
        topic=fallback.topic,
        key=fallback.key,
        payload=received.body,
        content_type=content_type or _UNKNOWN_TYPE,
        headers=others,
        correlation_id=to_usable_id(others.get("correlation-id") or fallback.message_id),
    )


@cache
def _version_headers(binding: Binding) -> frozenset[str]:
    return frozenset(f"{prefix}specversion".lower() for prefix in (binding.prefix, *binding.also_read))


def _is_cloudevent(headers: Mapping[str, Any], binding: Binding) -> bool:
    versions = _version_headers(binding)
    if not versions.isdisjoint(headers):
        return True
    for name, value in headers.items():
        lower = name.lower()
        if lower in versions:
            return True
        if lower == "content-type" and str(value).lower().startswith(STRUCTURED.partition("+")[0]):
            return True
    return False


class _StoredMessage(msgspec.Struct, array_like=True):
    headers: dict[str, Any]
    body: bytes
    binding: Binding
    fallback: FallbackIdentity


def encode_incoming(received: IncomingMessage) -> bytes:
    """Encode the whole message as bytes that `decode_incoming` reads, also in a later release."""
    headers = {name: _to_storable(value) for name, value in received.headers.items()}
    return msgspec.msgpack.encode(_StoredMessage(headers, received.body, received.binding, received.fallback))


def decode_incoming(content: bytes) -> IncomingMessage:
    """Decode what `encode_incoming` encoded; raise `DecodeError` for anything else."""
    try:
        stored = msgspec.msgpack.decode(content, type=_StoredMessage)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"A kept message cannot be read: {error}.") from None
    return IncomingMessage(
        headers=stored.headers, body=stored.body, binding=stored.binding, fallback=stored.fallback, redelivered=True
    )


def _to_storable(value: object) -> object:
    """Return the value, or its text if it cannot be encoded: brokers have types of their own."""
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return value


_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def to_usable_id(text: str) -> str:
    """Return the text, or its digest when no inbox can store it: it is too long, or has control characters.

    Different texts stay different, and the same text is the same at every delivery.
    """
    if len(text) <= MAX_TEXT and not _UNUSABLE.search(text) and len(text.encode()) <= MAX_TEXT:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
