"""The page of servers says what the last runs of `make test-servers` found, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.packages import load_packages
from tests.support.server_matrix import PAGE, ROWS, add_repeat, build_page, load_results, read_report

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text().startswith(build_page(load_results())), "write it by make test-servers"


def test_every_row_has_pinned_packages_and_suites_that_exist() -> None:
    for row in ROWS.values():
        packages = load_packages()[row.package]
        assert {len(checksum) for checksum in (*packages.debs.values(), *packages.wheels.values())} == {64}
        assert [suite for suite in row.suites if not (ROOT / suite).exists()] == []


def test_a_result_belongs_to_a_row_and_names_what_failed() -> None:
    results = load_results()

    assert set(results) <= set(ROWS)
    assert all(result.failed == len(result.failures) for result in results.values())
    assert all(result.passed > 0 for result in results.values())


def test_no_published_row_has_failed() -> None:
    """A row that fails is a defect to mend, in the product or in the test, and not a result to publish."""
    assert {name: result.failures for name, result in load_results().items() if result.failed} == {}


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><skipped message="Not here."/></testcase>
<testcase classname="tests.a" name="test_three"><failure/></testcase>
<testcase classname="tests.a" name="test_three"><error/></testcase>
<testcase classname="tests.a" name="test_four"/>
<testcase classname="tests.a" name="test_four"><error/></testcase>
</testsuite></testsuites>"""


def test_failures_and_skips_are_counted_and_shown() -> None:
    result = read_report(REPORT, version="9", minutes=1.5)
    page = build_page({"redis": result})

    assert (result.passed, result.failed, result.skipped) == (1, 2, 1)
    assert "| Redis | 9 | transport, receiver, checks, logins, consumers that restart | 1 | 2 | 1 | 1.5 |" in page
    assert "- Redis 9: 1 × Not here" in page
    assert "- Redis 9: `tests/a::test_four`" in page
    assert "| Valkey |" in page
    assert "| not yet |" in page


def test_what_passes_when_it_runs_once_more_alone_is_shown_and_has_not_failed() -> None:
    again = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_three"/>
<testcase classname="tests.a" name="test_four"><failure/></testcase>
</testsuite></testsuites>"""
    result = add_repeat(read_report(REPORT, version="9", minutes=1.5), again)

    assert (result.passed, result.failed, result.skipped) == (2, 1, 1)
    assert (result.failures, result.repeated) == (["tests/a::test_four"], ["tests/a::test_three"])
    assert "once more, alone:\n\n- Redis 9: `tests/a::test_three`" in build_page({"redis": result})


def test_the_lock_file_names_packages_and_no_host() -> None:
    text = (ROOT / "tests" / "support" / "packages.lock").read_text()

    assert "://" not in text
    assert all(re.fullmatch(r"[0-9a-f]{64}  \S+=\S+", line) for line in text.splitlines() if line and line[0] != "[")
