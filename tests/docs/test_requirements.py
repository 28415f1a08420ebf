"""The page of requirements: every row is there once, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "requirements.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [A-G]\d* ", line)
]
EXPECTED = [
    *(f"A{number}" for number in range(1, 7)),
    *(f"B{number}" for number in range(1, 8)),
    *(f"C{number}" for number in range(1, 12)),
    *(f"D{number}" for number in range(1, 4)),
    *(f"E{number}" for number in range(1, 7)),
    "F",
    *(f"G{number}" for number in range(1, 7)),
]


def test_every_row_is_there_once() -> None:
    assert [row[0] for row in ROWS] == EXPECTED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_true_with_a_page_and_a_test_or_says_what_is_open(row: list[str]) -> None:
    _, what, where, tests, state = row
    named = re.findall(r"`([^`]+)`", tests)

    assert what
    assert state == "true" or re.fullmatch(r"open( in part)?: .+", state)
    if not state.startswith("open:"):
        assert where
        assert named
    for one in named:
        file, _, name = one.partition("::")
        assert re.search(rf"def {name}\(", (ROOT / file).read_text("utf-8")), one
