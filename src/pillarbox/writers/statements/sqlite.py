"""What SQLite executes. Pure."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from pillarbox.message import Message
from pillarbox.names import Names
from pillarbox.protocols import Insert
from pillarbox.writers.rows import COLUMNS, due_of, sqlite_row
from pillarbox.writers.statements.columns import into
from pillarbox.writers.statements.style import Statement, Statements, Style, now

__all__ = ["insert"]

_MOST_VARIABLES: Final = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
_ROWS_AT_ONCE: Final = _MOST_VARIABLES // (len(COLUMNS) + 3)


def insert(batch: Insert) -> Statements:
    """As many statements as the limit on variables asks for."""
    messages = batch.messages
    starts = range(0, len(messages), _ROWS_AT_ONCE)
    return [_insert(batch, messages[start : start + _ROWS_AT_ONCE]) for start in starts]


def _insert(batch: Insert, messages: Sequence[Message]) -> Statement:
    rows: Iterable[tuple[object, ...]] = map(sqlite_row, messages)
    deferred = batch.delay is not None or any(message.available_at is not None for message in messages)
    if deferred:
        rows = ((*row, *due_of(message, batch.delay)) for row, message in zip(rows, messages, strict=True))
    return Statement(_insert_sql(batch.names, len(messages), deferred=deferred), tuple(chain.from_iterable(rows)))


@lru_cache(maxsize=64)
def _insert_sql(names: Names, count: int, *, deferred: bool) -> str:
    # It must begin with INSERT: that is how the driver knows to open the transaction it promises.
    places = ["?"] * len(COLUMNS)
    if deferred:
        places += [f"coalesce(?, {now(Style.QMARK)} + ?)", "?"]
    rows = ", ".join([f"({', '.join(places)})"] * count)
    return f"insert into {into(names, Style.QMARK, deferred=deferred)} values {rows}"
