"""From what came over the wire to the event a consumer handles, and to bytes that keep it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from pillarbox.cloudevents import STRUCTURED, Binding, CloudEvent, read
from pillarbox.cloudevents.reading import native_headers
from pillarbox.errors import DecodeError
from pillarbox.protocols import Plain, Received

__all__ = ["event_of", "kept", "received_from"]

_UNKNOWN: Final = "application/octet-stream"


def event_of(received: Received) -> CloudEvent:
    """The CloudEvent that came; of a message that is none, one made of what is known about it.

    `DecodeError` for what claims to be a CloudEvent and is not.
    """
    headers = received.headers
    if _claims_to_be_one(headers, received.binding):
        return read(headers, received.body, binding=received.binding)
    plain = received.plain
    others, content_type = native_headers(headers)
    return CloudEvent(
        message_id=plain.message_id,
        source=plain.source,
        type=plain.type,
        topic=plain.topic,
        key=plain.key,
        payload=received.body,
        content_type=content_type or _UNKNOWN,
        headers=others,
        correlation_id=others.get("correlation-id") or plain.message_id,
    )


@cache
def _versions(binding: Binding) -> frozenset[str]:
    return frozenset(f"{prefix}specversion".lower() for prefix in (binding.prefix, *binding.also_read))


def _claims_to_be_one(headers: Mapping[str, Any], binding: Binding) -> bool:
    versions = _versions(binding)
    if not versions.isdisjoint(headers):
        return True
    for name, value in headers.items():
        lower = name.lower()
        if lower in versions:
            return True
        if lower == "content-type" and str(value).lower().startswith(STRUCTURED.partition("+")[0]):
            return True
    return False


class _Kept(msgspec.Struct, array_like=True):
    headers: dict[str, Any]
    body: bytes
    binding: Binding
    plain: Plain


def kept(received: Received) -> bytes:
    """All that came, to be read back by `received_from`, also by a later release."""
    headers = {name: _plainly(value) for name, value in received.headers.items()}
    return msgspec.msgpack.encode(_Kept(headers, received.body, received.binding, received.plain))


def received_from(content: bytes) -> Received:
    """What `kept` kept. `DecodeError` when it is something else."""
    try:
        found = msgspec.msgpack.decode(content, type=_Kept)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"A kept message cannot be read: {error}.") from None
    return Received(headers=found.headers, body=found.body, binding=found.binding, plain=found.plain, redelivered=True)


def _plainly(value: object) -> object:
    """Brokers have types of their own; what cannot be kept as it is, is kept as text."""
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return value
