"""SQL of the outbox: builds the statements that insert messages, for every dialect. Pure.

The texts are cached, so that on the hot path only values are built.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from pillarbox.contracts.writer import Insert
from pillarbox.message import Message, Names

__all__ = [
    "COLUMNS",
    "SAVEPOINT",
    "Dialect",
    "Statement",
    "build_insert",
    "build_lock",
    "now_sql",
    "placeholders",
    "to_microseconds",
]


class Dialect(Enum):
    """A database, and how its driver marks parameters."""

    POSTGRES_DOLLAR = "$"
    """PostgreSQL by asyncpg."""
    POSTGRES_FORMAT = "%s"
    """PostgreSQL by psycopg."""
    SQLITE = "?"
    MYSQL = "mysql"
    """MariaDB and MySQL. All their drivers write %s."""

    @property
    def quote(self) -> str:
        """The character around an identifier."""
        return "`" if self is Dialect.MYSQL else '"'


class Statement(NamedTuple):
    """One statement and its values, by position."""

    sql: str
    parameters: Sequence[object] = ()
    has_rows: bool = False
    """It returns rows."""


class Savepoint(NamedTuple):
    """Makes several statements one: all of them take effect or none."""

    set: str
    undo: str
    release: str


SAVEPOINT: Final = Savepoint(
    "savepoint pillarbox_batch", "rollback to savepoint pillarbox_batch", "release savepoint pillarbox_batch"
)

COLUMNS: Final = (
    "message_id", "destination", "partition", "kind", "type", "topic", "key", "payload", "content_type", "headers",
    "source", "subject", "correlation_id", "causation_id", "event_time",
)  # fmt: skip
"""The columns that a writer fills. The others, tx, id and the times of the row, have defaults in the database."""


def build_insert(batch: Insert, dialect: Dialect) -> Sequence[Statement]:
    """Build the statements that write the batch: one, except where a limit of SQLite or MySQL forces several.

    Several must run inside a `SAVEPOINT`. An empty batch has none.
    """
    if not batch.messages:
        return ()
    if dialect is Dialect.SQLITE:
        return _build_sqlite_inserts(batch)
    if dialect is Dialect.MYSQL:
        return _build_mysql_inserts(batch)
    if len(batch.messages) == 1:
        return (_build_postgres_row_insert(batch, batch.messages[0], dialect),)
    return (_build_postgres_array_insert(batch, dialect),)


def build_lock(batch: Insert, dialect: Dialect) -> Statement | None:
    """Build the statement that makes writers of one key take turns, to run before the insert; None when none is needed.

    SQLite has one writer at a time, so it needs none.
    """
    if not batch.serialize_keys or dialect is Dialect.SQLITE:
        return None
    keys = sorted({message.key for message in batch.messages if message.key is not None})
    if not keys:
        return None
    if dialect is not Dialect.MYSQL:
        return Statement(_postgres_lock_sql(dialect), (keys,))
    # MySQL has no advisory lock that ends with the transaction. Keys share 256 rows, by the first byte of their md5.
    slots = sorted({hashlib.md5(key.encode(), usedforsecurity=False).digest()[0] for key in keys})
    return Statement(_mysql_lock_sql(batch.names, len(slots)), slots, has_rows=True)


_PLACEHOLDERS: Final = {Dialect.POSTGRES_FORMAT: "%s", Dialect.SQLITE: "?", Dialect.MYSQL: "%s"}
_NOW: Final = {
    Dialect.SQLITE: "cast((julianday('now') - 2440587.5) * 86400000000 as integer)",
    Dialect.MYSQL: "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))",
}


def placeholders(dialect: Dialect, count: int) -> Sequence[str]:
    """Return the marks of so many parameters, in order."""
    if dialect is Dialect.POSTGRES_DOLLAR:
        return [f"${number}" for number in range(1, count + 1)]
    return [_PLACEHOLDERS[dialect]] * count


def now_sql(dialect: Dialect) -> str:
    """Return the expression for the time of the statement, in the form that the tables store."""
    return _NOW.get(dialect, "statement_timestamp()")


def to_microseconds(at: datetime) -> int:
    """Convert a time to whole microseconds since 1970, exactly."""
    return (at - _EPOCH) // _MICROSECOND


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_encode_json: Final = msgspec.json.encode

_Row = tuple[object, ...]


def _insert_into(names: Names, dialect: Dialect, *, deferred: bool) -> str:
    columns: tuple[str, ...] = (*COLUMNS, "available_at", "waits") if deferred else COLUMNS
    if dialect is Dialect.MYSQL:  # `key` and `partition` are reserved words there
        columns = tuple(f"`{column}`" for column in columns)
    return f"insert into {names.table('outbox', quote=dialect.quote)} ({', '.join(columns)})"


# --- PostgreSQL ----------------------------------------------------------------------------------

_LOCK_CLASS: Final = 0x70696C6C
_LOCK_SLOTS: Final = 1_024
"""Most locks that a transaction takes, however many keys it has. A power of two."""
_HEADERS: Final = COLUMNS.index("headers")
_POSTGRES_TYPES: Final = {
    "message_id": "uuid",
    "partition": "smallint",
    "payload": "bytea",
    "event_time": "timestamptz",
    "available_at": "timestamptz",
}
_OFTEN_SHARED: Final = (
    "destination", "kind", "type", "topic", "content_type", "headers", "source", "subject", "causation_id",
    "event_time",
)  # fmt: skip
"""Columns that mostly have one value in a whole batch, in the order of `COLUMNS`."""
_FIXED: Final = "m.available_at, case when m.available_at is not null then 'deferred' end"
_DELAYED: Final = "coalesce(m.available_at, statement_timestamp() + {0}::interval), 'deferred'"


def _to_postgres_row(message: Message) -> _Row:
    """Return the values of `COLUMNS` as PostgreSQL drivers take them."""
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
        _encode_json(dict(message.headers)).decode() if message.headers else None,
        message.source,
        message.subject,
        message.correlation_id,
        message.causation_id,
        message.event_time,
    )


def _build_postgres_row_insert(batch: Insert, message: Message, dialect: Dialect) -> Statement:
    values = _to_postgres_row(message)
    if message.available_at is not None:
        return Statement(_postgres_row_sql(batch.names, dialect, "{0}"), (*values, message.available_at))
    if batch.delay is not None:
        sql = _postgres_row_sql(batch.names, dialect, "statement_timestamp() + {0}::interval")
        return Statement(sql, (*values, batch.delay))
    return Statement(_postgres_row_sql(batch.names, dialect, None), values)


@lru_cache
def _postgres_row_sql(names: Names, dialect: Dialect, due: str | None) -> str:
    marks = placeholders(dialect, len(COLUMNS) + 1)
    values = [_as_json(mark) if column == "headers" else mark for column, mark in zip(COLUMNS, marks, strict=False)]
    if due is not None:
        values += [due.format(marks[-1]), "'deferred'"]
    return f"{_insert_into(names, dialect, deferred=due is not None)} values ({', '.join(values)})"


def _build_postgres_array_insert(batch: Insert, dialect: Dialect) -> Statement:
    """Build one insert for many messages: an array for each column, and one value where all rows share it."""
    columns = zip(*map(_to_postgres_row, batch.messages), strict=True)
    arrays = {column: list(values) for column, values in zip(COLUMNS, columns, strict=True)}
    # What all rows share is sent once: a large batch takes a third less time.
    shared = {column: arrays.pop(column)[0] for column in _OFTEN_SHARED if _is_shared(arrays[column])}
    due = None
    if batch.delay is not None:
        due = _DELAYED
    elif any(message.available_at is not None for message in batch.messages):
        due = _FIXED
    if due is not None:
        arrays["available_at"] = [message.available_at for message in batch.messages]
    delay = () if batch.delay is None else (batch.delay,)
    sql = _postgres_array_sql(batch.names, dialect, due, tuple(arrays))
    return Statement(sql, [*shared.values(), *delay, *arrays.values()])


def _is_shared(values: list[object]) -> bool:
    return values.count(values[0]) == len(values)


@lru_cache
def _postgres_array_sql(names: Names, dialect: Dialect, due: str | None, columns: tuple[str, ...]) -> str:
    marks = iter(placeholders(dialect, len(COLUMNS) + 2))
    values = [f"m.{column}" if column in columns else _cast(next(marks), column) for column in COLUMNS]
    values[_HEADERS] = _as_json(values[_HEADERS])
    if due is not None:
        values.append(due.format(next(marks)) if due is _DELAYED else due)
    arrays = [f"{_cast(next(marks), column)}[]" for column in columns]
    # Sorting by position is what makes ids follow the list: defaults are drawn after an INSERT's SELECT is sorted.
    return (
        f"{_insert_into(names, dialect, deferred=due is not None)} select {', '.join(values)} "
        f"from unnest({', '.join(arrays)}) with ordinality as m({', '.join(columns)}, position) order by m.position"
    )


def _cast(mark: str, column: str) -> str:
    return f"{mark}::{_POSTGRES_TYPES.get(column, 'text')}"


def _as_json(value: str) -> str:
    # By way of text, so that no codec the application registered for jsonb encodes it once more.
    return f"{value}::text::jsonb"


@lru_cache
def _postgres_lock_sql(dialect: Dialect) -> str:
    # The server's table of locks has room for some thousand: keys share a number of them, and any two writers take what
    # they share in the same order.
    (mark,) = placeholders(dialect, 1)
    return (
        f"select pg_advisory_xact_lock({_LOCK_CLASS}, k.slot) from (select distinct "
        f"(hashtextextended(key, 0) & {_LOCK_SLOTS - 1})::integer as slot from unnest({mark}::text[]) as key "
        "order by 1) as k"
    )


# --- SQLite and MySQL ----------------------------------------------------------------------------

_SQLITE_MAX_VARIABLES: Final = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
_SQLITE_MAX_ROWS: Final = _SQLITE_MAX_VARIABLES // (len(COLUMNS) + 3)
_MYSQL_MAX_ROWS: Final = 500
_MYSQL_MAX_BYTES: Final = 1024 * 1024
"""Well below the smallest default of `max_allowed_packet`."""
_MYSQL_PLAIN: Final = frozenset({"message_id", "destination", "partition", "kind", "event_time"})
"""Columns with numbers, and with texts that are always ASCII without quotes."""


def _to_sqlite_row(message: Message) -> _Row:
    """Return the values of `COLUMNS` as SQLite stores them: the id is text, times are microseconds since 1970."""
    row = _to_postgres_row(message)
    return (str(message.message_id), *row[1:-1], to_microseconds(message.event_time))


def _to_mysql_row(message: Message) -> _Row:
    """Return the same with the payload, and each text that people choose, as hexadecimal digits.

    So neither the connection's character set nor its SQL mode can change them.
    """
    message_id, destination, partition, kind, *chosen, event_time = _to_sqlite_row(message)
    return (message_id, destination, partition, kind, *map(_to_hex, chosen), event_time)


def _to_hex(value: object) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value).encode().hex()


def _add_due(rows: Iterable[_Row], messages: Sequence[Message], delay: timedelta | None) -> Iterator[_Row]:
    """Append to each row its fixed time, or else its delay, in microseconds, and the value of `waits`."""
    later = None if delay is None else delay // _MICROSECOND
    for row, message in zip(rows, messages, strict=True):
        fixed = None if message.available_at is None else to_microseconds(message.available_at)
        yield (*row, fixed, later, None if fixed is None and later is None else "deferred")


def _is_deferred(batch: Insert, messages: Sequence[Message]) -> bool:
    return batch.delay is not None or any(message.available_at is not None for message in messages)


def _build_sqlite_inserts(batch: Insert) -> Sequence[Statement]:
    statements = []
    for start in range(0, len(batch.messages), _SQLITE_MAX_ROWS):
        messages = batch.messages[start : start + _SQLITE_MAX_ROWS]
        deferred = _is_deferred(batch, messages)
        rows: Iterable[_Row] = map(_to_sqlite_row, messages)
        if deferred:
            rows = _add_due(rows, messages, batch.delay)
        sql = _sqlite_insert_sql(batch.names, len(messages), deferred=deferred)
        statements.append(Statement(sql, tuple(chain.from_iterable(rows))))
    return statements


@lru_cache(maxsize=64)
def _sqlite_insert_sql(names: Names, count: int, *, deferred: bool) -> str:
    # It must begin with INSERT: by that the driver knows that it has to open a transaction.
    return _insert_values_sql(names, Dialect.SQLITE, ["?"] * len(COLUMNS), count=count, deferred=deferred)


def _build_mysql_inserts(batch: Insert) -> Sequence[Statement]:
    deferred = _is_deferred(batch, batch.messages)
    rows: Iterable[_Row] = map(_to_mysql_row, batch.messages)
    if deferred:
        rows = _add_due(rows, batch.messages, batch.delay)
    return [
        Statement(_mysql_insert_sql(batch.names, len(part), deferred=deferred), tuple(chain.from_iterable(part)))
        for part in _split_by_size(rows)
    ]


def _split_by_size(rows: Iterable[_Row]) -> Iterator[Sequence[_Row]]:
    part: list[_Row] = []
    size = 0
    for row in rows:
        row_size = sum(len(value) for value in row if isinstance(value, str))
        if part and (size + row_size > _MYSQL_MAX_BYTES or len(part) == _MYSQL_MAX_ROWS):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_size
    yield part


@lru_cache(maxsize=64)
def _mysql_insert_sql(names: Names, count: int, *, deferred: bool) -> str:
    values = ["%s" if column in _MYSQL_PLAIN else "unhex(%s)" for column in COLUMNS]
    # A text column takes bytes as they are; only JSON needs their character set.
    values[_HEADERS] = "convert(unhex(%s) using utf8mb4)"
    return _insert_values_sql(names, Dialect.MYSQL, values, count=count, deferred=deferred)


def _insert_values_sql(names: Names, dialect: Dialect, values: list[str], *, count: int, deferred: bool) -> str:
    if deferred:
        (mark,) = placeholders(dialect, 1)
        values = [*values, f"coalesce({mark}, {now_sql(dialect)} + {mark})", mark]
    rows = ", ".join([f"({', '.join(values)})"] * count)
    return f"{_insert_into(names, dialect, deferred=deferred)} values {rows}"


@lru_cache(maxsize=64)
def _mysql_lock_sql(names: Names, count: int) -> str:
    # In the order of the slots: any two writers take what they share in the same order.
    marks = ", ".join(["%s"] * count)
    return f"select slot from {names.table('slot', quote='`')} where slot in ({marks}) order by slot for update"
