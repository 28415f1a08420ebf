"""Documents for programs: what `-o json` prints and what the pages of the dashboard answer are the same.

No document holds a payload unless it is asked for.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.contracts.store import InboxFailure, JournalEntry, Registry, Tries
from pillarbox.decoding import decode_incoming, to_cloudevent
from pillarbox.errors import DecodeError
from pillarbox.events import is_json
from pillarbox.message import PARTITIONS, Message
from pillarbox.operations.alerts import Alert
from pillarbox.operations.failures import ErrorGroup, FailureCause
from pillarbox.operations.monitor import Status

__all__ = [
    "count_lanes",
    "encode_json",
    "group_lanes",
    "read_inbox_event",
    "read_inbox_type",
    "to_attempt_document",
    "to_failure_document",
    "to_inbox_document",
    "to_inbox_row",
    "to_journal_document",
    "to_lane_documents",
    "to_message_document",
    "to_payload_field",
    "to_relay_documents",
    "to_status_document",
]

_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\n]")
_JSON_TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_JSON_BRACKET: Final = re.compile(rb"[\[\]{}]")
_DEEPEST: Final = 100
"""Nesting of a payload that documents contain as JSON. Python cannot decode or encode much deeper ones."""
_INBOX_FIELDS: Final = ("consumer", "source", "message_id", "attempts", "error", "failed_at")
_EVENT_FIELDS: Final = ("type", "topic", "key", "subject", "content_type", "correlation_id", "headers")


def encode_json(value: object, *, indent: bool = False) -> str:
    """Encode a value as JSON. In its texts everything that is not printable is escaped as JSON does it."""
    try:
        document = msgspec.json.encode(value)
        text = (msgspec.json.format(document) if indent else document).decode()
    except UnicodeEncodeError:  # half a surrogate pair, which a row in SQLite can hold
        text = json.dumps(msgspec.to_builtins(value), indent=2 if indent else None)
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0].isprintable() else _escape_json(found[0]), text)


def _escape_json(letter: str) -> str:
    # `json.dumps` leaves DEL as it is.
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]


def to_payload_field(payload: bytes, content_type: str, *, largest: int | None = None) -> Mapping[str, object]:
    """Return a payload for a JSON document: as it is if it is JSON itself, and else in base64.

    JSON that is nested too deep is in base64 too, and so is JSON of more than `largest` bytes: a server has no time to
    decode it.
    """
    if is_json(content_type) and (largest is None or len(payload) <= largest) and not _is_deep(payload):
        try:
            return {"payload": msgspec.json.decode(payload)}
        except ValueError:
            pass
    return {"payload_base64": base64.b64encode(payload).decode()}


def _is_deep(payload: bytes) -> bool:
    if payload.count(b"[") + payload.count(b"{") <= _DEEPEST:
        return False
    depth = 0
    for found in _JSON_BRACKET.finditer(_JSON_TEXT.sub(b"", payload)):
        depth += 1 if found[0] in b"[{" else -1
        if depth > _DEEPEST:
            return True
    return False


# --- messages ---


def to_message_document(
    message: Message,
    *,
    tries: Mapping[int, Tries] | None = None,
    payload: bool = False,
    largest: int | None = None,
) -> dict[str, object]:
    """Return every field of a message; the payload, and what cannot be read of its row, only on request.

    `tries` are the tries of messages by their ids, as `Store.count_tries` answers: they stand beside the attempts.
    `largest` is that of `to_payload_field`.
    """
    document = {name: getattr(message, name) for name in message.__struct_fields__ if name not in ("payload", "raw")}
    if tries is not None:
        document["tries"] = tries.get(message.id)
    if not payload:
        return document
    raw = {name: base64.b64encode(value).decode() for name, value in (message.raw or {}).items()}
    field: Mapping[str, object] = {"payload": None}
    if message.payload_kept:
        field = to_payload_field(message.payload, message.content_type, largest=largest)
    return {**document, **field, **({"raw_base64": raw} if raw else {})}


def to_journal_document(entry: JournalEntry) -> dict[str, object]:
    """Return every field of a line of the journal."""
    return {field: getattr(entry, field) for field in entry.__struct_fields__}


def to_failure_document(cause: FailureCause) -> dict[str, Any]:
    """Return what is known of a cause of failures, with the last error, the attempts and the tries of its example."""
    return {
        "destination": cause.destination, "fingerprint": cause.text, "count": cause.count, "more": cause.more,
        "first_at": cause.first_at, "last_at": cause.last_at, "keys": cause.keys, "error": cause.example.last_error,
        "example_id": cause.example.id, "attempts": cause.example.attempts, "tries": cause.tries,
    }  # fmt: skip


def to_attempt_document(group: ErrorGroup) -> dict[str, Any]:
    """Return what the journal knows of attempts that failed for one cause."""
    return {
        "destination": group.destination, "fingerprint": group.text, "count": group.count,
        "first_at": group.first_at, "last_at": group.last_at, "example_id": group.example,
    }  # fmt: skip


# --- status ---


def to_status_document(status: Status, alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the status with its alerts. Durations are seconds: numbers that programs can compute with."""
    document = {
        **msgspec.to_builtins(status, builtin_types=(timedelta,)), "skipped": status.skipped, "alerts": alerts,
        "near_failure": [
            {**msgspec.to_builtins(one, builtin_types=(timedelta,)), "tries": status.tries.get(one.id)}
            for one in status.near_failure
        ],
    }  # fmt: skip
    del document["tries"]
    converted: dict[str, Any] = _convert_durations(document)
    return converted


