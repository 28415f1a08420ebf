"""Rows to values of the contract and back. Rows are decoded by position: it is the fastest way, and a hot path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import (
    Count,
    DestinationRequest,
    InboxFailure,
    InboxRecord,
    JournalEntry,
    OpenClaim,
    Pause,
    RelayInfo,
)
from pillarbox.message import Kind, Message, State, Waits
from pillarbox.stores.rules import find_fingerprint
from pillarbox.stores.unreadable import (
    MAX_ATTEMPTS,
    NO_ID,
    NO_TIME,
    clean_text,
    decode_labels,
    is_sound,
    is_text,
    rescue_message,
)

__all__ = [
    "StoredClaim",
    "claim_from_row",
    "closed_values",
    "count_from_row",
    "decode_ids",
    "decode_texts",
    "encode_json",
    "from_microseconds",
    "inbox_failure_from_row",
    "inbox_record_from_row",
    "journal_entry_from_row",
    "messages_from_rows",
    "open_claim_from_row",
    "parse_uuid_or_none",
    "pause_from_row",
    "relay_from_row",
    "relay_values",
    "requests_from_rows",
    "stored_message_from_row",
    "to_duration",
    "to_microseconds",
    "to_time",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT_AS_FLOAT: Final = 2**32 * 1_000_000
"""Until 2106 a float of seconds still tells microseconds apart, and is the quicker way."""
_NEVER: Final = 2**63 - 1
"""`available_at` of messages that wait for no time: parked and held ones."""

_KINDS: Final = {kind.value: kind for kind in Kind}
_WAITS: Final = {None: None} | {waits.value: waits for waits in Waits}
_STATES: Final = {state.value: state for state in State}
_NO_HEADERS: Final[dict[str, str]] = {}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_from_timestamp = datetime.fromtimestamp
_convert = msgspec.convert

decode_ids = msgspec.json.Decoder(list[int]).decode
decode_texts = msgspec.json.Decoder(list[str]).decode


def to_microseconds(at: datetime) -> int:
    """Convert a time to whole microseconds since 1970 UTC."""
    return to_duration(at - _EPOCH)


def from_microseconds(stored: int) -> datetime:
    """Convert whole microseconds since 1970 UTC to a time."""
    if 0 <= stored < _EXACT_AS_FLOAT:
        return _from_timestamp(stored / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=stored)


def to_duration(length: timedelta) -> int:
    """Convert a duration to whole microseconds. The longest ones are cut so that a time plus one fits 64 bits."""
    return min(length // _MICROSECOND, _NEVER // 2)


def encode_json(values: Iterable[object]) -> str:
    """Encode values as a JSON array."""
    return msgspec.json.encode(values if isinstance(values, list) else list(values)).decode()


def _parse_uuid(stored: str) -> UUID:
    """Parse a message id in any spelling that `UUID` takes; msgspec is much faster for the usual one."""
    try:
        return _convert(stored, UUID)
    except msgspec.ValidationError:
        return UUID(stored)


def parse_uuid_or_none(stored: Any) -> UUID | None:
    """Parse a message id of the journal. That of an unreadable row need not be a UUID."""
    try:
        return _parse_uuid(stored)
    except (TypeError, ValueError, AttributeError):
        return None


def messages_from_rows(rows: Iterable[Sequence[Any]]) -> list[Message]:
    """Decode open rows, in the order of the table's columns. One that cannot be read says so in `unreadable`."""
    return [_message_from_row(row) for row in rows]


def _message_from_row(row: Sequence[Any]) -> Message:
    try:
        (
            id_, message_id, destination, partition, kind, type_, topic, key, payload, content_type, headers, source,
            subject, correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error,
            status_at,
        ) = row  # fmt: skip
        message = Message(
            id_, _parse_uuid(message_id), destination, partition, _KINDS[kind], type_, topic, key, payload,
            content_type, _NO_HEADERS if headers is None else _decode_headers(headers),
            source, subject, correlation_id, causation_id,
            from_microseconds(event_time), created := from_microseconds(created_at),
            None if available_at is None or available_at == _NEVER else from_microseconds(available_at),
            _WAITS[waits], attempts,
            # The two times of a fresh message are equal: one decoding is enough.
            last_error, created if status_at == created_at else from_microseconds(status_at),
        )  # fmt: skip
        if is_sound(message) and (last_error is None or is_text(last_error)):
            return message
    except Exception:  # noqa: S110 - whatever it is, the reason is found below
        pass
    return _rescue(row)


