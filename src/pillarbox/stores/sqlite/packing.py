"""Rows of a read in one row: their columns as JSON, their payloads one after the other.

The driver takes Python's lock for every row, and waits for it while the relay works. One row needs it once, and typed
JSON is decoded faster than the driver builds rows. Only rows as `publish` writes them come through. If there is any
other among them, all of them are read row by row.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.message import Kind, Message, Waits
from pillarbox.stores.sync_sql.rows import from_microseconds
from pillarbox.stores.unreadable import is_sound

__all__ = ["MOST_PACKED", "unpack_messages"]

MOST_PACKED: Final = 4 * 1024 * 1024
"""Bytes of payloads up to which rows are packed: they are copied once more."""

_Row = tuple[
    int, UUID, str, int, Kind, str, str, str | None, int, str, str | None, str, str | None, str, str | None, int, int,
    int | None, Waits | None, int, str | None, int,
]  # fmt: skip
"""The columns of an open row, with the length of the payload in its place."""
_decode = msgspec.json.Decoder(list[_Row]).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_NO_HEADERS: Final[dict[str, str]] = {}
_NEVER: Final = 2**63 - 1
"""`available_at` of messages that wait for no time."""


def unpack_messages(packed: Any, payloads: Any) -> list[Message] | None:
    """Decode packed rows; None if one of them is not as `publish` writes it."""
    try:
        messages = _decode_messages(_decode(packed), payloads)
        is_usual = all(map(is_sound, messages))
    except Exception:  # whatever it is, the reason is found row by row
        return None
    return messages if is_usual else None


def _decode_messages(rows: list[_Row], payloads: bytes) -> list[Message]:
    messages: list[Message] = []
    end = 0
    for (
        id_, message_id, destination, partition, kind, type_, topic, key, length, content_type, headers, source,
        subject, correlation_id, causation_id, event_time, created_at, available_at, waits, attempts, last_error,
        status_at,
    ) in rows:  # fmt: skip
        begin, end = end, end + length
        messages.append(Message(
            id_, message_id, destination, partition, kind, type_, topic, key, payloads[begin:end], content_type,
            _NO_HEADERS if headers is None else _decode_headers(headers), source, subject, correlation_id, causation_id,
            from_microseconds(event_time), created := from_microseconds(created_at),
            None if available_at is None or available_at == _NEVER else from_microseconds(available_at), waits,
            # The two times of a fresh message are equal: one decoding is enough.
            attempts, last_error, created if status_at == created_at else from_microseconds(status_at),
        ))  # fmt: skip
    if end != len(payloads):
        raise ValueError("The payloads are not those of the rows.")
    return messages
