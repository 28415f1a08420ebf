"""The runs of the demo that the pages show have the lines that the demo prints, and numbers that can be true."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from pillarbox.cli.demo import demo
from pillarbox.demo.report import format_progress, list_rows
from pillarbox.demo.result import Result
from pillarbox.demo.scenario import Progress

ROOT = Path(__file__).parents[2]
DEMO = (ROOT / "docs" / "demo.md").read_text("utf-8")
ROW = re.compile(r"^(\S.{20}) +(\d+)  (\S.*)$")


def read_table(page: str) -> Result:
    """Return the counts of a page, after a comparison of names and meanings with the real rows."""
    text = (ROOT / page).read_text("utf-8")
    (block,) = re.findall(r"^```(?:text|console)\n(committed .*?)^```", text, re.MULTILINE | re.DOTALL)
    rows = [(found[1].strip(), int(found[2]), found[3]) for line in block.splitlines() if (found := ROW.match(line))]
    fields = [field.name for field in msgspec.structs.fields(Result)]
    expected = list_rows(Result(**dict.fromkeys(fields, 0)))
    assert [(name, meaning) for name, _, meaning in rows] == [(name, meaning) for name, _, meaning in expected]
    return Result(**{field: count for field, (_, count, _) in zip(fields, rows, strict=True)})


@pytest.mark.parametrize("page", ["README.md", "docs/demo.md"])
def test_the_result_on_a_page_is_one_that_the_demo_promises(page: str) -> None:
    result = read_table(page)

    assert result.holds
    assert result.delivered + result.failed == result.committed
    assert result.kills >= result.kills_while_delivering >= 10
    assert result.absorbed == result.duplicates == result.received - result.effects > 0


def test_lines_of_progress_on_the_page_have_the_real_words_and_a_growing_count() -> None:
    lines = re.findall(r"^ *[\d.]+ s  committed.*$", DEMO, re.MULTILINE)
    numbers = {field.name: 0 for field in msgspec.structs.fields(Progress)}
    sample = Progress(**numbers | {"seconds": 0.0, "consumer_is_up": True, "shop_is_done": False, "relays": []})  # type: ignore[arg-type]
    delivered = [int(re.findall(r"delivered (\d+)", line)[0]) for line in lines]

    assert {mask(line) for line in lines} == {mask(format_progress(sample))}
    assert delivered == sorted(delivered)
    assert delivered[-1] == read_table("docs/demo.md").delivered


def test_every_field_of_the_result_is_on_the_page() -> None:
    assert [field.name for field in msgspec.structs.fields(Result) if f"`{field.name}`" not in DEMO] == []


def test_every_option_of_the_demo_is_on_its_page() -> None:
    rows = re.findall(r"^\| `(--[a-z]+)`", DEMO, re.MULTILINE)

    assert set(rows) == {option for one in demo.params for option in one.opts}


def mask(line: str) -> str:
    return re.sub(r"[\d.]+", "N", line).replace("DOWN", "up").strip()
