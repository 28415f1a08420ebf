"""What the three services do: A writes, and B and C record each message that they handle."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from proof.databases import Database, roll_back, write
from proof.judge import NumberedRow
from proof.messages import build_event

__all__ = ["Writer", "create_effect_table", "format_insert", "read_effects"]

_TABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgres": "create table effect (id bigint generated always as identity, subject text, key text, number int)",
        "sqlite": "create table effect (id integer primary key autoincrement, subject text, key text, number int)",
    }
)


def create_effect_table(database: Database, *, backend: str) -> None:
    """Create the table that handlers write to. Nothing in it forbids a second effect."""
    with database.transaction() as handle:
        handle.execute(_TABLES[backend])


def format_insert(mark: str) -> str:
    """Return the statement that a handler runs, with the driver's mark for values: `?` or `$`."""
    marks = "$1, $2, $3" if mark == "$" else "?, ?, ?"
    return f"insert into effect (subject, key, number) values ({marks})"


def read_effects(database: Database) -> Sequence[NumberedRow]:
    """Return the effects in the order of the work. Of one key this is also the order of the commits."""
    return [NumberedRow(*row) for row in database.rows("select subject, key, number from effect order by id")]


_KEYS: Final = tuple(f"k{number}" for number in range(8))
_MOST_KEYS: Final = 3
_ROLLBACK_SHARE: Final = 0.1


class Writer:
    """Writes business row and message, in one transaction each time."""

    def __init__(self, database: Database, *, rng: random.Random) -> None:
        self._database = database
        self._rng = rng
        self.latest = dict.fromkeys(_KEYS, 0)
        """Key to the number of its latest message."""

    @property
    def committed(self) -> int:
        """How many messages are committed."""
        return sum(self.latest.values())

    def write_some(self) -> None:
        """Write one transaction; sometimes one more, which is rolled back."""
        self._write(self._rng.sample(_KEYS, self._rng.randint(1, _MOST_KEYS)))
        if self._rng.random() < _ROLLBACK_SHARE:
            roll_back(self._database, [build_event(key, self.latest[key] + 1_000_000) for key in _KEYS[:2]])

    def write_last(self) -> None:
        """Write one more of each key. When those have arrived, so has everything before them."""
        self._write(_KEYS)

    def _write(self, keys: list[str] | tuple[str, ...]) -> None:
        for key in keys:
            self.latest[key] += 1
        write(self._database, [build_event(key, self.latest[key]) for key in keys])
