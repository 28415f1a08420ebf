"""What a schema is made of, item by item, and how two of them differ. Pure; the stores read their catalogs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

__all__ = ["Catalog", "Difference", "differences", "squeezed"]

Catalog = Mapping[str, str]
"""Item (`column pillarbox_outbox.key`) to definition (`text`). Columns stand in the order of their table."""

_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|\w+|\S")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One item that is not what the version should have."""

    item: str
    problem: Literal["missing", "unexpected", "different"]
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        if self.problem != "different":
            return f"{self.problem}: {self.item}"
        return f"different: {self.item} is {self.found}, should be {self.expected}"


def differences(*, expected: Catalog, found: Catalog) -> tuple[Difference, ...]:
    """Every item that is missing, unexpected or different, in the order of the expected schema.

    An item that is missing with all its table is told once, as the table.
    """
    return (*_missing(expected, found), *_changed(expected, found), *_unexpected(expected, found))


def _missing(expected: Catalog, found: Catalog) -> Iterator[Difference]:
    gone = {_table(item) for item in expected if item.startswith(("table ", "view ")) and item not in found}
    for item in expected:
        part_of_gone = _table(item) in gone and not item.startswith(("table ", "view "))
        if item not in found and not part_of_gone:
            yield Difference(item=item, problem="missing")


def _changed(expected: Catalog, found: Catalog) -> Iterator[Difference]:
    for item, definition in expected.items():
        if item in found and found[item] != definition:
            yield Difference(item=item, problem="different", expected=definition, found=found[item])
    for table, columns in _orders(expected, shared=found).items():
        others = _orders(found, shared=expected)[table]
        if others != columns:
            yield Difference(item=f"order of columns in {table}", problem="different", expected=columns, found=others)


def _unexpected(expected: Catalog, found: Catalog) -> Iterator[Difference]:
    for item in found:
        if item not in expected:
            yield Difference(item=item, problem="unexpected")


def _orders(catalog: Catalog, *, shared: Catalog) -> Mapping[str, str]:
    """Table to its columns, in order, of those that both catalogs have."""
    orders: dict[str, str] = {}
    for item in catalog:
        if item.startswith("column ") and item in shared:
            table, column = item.removeprefix("column ").split(".")
            orders[table] = f"{orders[table]}, {column}" if table in orders else column
    return orders


def _table(item: str) -> str:
    """The table an item belongs to: `index pillarbox_outbox_late_idx on pillarbox_outbox` to the last word."""
    if item.startswith("column "):
        return item.removeprefix("column ").split(".")[0]
    if item.startswith("constraint "):
        return item.split(" ")[2].rstrip(":")
    return item.rsplit(" ", 1)[-1]


def squeezed(sql: str) -> str:
    """SQL with one space between tokens, lower case and no quotes around names; text in quotes stays as it is."""
    return " ".join(_squeezed_token(token) for token in _TOKEN.findall(_without_comments(sql)))


def _squeezed_token(token: str) -> str:
    return token if token.startswith("'") else token.strip('"').lower()


def _without_comments(sql: str) -> str:
    return re.sub(r"('(?:[^']|'')*')|--[^\n]*", lambda match: match[1] or " ", sql)
