"""Rows into values and back. Messages are made by position: this is most of what a read costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.message import Kind, Message, State, Waits

__all__ = ["json_of", "message_of", "messages_of", "microseconds", "span", "stored_of", "texts_of", "time_of"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT_AS_FLOAT: Final = 2**32 * 1_000_000
"""Until 2106 a float of seconds still tells microseconds apart, and is the quicker way."""
_NEVER: Final = 2**63 - 1
"""`available_at` of what waits for no time: parked and held messages."""

_KINDS: Final = {kind.value: kind for kind in Kind}
_WAITS: Final = {None: None} | {waits.value: waits for waits in Waits}
_STATES: Final = {state.value: state for state in State}
_NO_HEADERS: Final[dict[str, str]] = {}
_headers = msgspec.json.Decoder(dict[str, str]).decode
_texts = msgspec.json.Decoder(list[str]).decode
_from_timestamp = datetime.fromtimestamp
_converted = msgspec.convert


def microseconds(at: datetime) -> int:
    """A time as whole microseconds since 1970 UTC."""
    return span(at - _EPOCH)


def span(length: timedelta) -> int:
    """A duration as whole microseconds, as much as 64 bits hold."""
    return min(length // _MICROSECOND, _NEVER // 2)


def time_of(stored: int) -> datetime:
    """The opposite of `microseconds`."""
    if 0 <= stored < _EXACT_AS_FLOAT:
        return _from_timestamp(stored / 1_000_000, UTC)
    return _EPOCH + timedelta(microseconds=stored)


def json_of(values: Iterable[object]) -> str:
    """Values as a JSON array."""
    return msgspec.json.encode(values if isinstance(values, list) else list(values)).decode()


def texts_of(stored: str) -> list[str]:
    """A stored JSON array of texts."""
    return _texts(stored)


def uuid_of(stored: str) -> UUID:
    """A message id, in any of the spellings that `UUID` takes; the usual one a good deal faster."""
    try:
        return _converted(stored, UUID)
    except msgspec.ValidationError:
        return UUID(stored)


def message_of(row: Sequence[Any]) -> Message:
    """An open row, in the columns' order."""
    return messages_of([row])[0]


def messages_of(rows: Iterable[Sequence[Any]]) -> list[Message]:
    """Open rows, in the columns' order."""
    return [
        Message(
            id_, uuid_of(message_id), destination, partition, _KINDS[kind], type_, topic, key, payload, content_type,
            _NO_HEADERS if headers is None else _headers(headers),
            source, subject, correlation_id, causation_id, time_of(event_time), created := time_of(created_at),
            None if available_at is None or available_at == _NEVER else time_of(available_at), _WAITS[waits], attempts,
            last_error, created if status_at == created_at else time_of(status_at),
        )
        for (
            id_, message_id, destination, partition, kind, type_, topic, key, payload, content_type, headers, source,
            subject, correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error,
            status_at,
        ) in rows
    ]  # fmt: skip


def stored_of(row: Sequence[Any]) -> Message:
    """The same columns, then the state. The payload may not have been kept."""
    return Message(
        row[0], uuid_of(row[1]), row[2], row[3], _KINDS[row[4]], row[5], row[6], row[7], row[8] or b"", row[9],
        _NO_HEADERS if row[10] is None else _headers(row[10]),
        row[11], row[12], row[13], row[14], time_of(row[15]), time_of(row[16]),
        None if row[17] is None or row[17] == _NEVER else time_of(row[17]), _WAITS[row[18]], row[19], row[20],
        time_of(row[21]), _STATES[row[22]], row[8] is not None,
    )  # fmt: skip
