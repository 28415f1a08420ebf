"""What B and C have done: one row for each time that a parcel was handled, in that order. Nothing forbids a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from crash.backends import Place

__all__ = ["Effect", "effects_of", "insert", "make_table"]

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


def effects_of(place: Place) -> Sequence[Effect]:
    """In the order of the work. Of one key this is also the order of the commits."""
    return [Effect(*row) for row in place.rows("select subject, key, number from effect order by id")]
