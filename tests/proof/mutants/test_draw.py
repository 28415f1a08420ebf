"""Breaks are drawn from every line that can be broken, always the same for a seed, with the tests that run the line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from proof.mutants.breaks import Break
from proof.mutants.covering_tests import choose_tests
from proof.mutants.draw import Reason, draw_breaks, load_reasons, name_package
from proof.mutants.report import is_good_draw
from proof.mutants.runner import Result, Verdict, judge_untested
from proof.mutants.sites import Site, cut_block, find_sites

SHOP = '''
async def pay(order, account, *, limit=3):
    """Pay an order."""
    if order.total > account.credit and not order.paid:
        raise ValueError("é too much")
    account.credit -= order.total + 1
    await book(order, account)
    log.info("paid")
    return {"tries": 2 if limit else 0}
'''
CLAIM = """-- name: claim
select id from outbox
 where lane = $1
   and id > $2
 for update skip locked;
"""


def _break_all(file: str, text: str) -> dict[str, list[str]]:
    """Return what each kind of break makes of the changed lines."""
    broken: dict[str, list[str]] = {}
    for site in find_sites(file, text):
        block = cut_block(text, site)
        assert block is not None
        assert text.count(block[0]) == 1
        broken.setdefault(site.kind, []).append(block[1].strip())
    return broken


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("a comparison is changed", "if order.total >= account.credit and not order.paid:"),
        ("and, or are exchanged", "if (order.total > account.credit) or (not order.paid):"),
        ("a not is dropped", "if order.total > account.credit and bool(order.paid):"),
        ("a condition is always True", "if True:"),
        ("a condition is always False", "if False:"),
        ("an error is not raised", "pass"),
        ("a statement is dropped", "pass"),
        ("a sign is changed", "account.credit -= order.total - (1)"),
        ("a number is off by one", "account.credit -= order.total + 2"),
        ("two arguments are swapped", "await book(account, order)"),
        ("a default is changed", "async def pay(order, account, *, limit=4):"),
    ],
)
def test_each_kind_of_break_is_found_in_python(kind: str, line: str) -> None:
    assert line in _break_all("shop.py", SHOP)[kind]


def test_a_break_of_python_is_a_program_and_lines_for_people_are_left_out() -> None:
    for site in find_sites("shop.py", SHOP):
        block = cut_block(SHOP, site)
        assert block is not None
        ast.parse(SHOP.replace(*block))
        assert "log.info" not in block[0].splitlines()[0]


def test_conditions_and_locks_are_dropped_from_sql() -> None:
    broken = _break_all("claim.sql", CLAIM)
    assert broken["a condition of WHERE is dropped"] == [""]
    assert broken["a comparison is changed"] == ["and id >= $2"]
    assert broken["a lock waits"] == ["for update;"]
    assert broken["a lock is dropped"] == [";"]


def test_a_line_that_stands_twice_is_broken_where_it_was_drawn() -> None:
    text = "def a(x):\n    x.n = 1\n    return x\ndef b(x):\n    x.n = 1\n    return None\n"
    last = [site for site in find_sites("shop.py", text) if site.line == 5 and site.kind == "a statement is dropped"]
    block = cut_block(text, last[0])
    assert block is not None
    assert text.replace(*block) == "def a(x):\n    x.n = 1\n    return x\ndef b(x):\n    pass\n    return None\n"


def test_the_same_seed_draws_the_same_and_lines_without_tests_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "pillarbox" / "relay"
    folder.mkdir(parents=True)
    (folder / "shop.py").write_text(SHOP)

    def find_tests(file: str, site: Site) -> Sequence[str]:
        return ["tests/test_shop.py::test_pay"] if site.line < 6 else []

    drawn = draw_breaks(tmp_path, number=8, seed=7, find_tests=find_tests)
    assert len(drawn.breaks) + len(drawn.uncovered) == 8
    assert drawn == draw_breaks(tmp_path, number=8, seed=7, find_tests=find_tests)
    assert drawn != draw_breaks(tmp_path, number=8, seed=8, find_tests=find_tests)
    assert {one.area for one in (*drawn.breaks, *drawn.uncovered)} == {"relay"}
    assert name_package("src/pillarbox/outbox.py") == "core"


def test_a_break_whose_reason_is_known_is_told_apart_wherever_its_line_is(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "pillarbox"
    folder.mkdir(parents=True)
    (folder / "shop.py").write_text(f"# Moved down.\n{SHOP}")
    reasons = {
        "shop.py a statement is dropped: await book(order, account) -> pass": Reason(equivalent="nobody reads it"),
        "shop.py a number is off by one: 2 -> 3": Reason(survives="it is only a weight"),
    }
    drawn = draw_breaks(tmp_path, number=100, seed=7, find_tests=lambda *_: [], reasons=reasons)
    results = {result.detail: result.verdict for result in map(judge_untested, drawn.uncovered)}
    assert results == {
        "nobody reads it": Verdict.EQUIVALENT,
        "it is only a weight": Verdict.SURVIVED,
        "no test runs this line": Verdict.SURVIVED,
    }


def test_each_known_survivor_has_one_reason() -> None:
    for name, reason in load_reasons().items():
        assert bool(reason.equivalent) != bool(reason.survives), name


def test_the_quickest_test_of_each_file_comes_first_and_the_time_is_bounded() -> None:
    durations = {"a.py::slow": 5.0, "a.py::quick": 1.0, "b.py::one": 2.0, "b.py::two": 9.0}
    assert choose_tests(durations, seconds=8.5) == ["a.py::quick", "b.py::one", "a.py::slow"]
    assert choose_tests({"a.py::slow": 99.0}, seconds=1.0) == ["a.py::slow"]
    assert choose_tests({}, seconds=1.0) == []


@pytest.mark.parametrize(
    ("relay", "cli", "good"), [((9, 1), (9, 1), True), ((10, 0), (6, 4), False), ((8, 2), (8, 2), False)]
)
def test_a_draw_is_good_only_if_every_package_is(relay: tuple[int, int], cli: tuple[int, int], *, good: bool) -> None:
    def make(area: str, verdict: Verdict) -> Result:
        return Result(Break(name="n", file="f", old="a", new="b", tests=["t"], area=area), verdict)

    results = [
        make(area, verdict)
        for area, counts in (("relay", relay), ("cli", cli))
        for verdict, count in zip((Verdict.CAUGHT, Verdict.SURVIVED), counts, strict=True)
        for _ in range(count)
    ]
    assert is_good_draw(results) is good
