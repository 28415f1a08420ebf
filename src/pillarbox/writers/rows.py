"""A message as the values of its columns, in each store's own types. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from pillarbox.message import Message

__all__ = ["COLUMNS", "due_of", "microseconds", "mysql_row", "postgres_columns", "postgres_row", "sqlite_row"]

COLUMNS: Final = (
    "message_id", "destination", "partition", "kind", "type", "topic", "key", "payload", "content_type", "headers",
    "source", "subject", "correlation_id", "causation_id", "event_time",
)  # fmt: skip
"""What a writer fills in. The rest is the database's: tx, id and the times of the row have defaults."""

_OFTEN_SHARED: Final = (
    "destination", "kind", "type", "topic", "content_type", "headers", "source", "subject", "causation_id",
    "event_time",
)  # fmt: skip
"""Columns that mostly have one value in a whole batch, in the order of `COLUMNS`."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_encode: Final = msgspec.json.encode


def postgres_row(message: Message) -> tuple[object, ...]:
    """The values of `COLUMNS` as PostgreSQL drivers take them."""
    return (
        message.message_id,
        message.destination,
        message.partition,
        str(message.kind),
        message.type,
        message.topic,
        message.key,
        message.payload,
        message.content_type,
        _encode(dict(message.headers)).decode() if message.headers else None,
        message.source,
        message.subject,
        message.correlation_id,
        message.causation_id,
        message.event_time,
    )


def postgres_columns(messages: Sequence[Message]) -> tuple[dict[str, object], dict[str, list[object]]]:
    """The value of each column that is the same in all messages, and the array of each other column, in their order."""
    columns = zip(*map(postgres_row, messages), strict=True)
    arrays = {column: list(values) for column, values in zip(COLUMNS, columns, strict=True)}
    shared = {column: arrays.pop(column)[0] for column in _OFTEN_SHARED if _is_shared(arrays[column])}
    return shared, arrays


def _is_shared(values: list[object]) -> bool:
    return values.count(values[0]) == len(values)


def sqlite_row(message: Message) -> tuple[object, ...]:
    """The values of `COLUMNS` as SQLite keeps them: the id is text, times are microseconds since 1970."""
    row = postgres_row(message)
    return (str(message.message_id), *row[1:-1], microseconds(message.event_time))


def mysql_row(message: Message) -> tuple[object, ...]:
    """The same with its payload, and each text that people choose, as the hexadecimal digits of its bytes."""
    message_id, destination, partition, kind, *chosen, event_time = sqlite_row(message)
    return (message_id, destination, partition, kind, *map(_hex, chosen), event_time)


def _hex(value: object) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value).encode().hex()


def due_of(message: Message, delay: timedelta | None) -> tuple[int | None, int | None, str | None]:
    """For SQLite and MySQL: a fixed time, or else how long from now, in microseconds; and what `waits` becomes."""
    fixed = None if message.available_at is None else microseconds(message.available_at)
    later = None if delay is None else delay // _MICROSECOND
    return fixed, later, None if fixed is None and later is None else "deferred"


def microseconds(at: datetime) -> int:
    """Whole microseconds since 1970, exactly."""
    return (at - _EPOCH) // _MICROSECOND
