"""Statements in `.sql` files, grouped by subject, written with the default names.

Each statement begins with a line `-- name: claim`; the comment below it says why the statement exists. Stores that
share a text (SQLite and MariaDB) keep it in one folder, and a dialect's own statement replaces the shared one.

`-- name: claim since 10` is the same statement for tables of version 10 on, which have what it uses. The other one
stays beside it for tables of the version before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

from pillarbox.contracts.store import Order, Phase, Selection
from pillarbox.message import Names

__all__ = ["Binder", "Statements", "build_conditions", "choose_variants", "parse_statements", "sort_rows"]

_NAME_LINE: Final = re.compile(r"^-- name: (.*)\n", re.MULTILINE)
_NAME: Final = re.compile(r"([a-z][a-z0-9_]*)(?: since ([1-9]\d*))?")
_BY_ID: Final = "order by id\n"
_PAYLOAD: Final = "/* payload */ payload"
_NO_PAYLOAD: Final = "''::bytea"
"""As PostgreSQL writes it; SQLite and MariaDB take a parameter instead."""
_ORDERS: Final = {
    Order.ID: _BY_ID,
    Order.ATTEMPTS: "order by attempts desc, id\n",
    Order.NEWEST: "order by status_at desc, id desc\n",
    Order.LATEST: "order by id desc\n",
}
_SINCE: Final = "coalesce(due_at, case waits when 'deferred' then available_at end, created_at)"
"""When an open message first could have been sent, as the indexes and the counts of all stores have it."""
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
        self._variants = {**(_read_package(shared) if shared else {}), **_read_package(package)}
        self._chosen: tuple[Mapping[str, str], dict[str, str]] = (choose_variants(self._variants, version=None), {})
        """The sources for tables of one version, and what they became. Replaced as one: other threads read it."""
        self._names = names
        self._quote = quote
        self._translate = translate

    def __getitem__(self, name: str) -> str:
        sources, texts = self._chosen
        text = texts.get(name)
        if text is None:
            if name not in sources:
                raise KeyError(f"There is no statement {name} in {self._package}.")
            text = texts[name] = self._translate(self._names.qualify(sources[name], quote=self._quote))
        return text

    def use_version(self, version: int | None) -> None:
        """Take the statements for tables of this version from now on; None: for those of this release."""
        self._chosen = (choose_variants(self._variants, version=version), {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._chosen[0])

    def __len__(self) -> int:
        return len(self._chosen[0])

    def fill(self, name: str, where: str, *, order: Order = Order.ID, payloads: bool = True) -> str:
        """Return a statement with the conditions of a selection in place of its `/* where */` mark.

        Without payloads, an empty one stands in place of the column behind the `/* payload */` mark: a viewer has no
        right to them, and a list needs none.
        """
        text = self[name].replace("/* where */", self._translate(f"and {where}") if where else "")
        if not payloads:
            text = text.replace(_PAYLOAD, _NO_PAYLOAD)
        return text if order is Order.ID else text.replace(_BY_ID, _ORDERS[order])

    def fill_count(self, name: str, where: str) -> str:
        """Return a statement that counts what another one finds. In no order: what is counted needs no sorting."""
        found = self.fill(name, where, payloads=False)
        return f"select count(*) from (\n{found.replace(_BY_ID, chr(10))}) as counted"


def sort_rows(rows: Iterable[Sequence[Any]], order: Order) -> list[Any]:
    """Sort found rows of several statements, whose values may be of any type in a table that others write."""
    by_id = sorted(rows, key=lambda row: row[0], reverse=order in (Order.NEWEST, Order.LATEST))
    if order in (Order.ID, Order.LATEST):
        return by_id
    column = _ATTEMPTS if order is Order.ATTEMPTS else _STATUS_AT
    known = [row for row in by_id if row[column] is not None and not isinstance(row[column], str | bytes)]
    rest = [row for row in by_id if row[column] is None or isinstance(row[column], str | bytes)]
    return sorted(known, key=lambda row: row[column], reverse=True) + rest


@cache
def _read_package(package: str) -> Mapping[str, str]:
    texts = [file.read_text("utf-8") for file in (files(package) / "sql").iterdir() if file.name.endswith(".sql")]
    return parse_statements(texts)


def choose_variants(statements: Mapping[str, str], *, version: int | None) -> dict[str, str]:
    """Return the statements by their bare names: of each the latest one that tables of the version have all for."""
    chosen: dict[str, tuple[int, str]] = {}
    for key, text in statements.items():
        match = _NAME.fullmatch(key)
        if match is None:
            raise ValueError(f"{key!r} is not the name of a statement.")
        name, since = match[1], int(match[2] or 0)
        if (version is None or since <= version) and since >= chosen.get(name, (0, ""))[0]:
            chosen[name] = (since, text)
    return {name: text for name, (_, text) in chosen.items()}


def parse_statements(texts: Sequence[str]) -> Mapping[str, str]:
    """Split files into statements by name, and version where a name line has one.

    `ValueError` for text before the first name, or a name used twice.
    """
    statements: dict[str, str] = {}
    for text in texts:
        before, *named = _NAME_LINE.split(text)
        if before.strip():
            raise ValueError(f"A file of statements begins with a name line, not with {before.strip()[:40]!r}.")
        for name, statement in zip(named[::2], named[1::2], strict=True):
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not the name of a statement: write lower-case letters and underscores, and "
                    "`since 10` behind it if it needs tables of that version."
                )
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
    if selection.before is not None:
        conditions.append(f"id < {binder.value(selection.before)}")
    if selection.fingerprint is not None:
        no_print = selection.fingerprint == ""
        conditions.append(
            "coalesce(fingerprint, '') = ''" if no_print else binder.equals("fingerprint", selection.fingerprint)
        )
    if selection.tried:
        conditions.append("last_error is not null")
    if selection.phase is not None:
        conditions.append(_build_phase(selection.phase, selection.phase_at, binder))
    if selection.error is not None:
        conditions.append(binder.contains("last_error", selection.error))
    return " and ".join(conditions)


def _build_phase(phase: Phase, at: datetime | None, binder: Binder) -> str:
    if phase in (Phase.RETRY, Phase.PARKED, Phase.HELD):
        return f"waits = '{phase.value}'"
    if at is None:
        raise ValueError("Whether a message is due depends on a time: give `phase_at` too.")
    if phase is Phase.LATER:
        return f"waits in ('deferred', 'retry', 'parked') and {_SINCE} > {binder.value(at)}"
    return f"(waits is null or (waits in ('deferred', 'retry', 'parked') and {_SINCE} <= {binder.value(at)}))"
