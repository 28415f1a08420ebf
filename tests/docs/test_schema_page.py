"""The page of the schema counts tables, views, functions and triggers as the migrations make them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli.program import pillarbox

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "schema.md").read_text("utf-8").split())
STORES = {"sqlite": "sqlite://", "postgresql": "postgresql://", "mysql": "mysql://localhost/shop"}


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, set[str]]]:
    """List what the printed SQL creates, by store and kind."""
    found: dict[str, dict[str, set[str]]] = {}
    for store, url in STORES.items():
        printed = pillarbox("schema", "sql", "--store", url).out
        objects = re.findall(
            r"^create (?:or replace |sql security \w+ )*(table|view|function|trigger)(?: if not exists)? [\"`](\w+)",
            printed, re.MULTILINE,
        )  # fmt: skip
        kinds = ("table", "view", "function", "trigger")
        found[store] = {kind: {name for one, name in objects if one == kind} for kind in kinds}
    return found


def test_the_page_counts_what_every_store_has(made: dict[str, dict[str, set[str]]]) -> None:
    tables, views = (set.intersection(*(kinds[kind] for kinds in made.values())) for kind in ("table", "view"))
    assert (len(tables), len(views)) == (11, 1)
    assert "Pillarbox has eleven tables and one view" in PAGE


def test_the_page_counts_what_a_store_has_besides(made: dict[str, dict[str, set[str]]]) -> None:
    counts = {store: tuple(map(len, kinds.values())) for store, kinds in made.items()}
    assert counts == {"sqlite": (11, 1, 0, 1), "postgresql": (12, 1, 4, 1), "mysql": (13, 5, 0, 0)}
    assert "on PostgreSQL also one table, a function and a trigger" in PAGE
    assert "three functions that add and drop them; on SQLite also a trigger" in PAGE
    assert "on MariaDB and MySQL also two tables and four views" in PAGE
