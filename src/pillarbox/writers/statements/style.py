"""A statement, its values, and how a dialect and its drivers want them written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["SAVEPOINT", "Savepoint", "Statement", "Statements", "Style", "marks", "now"]


class Style(Enum):
    """A dialect and how its driver marks parameters."""

    DOLLAR = "$"
    """PostgreSQL by asyncpg."""
    FORMAT = "%s"
    """PostgreSQL by psycopg."""
    QMARK = "?"
    """SQLite."""
    MYSQL = "mysql"
    """MariaDB and MySQL. All their drivers write %s."""

    @property
    def quote(self) -> str:
        """What stands around a name."""
        return "`" if self is Style.MYSQL else '"'


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

_MARKS: Final = {Style.FORMAT: "%s", Style.QMARK: "?", Style.MYSQL: "%s"}
_NOW: Final = {
    Style.QMARK: "cast((julianday('now') - 2440587.5) * 86400000000 as integer)",
    Style.MYSQL: "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))",
}


def marks(style: Style, count: int) -> Sequence[str]:
    """How parameters are marked, in order."""
    if style is Style.DOLLAR:
        return [f"${number}" for number in range(1, count + 1)]
    return [_MARKS[style]] * count


def now(style: Style) -> str:
    """The time of the statement, in the store's form."""
    return _NOW.get(style, "statement_timestamp()")
