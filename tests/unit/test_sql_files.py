"""Every statement is used, every statement that is used exists, and no name stands for two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from pillarbox.message import Names
from pillarbox.stores.mariadb.connection import build_statements as build_mariadb_statements
from pillarbox.stores.sql import Statements, parse_statements
from pillarbox.stores.sqlite.connection import build_statements as build_sqlite_statements

STORES = Path(str(files("pillarbox.stores")))
FOLDERS = ("postgres", "sqlite", "mariadb", "sync_sql")
STATEMENTS = {
    "postgres": Statements("pillarbox.stores.postgres", Names()),
    "sqlite": build_sqlite_statements(Names()),
    "mariadb": build_mariadb_statements(Names()),
}
MODULES = {"postgres": ("postgres",), "sqlite": ("sqlite", "sync_sql"), "mariadb": ("mariadb", "sync_sql")}
RUNS = {"query", "execute", "fill", "union"}
"""Methods whose first argument is the name of a statement."""


def nodes(store: str) -> Iterator[ast.AST]:
    for folder in MODULES[store]:
        for file in sorted((STORES / folder).glob("*.py")):
            yield from ast.walk(ast.parse(file.read_text()))


def texts(store: str) -> set[str]:
    """Every string in the modules of a store."""
    return {node.value for node in nodes(store) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def requested(store: str) -> Iterator[str]:
    """The names that a store looks up or runs, as far as they are written out."""
    for node in nodes(store):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="_sql" | "_statements"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Call(
                func=ast.Attribute(
                    attr=method,
                    value=ast.Name(id="tx" | "database")
                    | ast.Attribute(attr="_tx" | "_database" | "_statements" | "_sql"),
                ),
                args=[ast.Constant(value=str(name)), *_],
            ) if method in RUNS:
                yield name


@pytest.mark.parametrize("store", STATEMENTS)
def test_every_statement_is_used(store: str) -> None:
    assert sorted(STATEMENTS[store].keys() - texts(store)) == []


@pytest.mark.parametrize("store", STATEMENTS)
def test_every_statement_that_is_run_exists(store: str) -> None:
    names = set(requested(store))
    assert len(names) > 10
    assert sorted(names - STATEMENTS[store].keys()) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_statement_says_why_it_exists(folder: str) -> None:
    statements = parse_statements([file.read_text() for file in (STORES / folder / "sql").glob("*.sql")])
    assert [name for name, text in statements.items() if not text.startswith("-- ")] == []
    assert [name for name, text in statements.items() if "-- name:" in text] == []


@pytest.mark.parametrize("store", ["sqlite", "mariadb"])
def test_a_shared_statement_is_not_written_again(store: str) -> None:
    shared = parse_statements([file.read_text() for file in (STORES / "sync_sql" / "sql").glob("*.sql")])
    own = parse_statements([file.read_text() for file in (STORES / store / "sql").glob("*.sql")])
    assert sorted(shared.keys() & own.keys()) == []


def test_a_name_that_stands_for_two_is_an_error() -> None:
    with pytest.raises(ValueError, match="Two statements are called claim"):
        parse_statements(["-- name: claim\nselect 1\n", "-- name: claim\nselect 2\n"])


def test_text_without_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="begins with a name line"):
        parse_statements(["select 1\n-- name: claim\nselect 2\n"])


def test_a_name_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="not the name of a statement"):
        parse_statements(["-- name: Claim it\nselect 1\n"])


def test_an_unknown_statement_is_an_error() -> None:
    with pytest.raises(KeyError, match="no statement nonsense"):
        STATEMENTS["postgres"]["nonsense"]


def test_a_statement_carries_its_own_comment_alone() -> None:
    assert parse_statements(["-- name: one\n-- First.\nselect 1\n\n-- name: two\n-- Second.\nselect 2\n"]) == {
        "one": "-- First.\nselect 1\n",
        "two": "-- Second.\nselect 2\n",
    }


def test_drivers_get_lists_and_parameters_as_they_take_them() -> None:
    assert "in (select value from json_each(:numbers))" in STATEMENTS["sqlite"]["claims_finish"]
    assert "in %(numbers)s" in STATEMENTS["mariadb"]["claims_finish"]