def stored_message_from_row(row: Sequence[Any]) -> Message:
    """Decode a row of any state: the columns of an open row, then the state. The payload may not have been kept."""
    try:
        message = Message(
            row[0], _parse_uuid(row[1]), row[2], row[3], _KINDS[row[4]], row[5], row[6], row[7], row[8] or b"", row[9],
            _NO_HEADERS if row[10] is None else _decode_headers(row[10]),
            row[11], row[12], row[13], row[14], from_microseconds(row[15]), from_microseconds(row[16]),
            None if row[17] is None or row[17] == _NEVER else from_microseconds(row[17]), _WAITS[row[18]], row[19],
            row[20], from_microseconds(row[21]), _STATES[row[22]], row[8] is not None,
        )  # fmt: skip
        if is_sound(message) and (row[20] is None or is_text(row[20])):
            return message
    except Exception:  # noqa: S110 - whatever it is, the reason is found below
        pass
    return _rescue(row)


def closed_values(message: Message) -> dict[str, object]:
    """Return the values of a closed message's row, without its id and the time of its last change."""
    return {
        "message_id": str(message.message_id), "destination": message.destination, "partition": message.partition,
        "kind": message.kind.value, "type": message.type, "topic": message.topic, "key": message.key,
        "payload": message.payload if message.payload_kept else None, "content_type": message.content_type,
        "headers": msgspec.json.encode(message.headers).decode() if message.headers else None,
        "source": message.source, "subject": message.subject, "correlation_id": message.correlation_id,
        "causation_id": message.causation_id, "event_time": to_microseconds(message.event_time),
        "created_at": to_microseconds(message.created_at or message.event_time),
        "available_at": None if message.available_at is None else to_microseconds(message.available_at),
        "attempts": message.attempts, "last_error": message.last_error, "state": message.state.value,
        "fingerprint": find_fingerprint(message),
    }  # fmt: skip


def _rescue(row: Sequence[Any]) -> Message:
    never_due = [*row[:17], None, *row[18:]] if row[17] == _NEVER else row
    return rescue_message(never_due, to_time=from_microseconds, to_uuid=_parse_uuid)


def to_time(stored: Any) -> datetime:
    """Convert a time that may be anything: what is none becomes `NO_TIME`."""
    try:
        return from_microseconds(stored)
    except (TypeError, OverflowError, ValueError):
        return NO_TIME


def _to_text(stored: Any) -> Any:
    """Convert a text that may be anything; None stays None."""
    return stored if stored is None else clean_text(stored)


class StoredClaim(msgspec.Struct, frozen=True):
    """Row of the claim table."""

    relay_id: str
    number: int
    message_ids: Sequence[int]
    strikes: int


def claim_from_row(row: Sequence[Any]) -> StoredClaim:
    """Decode a claim. One whose ids cannot be read claims nothing: a takeover must not fail for it."""
    relay_id, number, message_ids, strikes = row
    return StoredClaim(relay_id, number, _to_ids(message_ids), _to_count(strikes))


def open_claim_from_row(row: Sequence[Any]) -> OpenClaim:
    relay_id, claimed_at, message_ids, strikes = row
    return OpenClaim(
        relay_id=parse_uuid_or_none(relay_id) or NO_ID, claimed_at=to_time(claimed_at),
        message_ids=_to_ids(message_ids), strikes=_to_count(strikes),
    )  # fmt: skip


def _to_ids(stored: Any) -> Sequence[int]:
    """Decode a list of ids that may be anything: what is none is empty."""
    try:
        return decode_ids(stored)
    except (TypeError, ValueError, RecursionError):
        return []


