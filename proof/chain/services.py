"""What B and C have done: one row for each time that a parcel was handled, in that order. Nothing forbids a second."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from proof.databases import Place, roll_back, write
from proof.messages import parcel

__all__ = ["Effect", "Writer", "insert", "make_table", "read_effects"]

_TABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "postgres": "create table effect (id bigint generated always as identity, subject text, key text, number int)",
        "sqlite": "create table effect (id integer primary key autoincrement, subject text, key text, number int)",
    }
)


class Effect(msgspec.Struct, frozen=True):
    """A parcel, handled or committed."""

    subject: str
    key: str
    number: int


def make_table(place: Place, *, backend: str) -> None:
    with place.transaction() as handle:
        handle.execute(_TABLES[backend])


def insert(mark: str) -> str:
    """The statement that a handler runs, with the driver's mark for values: `?` or `$`."""
    marks = "$1, $2, $3" if mark == "$" else "?, ?, ?"
    return f"insert into effect (subject, key, number) values ({marks})"


def read_effects(place: Place) -> Sequence[Effect]:
    """In the order of the work. Of one key this is also the order of the commits."""
    return [Effect(*row) for row in place.rows("select subject, key, number from effect order by id")]


_KEYS: Final = tuple(f"k{number}" for number in range(8))
_AT_ONCE: Final = 3
_SELDOM: Final = 0.1


class Writer:
    """Business row and message in one transaction each time."""

    def __init__(self, place: Place, *, dice: random.Random) -> None:
        self._place = place
        self._dice = dice
        self.latest = dict.fromkeys(_KEYS, 0)
        """Key to the number of its latest parcel."""

    @property
    def committed(self) -> int:
        """How many parcels."""
        return sum(self.latest.values())

    def write_some(self) -> None:
        """One transaction; seldom one more, which thinks better of it."""
        self._write(self._dice.sample(_KEYS, self._dice.randint(1, _AT_ONCE)))
        if self._dice.random() < _SELDOM:
            roll_back(self._place, [parcel(key, self.latest[key] + 1_000_000) for key in _KEYS[:2]])

    def write_last(self) -> None:
        """One more of each key. When it has come through, so has all that was before it."""
        self._write(_KEYS)

    def _write(self, keys: list[str] | tuple[str, ...]) -> None:
        for key in keys:
            self.latest[key] += 1
        write(self._place, [parcel(key, self.latest[key]) for key in keys])
