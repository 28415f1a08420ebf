"""What MariaDB and MySQL execute. Pure.

Texts and bytes are sent as hexadecimal digits: they arrive whole whatever the connection's character set and
sql_mode, and however its driver quotes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from pillarbox.names import Names
from pillarbox.protocols import Insert
from pillarbox.writers.rows import COLUMNS, due_of, mysql_row
from pillarbox.writers.statements.columns import into
from pillarbox.writers.statements.style import Statement, Statements, Style, now

__all__ = ["insert", "lock"]

_MOST_ROWS: Final = 500
_MOST_BYTES: Final = 1024 * 1024
"""Well below the smallest `max_allowed_packet` that servers come with."""
_PLAIN: Final = frozenset({"message_id", "destination", "partition", "kind", "event_time"})
"""Columns with numbers, and with texts that are always ASCII without quotes."""

_Row = tuple[object, ...]


def insert(batch: Insert) -> Statements:
    """As many statements as the size of the messages asks for."""
    deferred = batch.delay is not None or any(message.available_at is not None for message in batch.messages)
    rows: Iterable[_Row] = map(mysql_row, batch.messages)
    if deferred:
        rows = ((*row, *due_of(message, batch.delay)) for row, message in zip(rows, batch.messages, strict=True))
    return [
        Statement(_insert_sql(batch.names, len(part), deferred=deferred), tuple(chain.from_iterable(part)))
        for part in _parts(rows)
    ]


def lock(names: Names, keys: Sequence[str]) -> Statement:
    """Each key shares its row with others: the first byte of its md5. Rows are locked in the order of that number."""
    slots = sorted({hashlib.md5(key.encode(), usedforsecurity=False).digest()[0] for key in keys})
    return Statement(_lock_sql(names, len(slots)), slots, has_rows=True)


def _parts(rows: Iterable[_Row]) -> Iterator[Sequence[_Row]]:
    part: list[_Row] = []
    size = 0
    for row in rows:
        more = sum(len(value) for value in row if isinstance(value, str))
        if part and (size + more > _MOST_BYTES or len(part) == _MOST_ROWS):
            yield part
            part, size = [], 0
        part.append(row)
        size += more
    yield part


@lru_cache(maxsize=64)
def _insert_sql(names: Names, count: int, *, deferred: bool) -> str:
    places = [_place(column) for column in COLUMNS]
    if deferred:
        places += [f"coalesce(%s, {now(Style.MYSQL)} + %s)", "%s"]
    rows = ", ".join([f"({', '.join(places)})"] * count)
    return f"insert into {into(names, Style.MYSQL, deferred=deferred)} values {rows}"


def _place(column: str) -> str:
    if column in _PLAIN:
        return "%s"
    # Bytes are what a text column takes as they are; only JSON wants to be told their character set.
    return "convert(unhex(%s) using utf8mb4)" if column == "headers" else "unhex(%s)"


@lru_cache(maxsize=64)
def _lock_sql(names: Names, count: int) -> str:
    places = ", ".join(["%s"] * count)
    return f"select slot from {names.table('slot', quote='`')} where slot in ({places}) order by slot for update"
