"""What to execute, as text and values: the one place that knows how rows are written. Pure.

The texts are cached, so that on the hot path only values are built.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from pillarbox.message import Message
from pillarbox.names import Names
from pillarbox.protocols import Insert
from pillarbox.writers.rows import COLUMNS, microseconds, postgres_columns, postgres_row, sqlite_row

__all__ = ["SAVEPOINT", "Savepoint", "Statement", "Statements", "Style", "insert", "lock", "marks", "now"]


class Style(Enum):
    """A dialect and how its driver marks parameters."""

    DOLLAR = "$"
    """PostgreSQL by asyncpg."""
    FORMAT = "%s"
    """PostgreSQL by psycopg."""
    QMARK = "?"
    """SQLite."""


class Statement(NamedTuple):
    """One statement and its values, by position."""

    sql: str
    parameters: Sequence[object] = ()
    has_rows: bool = False
    """It answers with rows."""


Statements = Sequence[Statement]


class Savepoint(NamedTuple):
    """Makes several statements one: all of them happen or none."""

    set: str
    undo: str
    release: str


SAVEPOINT: Final = Savepoint(
    "savepoint pillarbox_batch", "rollback to savepoint pillarbox_batch", "release savepoint pillarbox_batch"
)

_LOCK_SEED: Final = 0x70696C6C
_MOST_VARIABLES: Final = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
_ROWS_AT_ONCE: Final = _MOST_VARIABLES // (len(COLUMNS) + 3)
_SQLITE_NOW: Final = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
_HEADERS: Final = COLUMNS.index("headers")
_TYPES: Final = {
    "message_id": "uuid",
    "partition": "smallint",
    "payload": "bytea",
    "event_time": "timestamptz",
    "available_at": "timestamptz",
}


def insert(batch: Insert, style: Style) -> Statements:
    """The statements that write the batch: one, except where SQLite's limit on variables forces several.

    Several belong inside a `SAVEPOINT`. None for an empty batch.
    """
    messages = batch.messages
    if not messages:
        return ()
    if style is Style.QMARK:
        starts = range(0, len(messages), _ROWS_AT_ONCE)
        return [_sqlite(batch, messages[start : start + _ROWS_AT_ONCE]) for start in starts]
    if len(messages) == 1:
        return (_postgres_one(batch, messages[0], style),)
    return (_postgres_many(batch, style),)


def lock(batch: Insert, style: Style) -> Statement | None:
    """What must run before `insert` so that writers of one key take turns; None when nothing is to be locked.

    SQLite has one writer at a time, so nothing is needed there.
    """
    if not batch.serialize_keys or style is Style.QMARK:
        return None
    keys = sorted({message.key for message in batch.messages if message.key is not None})
    return Statement(_lock_sql(style), (keys,)) if keys else None


# --- PostgreSQL ----------------------------------------------------------------------------------


def _postgres_one(batch: Insert, message: Message, style: Style) -> Statement:
    values = postgres_row(message)
    if message.available_at is not None:
        return Statement(_one_sql(batch.names, style, "{0}"), (*values, message.available_at))
    if batch.delay is not None:
        return Statement(_one_sql(batch.names, style, "statement_timestamp() + {0}::interval"), (*values, batch.delay))
    return Statement(_one_sql(batch.names, style, None), values)


@lru_cache
def _one_sql(names: Names, style: Style, due: str | None) -> str:
    places = marks(style, len(COLUMNS) + 1)
    values = [_as_json(mark) if column == "headers" else mark for column, mark in zip(COLUMNS, places, strict=False)]
    if due is not None:
        values += [due.format(places[-1]), "'deferred'"]
    return f"insert into {_into(names, deferred=due is not None)} values ({', '.join(values)})"


def _postgres_many(batch: Insert, style: Style) -> Statement:
    shared, arrays = postgres_columns(batch.messages)
    due = _due(batch)
    if due is not None:
        arrays["available_at"] = [message.available_at for message in batch.messages]
    delay = () if batch.delay is None else (batch.delay,)
    return Statement(_many_sql(batch.names, style, due, tuple(arrays)), [*shared.values(), *delay, *arrays.values()])


def _due(batch: Insert) -> str | None:
    if batch.delay is not None:
        return _DELAYED
    return _FIXED if any(message.available_at is not None for message in batch.messages) else None


_FIXED: Final = "m.available_at, case when m.available_at is not null then 'deferred' end"
_DELAYED: Final = "coalesce(m.available_at, statement_timestamp() + {0}::interval), 'deferred'"


@lru_cache
def _many_sql(names: Names, style: Style, due: str | None, columns: tuple[str, ...]) -> str:
    # Only these columns have arrays. What all rows share is sent once: a large batch takes a third less time.
    places = iter(marks(style, len(COLUMNS) + 2))
    values = [f"m.{column}" if column in columns else _cast(next(places), column) for column in COLUMNS]
    values[_HEADERS] = _as_json(values[_HEADERS])
    if due is not None:
        values.append(due.format(next(places)) if due is _DELAYED else due)
    arrays = [f"{_cast(next(places), column)}[]" for column in columns]
    # Sorting by position is what makes ids follow the list: defaults are drawn after an INSERT's SELECT is sorted.
    return (
        f"insert into {_into(names, deferred=due is not None)} select {', '.join(values)} "
        f"from unnest({', '.join(arrays)}) with ordinality as m({', '.join(columns)}, position) order by m.position"
    )


def _cast(mark: str, column: str) -> str:
    return f"{mark}::{_TYPES.get(column, 'text')}"


@lru_cache
def _lock_sql(style: Style) -> str:
    # Sorted by the number that is locked: any two writers take what they share in the same order.
    (mark,) = marks(style, 1)
    return (
        "select pg_advisory_xact_lock(k.number) from (select distinct hashtextextended(key, "
        f"{_LOCK_SEED}) as number from unnest({mark}::text[]) as key order by 1) as k"
    )


def _as_json(value: str) -> str:
    # By way of text, so that no codec the application registered for jsonb encodes it once more.
    return f"{value}::text::jsonb"


# --- SQLite --------------------------------------------------------------------------------------


def _sqlite(batch: Insert, messages: Sequence[Message]) -> Statement:
    rows: Iterable[tuple[object, ...]] = map(sqlite_row, messages)
    deferred = batch.delay is not None or any(message.available_at is not None for message in messages)
    if deferred:
        delay = None if batch.delay is None else batch.delay // timedelta(microseconds=1)
        rows = ((*row, *_sqlite_due(message, delay)) for row, message in zip(rows, messages, strict=True))
    return Statement(_sqlite_sql(batch.names, len(messages), deferred=deferred), tuple(chain.from_iterable(rows)))


def _sqlite_due(message: Message, delay: int | None) -> tuple[int | None, int | None, str | None]:
    fixed = None if message.available_at is None else microseconds(message.available_at)
    return fixed, delay, None if fixed is None and delay is None else "deferred"


@lru_cache(maxsize=64)
def _sqlite_sql(names: Names, count: int, *, deferred: bool) -> str:
    # It must begin with INSERT: that is how the driver knows to open the transaction it promises.
    places = ["?"] * len(COLUMNS)
    if deferred:
        places += [f"coalesce(?, {_SQLITE_NOW} + ?)", "?"]
    rows = ", ".join([f"({', '.join(places)})"] * count)
    return f"insert into {_into(names, deferred=deferred)} values {rows}"


def _into(names: Names, *, deferred: bool) -> str:
    columns = (*COLUMNS, "available_at", "waits") if deferred else COLUMNS
    return f"{names.table('outbox')} ({', '.join(columns)})"


def marks(style: Style, count: int) -> Sequence[str]:
    """How parameters are marked, in order."""
    if style is Style.DOLLAR:
        return [f"${number}" for number in range(1, count + 1)]
    return [style.value] * count


def now(style: Style) -> str:
    """The time of the statement, in the store's form."""
    return _SQLITE_NOW if style is Style.QMARK else "statement_timestamp()"
