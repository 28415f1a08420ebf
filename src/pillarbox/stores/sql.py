"""Statements in `.sql` files, grouped by subject, written with the default names.

Each statement begins with a line `-- name: claim`; the comment below it says why the statement exists. Stores that
share a text (SQLite and MariaDB) keep it in one folder, and a dialect's own statement replaces the shared one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

from pillarbox.contracts.store import Order, Selection
from pillarbox.message import Names

__all__ = ["Binder", "Statements", "build_conditions", "parse_statements", "sort_rows"]

_NAME_LINE: Final = re.compile(r"^-- name: (.*)\n", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_BY_ID: Final = "order by id\n"
_ORDERS: Final = {
    Order.ID: _BY_ID,
    Order.ATTEMPTS: "order by attempts desc, id\n",
    Order.NEWEST: "order by status_at desc, id desc\n",
}
_ATTEMPTS: Final = 19
_STATUS_AT: Final = 21
"""Columns of a found row."""


class Statements(Mapping[str, str]):
    """Statements of one store by name, with the configured names of tables in them.

    `shared` is a package whose statements this one may replace. `translate` turns the neutral text into what the
    driver takes. Each file is read once per process, each statement translated once per store.
    """

    def __init__(
        self,
        package: str,
        names: Names,
        *,
        shared: str | None = None,
        quote: str = '"',
        translate: Callable[[str], str] = str,
    ) -> None:
        self._package = package
        self._sources = {**(_read_package(shared) if shared else {}), **_read_package(package)}
        self._names = names
        self._quote = quote
        self._translate = translate
        self._texts: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        text = self._texts.get(name)
        if text is None:
            if name not in self._sources:
                raise KeyError(f"There is no statement {name} in {self._package}.")
            text = self._translate(self._names.qualify(self._sources[name], quote=self._quote))
            self._texts[name] = text
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def fill(self, name: str, where: str, *, order: Order = Order.ID) -> str:
        """Return a statement with the conditions of a selection in place of its `/* where */` mark."""
        text = self[name].replace("/* where */", self._translate(f"and {where}") if where else "")
        return text if order is Order.ID else text.replace(_BY_ID, _ORDERS[order])


def sort_rows(rows: Iterable[Sequence[Any]], order: Order) -> list[Any]:
    """Sort found rows of several statements, whose values may be of any type in a table that others write."""
    by_id = sorted(rows, key=lambda row: row[0], reverse=order is Order.NEWEST)
    if order is Order.ID:
        return by_id
    column = _ATTEMPTS if order is Order.ATTEMPTS else _STATUS_AT
    known = [row for row in by_id if row[column] is not None and not isinstance(row[column], str | bytes)]
    rest = [row for row in by_id if row[column] is None or isinstance(row[column], str | bytes)]
    return sorted(known, key=lambda row: row[column], reverse=True) + rest


@cache
def _read_package(package: str) -> Mapping[str, str]:
    texts = [file.read_text("utf-8") for file in (files(package) / "sql").iterdir() if file.name.endswith(".sql")]
    return parse_statements(texts)


def parse_statements(texts: Sequence[str]) -> Mapping[str, str]:
    """Split files into statements by name; `ValueError` for text before the first name, or a name used twice."""
    statements: dict[str, str] = {}
    for text in texts:
        before, *named = _NAME_LINE.split(text)
        if before.strip():
            raise ValueError(f"A file of statements begins with a name line, not with {before.strip()[:40]!r}.")
        for name, statement in zip(named[::2], named[1::2], strict=True):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a statement: write lower-case letters and underscores.")
            if name in statements:
                raise ValueError(f"Two statements are called {name}: rename one of them.")
            statements[name] = statement.strip() + "\n"
    return statements


class Binder(Protocol):
    """Collects parameters, and writes the conditions that use them."""

    def value(self, value: object) -> str:
        """Return the placeholder of one value."""

    def equals(self, column: str, value: object) -> str:
        """Return the condition that the column has this value, as an index of the column takes it."""

    def any_of(self, column: str, values: Sequence[object]) -> str:
        """Return the condition that the column is one of these."""

    def contains(self, column: str, text: str) -> str:
        """Return the condition that the column contains this text, letter case ignored."""


def build_conditions(selection: Selection, binder: Binder, *, key: str = "key") -> str:
    """Join all conditions but the state's by `and`; the columns are those of the tables and the view.

    `key` is how that column is written, where the word must be quoted.
    """
    equal = {
        "destination": selection.destination,
        "topic": selection.topic,
        "type": selection.type,
        key: selection.key,
        "correlation_id": selection.correlation_id,
    }
    lists: Mapping[str, Sequence[object] | None] = {"id": selection.ids, "message_id": selection.message_ids}
    bounds = (
        ("created_at >=", selection.since),
        ("created_at <", selection.until),
        ("status_at <", selection.changed_before),
        ("attempts >=", selection.min_attempts),
        ("id >", selection.after),
    )
    conditions = [binder.equals(column, value) for column, value in equal.items() if value is not None]
    conditions += [binder.any_of(column, values) for column, values in lists.items() if values is not None]
    # A bound of 0 attempts, or after id 0, excludes nothing.
    conditions += [f"{comparison} {binder.value(value)}" for comparison, value in bounds if value]
    if selection.fingerprint is not None:
        no_print = selection.fingerprint == ""
        conditions.append(
            "coalesce(fingerprint, '') = ''" if no_print else binder.equals("fingerprint", selection.fingerprint)
        )
    if selection.tried:
        conditions.append("last_error is not null")
    if selection.error is not None:
        conditions.append(binder.contains("last_error", selection.error))
    return " and ".join(conditions)