def _convert_durations(value: Any) -> Any:
    match value:
        case timedelta():
            return value.total_seconds()
        case dict():
            return {name: _convert_durations(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_convert_durations(inner) for inner in value]
        case msgspec.Struct():
            return _convert_durations(msgspec.to_builtins(value))
    return value


# --- relays and lanes ---


def count_lanes(registry: Registry, relay_id: UUID) -> int:
    """Count the lanes that a relay owns, of all destinations."""
    return sum(owner == relay_id for owners in registry.owners.values() for owner in owners.values())


def to_relay_documents(registry: Registry) -> list[dict[str, object]]:
    """Return every field of the live relays, and the number of their lanes."""
    return [
        {name: getattr(one, name) for name in one.__struct_fields__} | {"lanes": count_lanes(registry, one.relay_id)}
        for one in registry.relays
    ]


def group_lanes(registry: Registry, destination: str) -> list[tuple[UUID | None, list[int]]]:
    """Group a destination's lanes by the relay that owns them; those of nobody come last."""
    owners = registry.owners.get(destination, {})
    by_relay: dict[UUID | None, list[int]] = {}
    for number in range(PARTITIONS):
        by_relay.setdefault(owners.get(number), []).append(number)
    return sorted(by_relay.items(), key=lambda one: str(one[0] or "~"))


def to_lane_documents(registry: Registry, destinations: Sequence[str]) -> list[dict[str, object]]:
    """Return who owns which lanes of these destinations."""
    return [
        {"destination": name, "relay_id": relay_id, "lanes": numbers}
        for name in destinations
        for relay_id, numbers in group_lanes(registry, name)
    ]


# --- inboxes ---


def read_inbox_event(failure: InboxFailure) -> CloudEvent | None:
    """Return the message as its consumer reads it; None if it cannot be read or was not kept."""
    try:
        return to_cloudevent(decode_incoming(failure.content))
    except Exception:  # whatever came from outside, the others are to be seen
        return None


def read_inbox_type(failure: InboxFailure) -> str:
    """Return the type of a failed message of an inbox, or why there is none."""
    event = read_inbox_event(failure)
    return event.type if event is not None else "(malformed)" if failure.content else "(not kept)"


def to_inbox_row(failure: InboxFailure) -> dict[str, object]:
    """Return a failed message of an inbox for a list: without headers and payload."""
    return {name: getattr(failure, name) for name in _INBOX_FIELDS} | {"type": read_inbox_type(failure)}


def to_inbox_document(failure: InboxFailure, *, payload: bool = False, largest: int | None = None) -> dict[str, object]:
    """Return all that is known of a failed message. Of one that cannot be read, the payload is the body as it came.

    `largest` is that of `to_payload_field`.
    """
    document: dict[str, object] = {name: getattr(failure, name) for name in _INBOX_FIELDS}
    try:
        received = decode_incoming(failure.content)
    except DecodeError:
        return document | {"kept": False}
    event = read_inbox_event(failure)
    if event is not None:
        document |= {name: getattr(event, name) for name in _EVENT_FIELDS}
        document["event_time"] = event.event_time
    document |= {"kept": True, "size": len(received.body)}
    if event is None:
        document["headers"] = {str(name): str(value) for name, value in received.headers.items()}
    if payload:
        content_type = event.content_type if event is not None else ""
        body = event.payload if event is not None else received.body
        document |= to_payload_field(body, content_type, largest=largest)
    return document
