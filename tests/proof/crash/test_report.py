"""What a run prints, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from proof.crash import __main__ as program
from proof.crash.matrix import Result
from proof.crash.points import REQUIRED, KillPoint
from proof.crash.scenarios import SCENARIOS
from proof.crash.steps import STEPS
from proof.databases import ServerMissing
from proof.judge import Verdict

_GOOD: Final = Result(
    point=KillPoint.SOME_SENT, store="sqlite", nth=1, recovery=1.04,
    verdict=Verdict(lost=0, ghosts=0, out_of_order=0, duplicates=6),
)  # fmt: skip
_LOST: Final = Result(
    point=KillPoint.CLAIMED, store="sqlite", nth=3, recovery=1.2,
    verdict=Verdict(lost=2, ghosts=0, out_of_order=1, duplicates=0, faults=["1 claims are left"]),
)  # fmt: skip
_NOT_REACHED: Final = Result(
    point=KillPoint.CLAIMED, store="sqlite", nth=1, not_reached="not within 20 s: it comes to claimed"
)


def _run(results: Sequence[Result], arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    def run_matrix(*_: object, on_result: object, draw: object) -> Sequence[Result]:
        return results

    monkeypatch.setattr(program, "run_matrix", run_matrix)
    return program.main(arguments)


@pytest.mark.parametrize(
    ("results", "code", "counted"),
    [
        ([_GOOD], 0, {"points": 1, "hit": 1, "lost": 0, "ghosts": 0, "out_of_order": 0, "duplicates": 6}),
        ([_GOOD, _LOST], 1, {"points": 2, "hit": 2, "lost": 2, "ghosts": 0, "out_of_order": 1, "faults": 1}),
        ([_GOOD, _NOT_REACHED], 1, {"points": 2, "hit": 1, "lost": 0, "ghosts": 0, "out_of_order": 0}),
    ],
    ids=["good", "lost", "not reached"],
)
def test_the_last_line_is_json_and_only_a_clean_run_ends_well(
    results: Sequence[Result],
    code: int,
    counted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(results, [], monkeypatch) == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).items() >= counted.items()


def test_the_table_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _run([_GOOD, _LOST, _NOT_REACHED], [], monkeypatch)
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "point         sqlite",
        "some-sent     6 repeated, 1.0 leases",
        "claimed, 3rd  2 LOST; 1 OUT OF ORDER; FAULT: 1 claims are left; 0 repeated, 1.2 leases",
        "claimed       NOT REACHED: not within 20 s: it comes to claimed",
    ]


def test_the_page_says_what_each_point_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "crash.md"
    page.write_text("<!-- results of make crash -->\n<!-- end of results -->\n")
    _run([_GOOD], ["--page", str(page)], monkeypatch)
    assert [line for line in page.read_text().splitlines() if line.startswith("|")] == [
        "| point | dies | what must happen | sqlite: repeated | sqlite: leases |",
        "| --- | --- | --- | ---: | ---: |",
        f"| **some-sent** | {KillPoint.SOME_SENT.dies} | {KillPoint.SOME_SENT.then} | 6 | 1.0 |",
    ]


@pytest.mark.parametrize(("option", "name"), [("--points", "nowhere"), ("--stores", "oracle")])
def test_an_unknown_name_is_answered_with_the_known_ones(
    option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main([option, name])
    assert ended.value.code == 2
    assert f"there is no '{name}'; there are " in capsys.readouterr().err


def test_a_missing_server_is_named_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_matrix(*_: object, on_result: object, draw: object) -> Sequence[Result]:
        raise ServerMissing("No PostgreSQL for this test (none answers): install PostgreSQL.")

    monkeypatch.setattr(program, "run_matrix", run_matrix)
    assert program.main([]) == 2
    assert capsys.readouterr().err.endswith("install PostgreSQL. Without it: --stores sqlite.\n")


def test_every_point_has_a_step_and_a_scenario() -> None:
    assert STEPS.keys() == SCENARIOS.keys() == set(KillPoint)


def test_the_page_has_every_point_with_its_sentence() -> None:
    page = (Path(__file__).parents[3] / "docs" / "crash.md").read_text()
    for point in KillPoint:
        name = f"**{point.title}**" if point in REQUIRED.values() else point.title
        assert f"| {name} | {point.dies} | {point.then} |" in page