def _to_count(stored: Any) -> int:
    return stored if type(stored) is int and 0 <= stored <= MAX_ATTEMPTS else 0


def relay_values(relay: RelayInfo) -> dict[str, object]:
    """Return the values of a relay's row, without its times."""
    return {
        "relay_id": str(relay.relay_id), "service": relay.service, "host": relay.host, "pid": relay.pid,
        "version": relay.version, "destinations": encode_json(relay.destinations),
        "reachable": encode_json(relay.reachable), "asleep": relay.asleep,
        "labels": msgspec.json.encode(relay.labels).decode() if relay.labels else None,
    }  # fmt: skip


def relay_from_row(row: Sequence[Any]) -> RelayInfo | None:
    """Decode a relay's row; None for one that no relay wrote so: it counts as gone, and stops no other."""
    relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at, lease, labels = row
    try:
        return RelayInfo(
            relay_id=UUID(relay_id), service=clean_text(service), host=clean_text(host), pid=int(pid),
            version=clean_text(version), destinations=decode_texts(destinations), reachable=decode_texts(reachable),
            asleep=bool(asleep), started_at=to_time(started_at), expires_at=from_microseconds(expires_at),
            lease=None if lease is None else timedelta(microseconds=lease), labels=decode_labels(labels),
        )  # fmt: skip
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None


def journal_entry_from_row(row: Sequence[Any]) -> JournalEntry:
    message_id, destination, action, at, by, attempt, error, detail, id_, reason, selection = row
    return JournalEntry(
        message_id=parse_uuid_or_none(message_id), destination=_to_text(destination), action=_to_text(action),
        at=to_time(at), by=_to_text(by), attempt=None if attempt is None else _to_count(attempt),
        error=_to_text(error), detail=_to_text(detail), id=id_, reason=_to_text(reason), selection=_to_text(selection),
    )  # fmt: skip


def count_from_row(row: Sequence[Any]) -> Count:
    destination, topic, state, due, count, oldest_at = row
    return Count(
        destination=_to_text(destination), topic=_to_text(topic), state=State(state), due=bool(due), count=count,
        oldest_at=None if (at := to_time(oldest_at)) is NO_TIME else at,
    )  # fmt: skip


def inbox_failure_from_row(row: Sequence[Any]) -> InboxFailure:
    consumer, source, message_id, attempts, error, failed_at, content = row
    return InboxFailure(
        consumer=_to_text(consumer), source=_to_text(source), message_id=_to_text(message_id),
        attempts=_to_count(attempts), error=_to_text(error), failed_at=to_time(failed_at),
        content=content if type(content) is bytes else clean_text(content).encode(),
    )  # fmt: skip


def inbox_record_from_row(row: Sequence[Any]) -> InboxRecord:
    consumer, source, message_id, status, at, attempts, error, duplicates = row
    return InboxRecord(
        consumer=_to_text(consumer), source=_to_text(source), message_id=_to_text(message_id), status=_to_text(status),
        at=to_time(at), attempts=_to_count(attempts), error=_to_text(error), duplicates=_to_count(duplicates),
    )  # fmt: skip


def requests_from_rows(rows: Iterable[Sequence[Any]]) -> list[DestinationRequest]:
    """Put pauses and probes together, by destination."""
    found: dict[str, DestinationRequest] = {}
    for name, by, at, reason, probed_at in rows:
        destination = clean_text(name)
        one = found.get(destination) or DestinationRequest(destination=destination)
        if by is None:
            found[destination] = msgspec.structs.replace(one, probe_at=to_time(probed_at))
        else:
            found[destination] = msgspec.structs.replace(one, pause=pause_from_row((name, by, at, reason)))
    return [found[destination] for destination in sorted(found)]


def pause_from_row(row: Sequence[Any]) -> Pause:
    destination, by, at, reason = row
    return Pause(destination=clean_text(destination), by=clean_text(by), at=to_time(at), reason=clean_text(reason))
