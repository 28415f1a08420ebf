"""What the tables in a MariaDB database are made of, item by item, in the server's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pymysql

from pillarbox.names import TABLES, Names
from pillarbox.stores.catalog import Catalog
from pillarbox.stores.mariadb.driver import number_of

__all__ = ["NO_TABLE", "as_temporary", "read_catalog", "with_view"]

NO_TABLE: Final = 1146

_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")
_NAMED: Final = re.compile(r"`(?P<name>[^`]+)` (?P<definition>.*)")
_INDEX: Final = re.compile(r"(?:UNIQUE )?KEY `(?P<name>[^`]+)` (?P<definition>.*)")
_CONSTRAINT: Final = re.compile(r"(?:CONSTRAINT `[^`]+` )?(?P<definition>(?:PRIMARY KEY|CHECK|FOREIGN KEY) .*)")
_CREATED: Final = re.compile(r"create table if not exists", re.IGNORECASE)
_OF_TABLES: Final = ("create table", "alter table", "create index", "drop index", "drop table")

Fetch = Callable[[str], list[Any]]


def read_catalog(fetch: Fetch, names: Names) -> Catalog:
    """Tables with their columns, keys and checks; indexes, and the view's columns."""
    items: dict[str, str] = {}
    for name, created in _created(fetch, names):
        is_view = not created.startswith(("CREATE TABLE", "CREATE TEMPORARY TABLE"))
        items |= {f"view {name}": _columns(fetch, names, "messages")} if is_view else _table(name, created)
    return items


def with_view(tables: Catalog, names: Names) -> Catalog:
    """A catalog with the view of messages that belongs to its tables: what is open, without the column of an index."""
    outbox = f"column {names.bare('outbox')}."
    shown = [item.removeprefix(outbox) for item in tables if item.startswith(outbox)]
    columns = [column for column in shown if column != "blocked_key"]
    return {**tables, f"view {names.bare('messages')}": ", ".join([*columns, "state"])}


def as_temporary(statement: str) -> str | None:
    """The same for a temporary table, which hides the one of its name from this session; None if it is about no table.

    That is how a fresh installation is looked at where it takes no space and nobody else sees it.
    """
    if not statement.lower().startswith(_OF_TABLES):
        return None
    return _CREATED.sub("create temporary table", statement)


def _created(fetch: Fetch, names: Names) -> Iterator[tuple[str, str]]:
    for table in sorted(TABLES):
        try:
            _, created, *_ = fetch(f"show create table {names.table(table, quote='`')}")[0]
        except pymysql.Error as error:
            if number_of(error) != NO_TABLE:
                raise
        else:
            yield names.bare(table), created


def _columns(fetch: Fetch, names: Names, view: str) -> str:
    return ", ".join(row[0] for row in fetch(f"show columns from {names.table(view, quote='`')}"))


def _table(table: str, created: str) -> Mapping[str, str]:
    first, *lines, last = created.split("\n")
    del first
    items = {f"table {table}": _COUNTER.sub("", last).removeprefix(") ")}
    for line in lines:
        text = line.strip().removesuffix(",")
        if found := _NAMED.fullmatch(text):
            items[f"column {table}.{found['name']}"] = found["definition"]
        elif found := _INDEX.fullmatch(text):
            items[f"index {found['name']} on {table}"] = found["definition"]
        elif found := _CONSTRAINT.fullmatch(text):
            items[f"constraint on {table}: {found['definition']}"] = "valid"
    return items
