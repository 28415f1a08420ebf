"""The runner tells caught, survived and invalid breaks apart, and changes nothing but copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.mutants.breaks import Break
from proof.mutants.report import count_results, format_table, is_good
from proof.mutants.results import KnownResults
from proof.mutants.runner import Result, Verdict, judge, run_breaks

CODE = """\
LIMIT = 10


def price(count):
    return 2 * min(count, LIMIT)


def unused():
    return LIMIT
"""
TESTS = """\
import pytest
from tinyshop import price

def test_price():
    assert price(3) == 6

def test_limit():
    assert price(10) == 20

def test_broken():
    assert price(1) == 3

@pytest.mark.skip
def test_skipped(): ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one module and its tests."""
    folder = tmp_path / "project"
    for name, text in (("src/tinyshop.py", CODE), ("tests/test_tinyshop.py", TESTS)):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder


def mutant(name: str, old: str, new: str, *, match: str = "price or limit", equivalent: str = "") -> Break:
    return Break(
        name=name, file="src/tinyshop.py", old=old, new=new, tests=["tests/test_tinyshop.py"], match=match,
        equivalent=equivalent, area="tiny",
    )  # fmt: skip


def test_caught_survived_and_invalid_are_told_apart(project: Path) -> None:
    expected = {
        "a wrong price": ("2 * min", "3 * min", Verdict.CAUGHT),
        "a limit that no test reaches": ("LIMIT = 10", "LIMIT = 11", Verdict.SURVIVED),
        "no Python": ("2 * min", "2 * (min", Verdict.INVALID),
        "not there": ("5 * min", "6 * min", Verdict.INVALID),
        "not once": ("LIMIT", "TOP", Verdict.INVALID),
    }
    breaks = [mutant(name, old, new) for name, (old, new, _) in expected.items()]
    breaks.append(mutant("tests that fail without it", "2 * min", "3 * min", match="broken"))
    breaks.append(mutant("tests that are skipped", "2 * min", "3 * min", match="skipped"))
    breaks.append(mutant("nobody calls it", "    return LIMIT\n", "    return -LIMIT\n", equivalent="nobody does"))
    told: list[Result] = []
    results = run_breaks(breaks, project, jobs=2, on_result=told.append)
    verdicts = [Verdict.INVALID, Verdict.INVALID, Verdict.EQUIVALENT]
    assert [result.verdict for result in results] == [*(verdict for *_, verdict in expected.values()), *verdicts]
    assert [result.mutant for result in results] == breaks
    assert sorted(result.mutant.name for result in told) == sorted(one.name for one in breaks)
    assert results[0].detail.startswith("tests/test_tinyshop.py::test_price")
    assert "do not pass without it" in results[5].detail
    assert (project / "src" / "tinyshop.py").read_text() == CODE
    assert not (project / ".venv").exists()


def test_a_hang_is_no_catch() -> None:
    """Unless a test notices it itself, which is told."""
    one = mutant("a loop", "2 * min", "2 * min")
    assert judge(one, None, "", seconds=1.0).verdict is Verdict.HUNG
    output = "E   Failed: Timeout (>60.0s)\nFAILED tests/test_tinyshop.py::test_price - Failed: Timeout\n1 failed"
    caught = judge(one, 1, output, seconds=61.0)
    assert (caught.verdict, caught.timed_out) == (Verdict.CAUGHT, True)


def test_a_log_line_of_an_error_is_not_the_test_that_noticed() -> None:
    output = (
        "ERROR    asyncio:base_events.py:1771 unhandled exception\n"
        "FAILED tests/test_tinyshop.py::test_price[a b] - assert 1 == 2\n1 failed"
    )
    caught = judge(mutant("a price", "2 * min", "3 * min"), 1, output, seconds=1.0)
    assert caught.detail == "tests/test_tinyshop.py::test_price[a b] - assert 1 == 2"


def result(verdict: Verdict, *, number: int = 0) -> Result:
    return Result(mutant(f"break {number}", "a", "b"), verdict, "because")


def test_nine_of_ten_must_be_caught_and_none_be_invalid() -> None:
    caught = [result(Verdict.CAUGHT)] * 9
    assert is_good([*caught, result(Verdict.SURVIVED), result(Verdict.EQUIVALENT)])
    assert not is_good([*caught, result(Verdict.SURVIVED), result(Verdict.HUNG)])
    assert not is_good([*caught, result(Verdict.INVALID)])


def test_the_page_has_the_score_by_area_and_every_survivor() -> None:
    results = [result(Verdict.CAUGHT), result(Verdict.SURVIVED, number=1), result(Verdict.EQUIVALENT, number=2)]
    assert count_results(results) == {
        "mutants": 2, "caught": 1, "survived": 1, "hung": 0, "invalid": 0, "equivalent": 1,
    }  # fmt: skip
    page = format_table(results)
    assert page.startswith("2 breaks, of which 1 are caught.")
    assert "| tiny | 2 | 1 | 1 survived, 1 equivalent |" in page
    assert "- **break 1** (`src/tinyshop.py`): because." in page.partition("## Survivors")[2]
    assert "- **break 2** (`src/tinyshop.py`): because." in page.partition("## Equivalent breaks")[2]


def test_what_is_known_is_not_tried_again_until_its_file_or_its_tests_change(project: Path, tmp_path: Path) -> None:
    kept = tmp_path / "results.jsonl"
    caught = result(Verdict.CAUGHT)
    hung = result(Verdict.HUNG, number=1)
    for one in (caught, hung):
        KnownResults(kept, project).add(one)
    assert KnownResults(kept, project).find(caught.mutant) == caught
    assert KnownResults(kept, project).find(hung.mutant) is None, "that may be the machine's fault"
    for file in ("src/tinyshop.py", "tests/test_tinyshop.py"):
        text = (project / file).read_text()
        (project / file).write_text(f"{text}\n")
        assert KnownResults(kept, project).find(caught.mutant) is None
        (project / file).write_text(text)
    assert KnownResults(kept, project).find(caught.mutant) == caught
