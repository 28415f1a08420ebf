"""Comparison of the tables that a database has with those that their version should have.

Each store reads its own catalog; the comparison is the same for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from pillarbox.contracts.finding import Finding, Severity

__all__ = ["Catalog", "Difference", "IdCounter", "compare_catalogs", "normalize_sql"]

Catalog = Mapping[str, str]
"""Item (`column pillarbox_outbox.key`) to definition (`text`). Columns stand in the order of their table."""

_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|\w+|\S")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One item of the catalog that is not what its version should have."""

    item: str
    problem: Literal["missing", "unexpected", "different"]
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        if self.problem != "different":
            return f"{self.problem}: {self.item}"
        return f"different: {self.item} is {self.found}, should be {self.expected}"


class IdCounter(msgspec.Struct, frozen=True, kw_only=True):
    """Counter that gives messages their ids, beside the ids that were given. A restore may take it back."""

    last: int | None = None
    """Last id that it gave; None where this login may not see it."""
    highest: int = 0
    """Highest id of all messages, without the ids above 2^52 that replace others."""

    mark: int = 0
    """Highest id up to which a lane is marked as done with. Relays ignore a mark above the counter, and remove it."""

    @property
    def least(self) -> int:
        """Where the counter must stand at least."""
        return max(self.highest, self.mark)

    @property
    def is_behind(self) -> bool:
        return self.last is not None and self.last < self.least

    def list_differences(self) -> list[Difference]:
        """Return the difference that `schema verify` reports, if there is one."""
        if not self.is_behind:
            return []
        given = "the ids of messages" if self.highest >= self.mark else "the marks of lanes"
        expected = f"{self.least} or higher, as {given} are"
        return [Difference(item="counter of ids", problem="different", expected=expected, found=str(self.last))]

    def _describe_least(self) -> str:
        if self.highest >= self.mark:
            return f"a message has the id {self.highest}"
        return f"a lane is marked as done with up to {self.mark}"

    def list_findings(self, *, code: str, fix: str) -> list[Finding]:
        """Return the finding that the doctor reports, if there is one."""
        if not self.is_behind:
            return []
        return [
            Finding(
                code=code,
                severity=Severity.CRITICAL,
                what=f"The counter of message ids stands at {self.last}, but {self._describe_least()}: a restore or a "
                "failover took it back.",
                why="New messages get ids that older ones have, and come before older messages of their key that are "
                "still open.",
                fix=fix,
            )
        ]


def compare_catalogs(*, expected: Catalog, found: Catalog) -> tuple[Difference, ...]:
    """Return every item that is missing, different or unexpected, in the order of the expected schema.

    A table that is missing is reported once, without its columns, constraints and indexes.
    """
    return (*_find_missing(expected, found), *_find_changed(expected, found), *_find_unexpected(expected, found))


def _find_missing(expected: Catalog, found: Catalog) -> Iterator[Difference]:
    gone = {_parse_table(item) for item in expected if item.startswith(("table ", "view ")) and item not in found}
    for item in expected:
        part_of_gone = _parse_table(item) in gone and not item.startswith(("table ", "view "))
        if item not in found and not part_of_gone:
            yield Difference(item=item, problem="missing")


def _find_changed(expected: Catalog, found: Catalog) -> Iterator[Difference]:
    for item, definition in expected.items():
        if item in found and found[item] != definition:
            yield Difference(item=item, problem="different", expected=definition, found=found[item])
    found_orders = _column_orders(found, shared=expected)
    for table, columns in _column_orders(expected, shared=found).items():
        if found_orders[table] != columns:
            yield Difference(
                item=f"order of columns in {table}", problem="different", expected=columns, found=found_orders[table]
            )


def _find_unexpected(expected: Catalog, found: Catalog) -> Iterator[Difference]:
    for item in found:
        if item not in expected:
            yield Difference(item=item, problem="unexpected")


def _column_orders(catalog: Catalog, *, shared: Catalog) -> Mapping[str, str]:
    """Map each table to those of its columns that both catalogs have, in their order."""
    orders: dict[str, str] = {}
    for item in catalog:
        if item.startswith("column ") and item in shared:
            table, column = item.removeprefix("column ").split(".")
            orders[table] = f"{orders[table]}, {column}" if table in orders else column
    return orders


def _parse_table(item: str) -> str:
    """Return the table of an item: the last word of `index pillarbox_outbox_late_idx on pillarbox_outbox`."""
    if item.startswith("column "):
        return item.removeprefix("column ").split(".")[0]
    if item.startswith("constraint "):
        return item.split(" ")[2].rstrip(":")
    return item.rsplit(" ", 1)[-1]


def normalize_sql(sql: str) -> str:
    """Return SQL in lower case with one space between tokens and unquoted names; texts stay as they are."""
    # The first alternative matches a text and puts it back: a `--` inside one is no comment.
    without_comments = re.sub(r"('(?:[^']|'')*')|--[^\n]*", lambda match: match[1] or " ", sql)
    return " ".join(
        token if token.startswith("'") else token.strip('"').lower() for token in _TOKEN.findall(without_comments)
    )
