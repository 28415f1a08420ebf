"""Where the values go."""

from __future__ import annotations

from pillarbox.names import Names
from pillarbox.writers.rows import COLUMNS
from pillarbox.writers.statements.style import Style

__all__ = ["into"]


def into(names: Names, style: Style, *, deferred: bool) -> str:
    """The outbox and the columns that a writer fills. `key` and `partition` are words that MySQL keeps for itself."""
    columns = (*COLUMNS, "available_at", "waits") if deferred else COLUMNS
    named = [f"{style.quote}{column}{style.quote}" if style is Style.MYSQL else column for column in columns]
    return f"{names.table('outbox', quote=style.quote)} ({', '.join(named)})"
