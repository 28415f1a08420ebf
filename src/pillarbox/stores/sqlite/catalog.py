"""What the tables in an SQLite file are made of, item by item."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Final

from pillarbox.names import TABLES, Names
from pillarbox.stores.catalog import Catalog, squeezed

__all__ = ["read_catalog"]

_NAMED: Final = "select name from sqlite_master where type = ? and tbl_name = ? and sql is not null order by name"


def read_catalog(connection: sqlite3.Connection, names: Names) -> Catalog:
    """Tables with their columns, keys and checks; indexes, views and triggers. Not how the SQL was written."""
    items: dict[str, str] = {}
    for table in sorted(names.bare(name) for name in TABLES):
        for kind, sql in connection.execute("select type, sql from sqlite_master where name = ?", (table,)).fetchall():
            items |= _table(connection, table, sql) if kind == "table" else {f"{kind} {table}": squeezed(sql)}
        items |= _named(connection, table)
    return items


def _table(connection: sqlite3.Connection, table: str, sql: str) -> Mapping[str, str]:
    text = squeezed(sql)
    traits = [trait for trait in ("without rowid", "strict", "autoincrement") if re.search(rf"\b{trait}\b", text)]
    items = {f"table {table}": " ".join(["table", *traits])}
    for _, column, kind, not_null, default, key_place, _ in connection.execute(f'pragma table_xinfo("{table}")'):
        parts = [kind.lower()]
        parts += ["not null"] if not_null else []
        parts += [f"primary key {key_place}"] if key_place else []
        parts += [f"default {squeezed(default)}"] if default is not None else []
        items[f"column {table}.{column}"] = " ".join(parts)
    return items | {f"constraint on {table}: {check}": "valid" for check in _checks(text)}


def _named(connection: sqlite3.Connection, table: str) -> Mapping[str, str]:
    """Indexes and triggers of a table. Those that SQLite makes by itself for a key are part of the key."""
    items: dict[str, str] = {}
    for kind in ("index", "trigger"):
        for (name,) in connection.execute(_NAMED, (kind, table)).fetchall():
            (sql,) = connection.execute("select sql from sqlite_master where name = ?", (name,)).fetchone()
            items[f"{kind} {name} on {table}"] = squeezed(sql)
    return items


def _checks(text: str) -> Iterator[str]:
    """The check constraints in a squeezed CREATE TABLE, each to its closing bracket."""
    for start in re.finditer(r"\bcheck \(", text):
        depth = 0
        for place in range(start.end() - 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            if depth == 0:
                yield text[start.start() : place + 1]
                break
