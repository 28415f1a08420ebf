"""What PostgreSQL executes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pillarbox.message import Message
from pillarbox.names import Names
from pillarbox.protocols import Insert
from pillarbox.writers.rows import COLUMNS, postgres_columns, postgres_row
from pillarbox.writers.statements.columns import into
from pillarbox.writers.statements.style import Statement, Statements, Style, marks

__all__ = ["insert", "lock"]

_LOCK_SEED: Final = 0x70696C6C
_HEADERS: Final = COLUMNS.index("headers")
_TYPES: Final = {
    "message_id": "uuid",
    "partition": "smallint",
    "payload": "bytea",
    "event_time": "timestamptz",
    "available_at": "timestamptz",
}


def insert(batch: Insert, style: Style) -> Statements:
    """One statement, however many messages."""
    if len(batch.messages) == 1:
        return (_one(batch, batch.messages[0], style),)
    return (_many(batch, style),)


def lock(keys: Sequence[str], style: Style) -> Statement:
    """Locks that end with the transaction, one for each key."""
    return Statement(_lock_sql(style), (keys,))


def _one(batch: Insert, message: Message, style: Style) -> Statement:
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
    return f"insert into {into(names, style, deferred=due is not None)} values ({', '.join(values)})"


def _many(batch: Insert, style: Style) -> Statement:
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
        f"insert into {into(names, style, deferred=due is not None)} select {', '.join(values)} "
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
