"""What to execute, as text and values: the one place that knows how rows are written. Pure.

The texts are cached, so that on the hot path only values are built.
"""

from __future__ import annotations

from pillarbox.protocols import Insert
from pillarbox.writers.statements import mysql, postgres, sqlite
from pillarbox.writers.statements.style import SAVEPOINT, Savepoint, Statement, Statements, Style, marks, now

__all__ = ["SAVEPOINT", "Savepoint", "Statement", "Statements", "Style", "insert", "lock", "marks", "now"]


def insert(batch: Insert, style: Style) -> Statements:
    """The statements that write the batch: one, except where a limit of SQLite or MySQL forces several.

    Several belong inside a `SAVEPOINT`. None for an empty batch.
    """
    if not batch.messages:
        return ()
    if style is Style.QMARK:
        return sqlite.insert(batch)
    if style is Style.MYSQL:
        return mysql.insert(batch)
    return postgres.insert(batch, style)


def lock(batch: Insert, style: Style) -> Statement | None:
    """What must run before `insert` so that writers of one key take turns; None when nothing is to be locked.

    SQLite has one writer at a time, so nothing is needed there.
    """
    if not batch.serialize_keys or style is Style.QMARK:
        return None
    keys = sorted({message.key for message in batch.messages if message.key is not None})
    if not keys:
        return None
    return mysql.lock(batch.names, keys) if style is Style.MYSQL else postgres.lock(keys, style)
