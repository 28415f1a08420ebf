"""The defaults on the page are those in force."""

from __future__ import annotations

import re

import pytest

from tests.support.defaults import PAGE, ROWS, Default, build_page, list_settings, read_default


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}.{row.key}")
def test_a_documented_default_is_in_force(row: Default) -> None:
    assert read_default(row) == row.value


def test_every_default_is_documented() -> None:
    documented = [(row.section, row.key) for row in ROWS]
    assert sorted(documented) == sorted(list_settings())


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == build_page(), "write it by make defaults"


def test_other_pages_name_the_same_defaults() -> None:
    """Tables of other pages that have a column for it: `key`, default."""
    known = {(row.section.partition(".")[0], row.key): row.value for row in ROWS}
    page = (PAGE.parent / "configuration.md").read_text()
    wrong, compared = [], 0
    for heading, body in re.findall(r"^##+ `?\[?([\w.]+)\]?`?\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL):
        section, _, inner = heading.partition(".")
        prefix = "retention." if inner == "retention" else "retry." if heading == "retry" else ""
        for key, shown in re.findall(r"^\| `(\w+)` \| `([^`]*)` ", body, re.MULTILINE):
            path = ("destinations" if heading == "retry" else section, f"{prefix}{key}")
            if path in known:
                compared += 1
                value = known[path]
                text = ",".join(value) if isinstance(value, list) else str(value)
                if text.lower() != shown.lower():
                    wrong.append((path, shown, text))

    assert wrong == []
    assert compared > 20
