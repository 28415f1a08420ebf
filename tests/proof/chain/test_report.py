"""What a run prints, its exit code, and its plan of kills."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from proof.chain import __main__ as program
from proof.chain.kill_points import CONSUMER_STEPS, RELAY_POINTS, ConsumerKillPoint
from proof.chain.run import Result, list_points, plan_kills
from proof.databases import ServerMissing
from proof.judge import Verdict

_HITS: Final = {"relay A": {"claimed": 3}, "consumer B": {"committed": 2, "accepted": 1}}
_GOOD: Final = Result(
    line="brokers", hits=_HITS, kills=9, messages=70, seconds=3.0,
    verdict=Verdict(lost=0, ghosts=0, twice=0, out_of_order=0, duplicates=5),
)  # fmt: skip
_BAD: Final = Result(
    line="http", hits={"consumer B": {"committed": 0}}, kills=1, messages=7, seconds=3.0, log="it logged this",
    verdict=Verdict(lost=2, ghosts=0, twice=1, out_of_order=1, duplicates=0, overtaken=["a/1 after 2 in C"],
                    faults=["consumer B never died at committed"]),
)  # fmt: skip


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Result]:
    by_line = {"brokers": _GOOD, "http": _BAD}
    monkeypatch.setattr(program, "_run_line", lambda name, chosen: by_line[name])
    return by_line


def run_program(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, dict[str, object]]:
    code = program.main(arguments)
    *lines, last = capsys.readouterr().out.splitlines()
    return code, "\n".join(lines), json.loads(last)


def test_a_good_run_ends_with_0_and_its_counts(results: object, capsys: pytest.CaptureFixture[str]) -> None:
    code, table, counts = run_program(["--lines", "brokers"], capsys)
    assert code == 0
    assert counts | {"seconds": 0} == {
        "kills": 9, "points": 3, "hit": 3, "lost": 0, "ghosts": 0, "twice": 0, "out_of_order": 0, "duplicates": 5,
        "faults": 0, "messages": 70, "lines": ["brokers"], "seconds": 0,
    }  # fmt: skip
    assert "consumer B  committed             2" in table


def test_a_bad_run_ends_with_1_and_says_why(results: object, capsys: pytest.CaptureFixture[str]) -> None:
    code, table, counts = run_program([], capsys)
    assert code == 1
    assert (counts["points"], counts["hit"], counts["lost"], counts["twice"], counts["out_of_order"]) == (4, 3, 2, 1, 1)
    assert "http: FAULT: consumer B never died at committed" in table
    assert "http: OUT OF ORDER: a/1 after 2 in C" in table


def test_a_server_that_is_missing_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_missing(*_: object) -> None:
        raise ServerMissing("No NATS for this.")

    monkeypatch.setattr(program, "_run_line", raise_missing)
    assert program.main([]) == 2
    assert capsys.readouterr().err.endswith("No NATS for this. Without it: --lines http.\n")


@pytest.mark.parametrize("arguments", [["--lines", "fax"], ["--kills", "5"], ["--kills", "many"], ["--broken", "x"]])
def test_a_wrong_option_is_refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2


def test_the_page_has_every_point(results: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "exactly-once.md"
    written.write_text("<!-- results of make chain -->\n<!-- end of results -->\n")
    run_program(["--page", str(written), "--lines", "brokers"], capsys)
    table = written.read_text()
    page = (Path(__file__).parents[3] / "docs" / "exactly-once.md").read_text()
    for row in [line for line in table.splitlines() if line.startswith("|")][2:]:
        assert row.rpartition(" | ")[0] in page
    assert all(f"| {point.title} |" in table for point in (*ConsumerKillPoint, *RELAY_POINTS))


# --- the plan ---


@pytest.mark.parametrize("role", ["relay A", "consumer C"])
def test_every_point_is_planned_and_random_kills_too(role: str) -> None:
    plan = list(plan_kills(role, 30, rng=random.Random(7)))
    assert len(plan) == 30
    assert [kill.point for kill in plan[: len(list_points(role))]] == list(list_points(role))
    assert sum(kill.point is None for kill in plan) >= 8


def test_a_seed_gives_the_same_plan() -> None:
    plans = [list(plan_kills("consumer B", 30, rng=random.Random(seed))) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_every_point_of_a_consumer_has_its_step() -> None:
    assert set(CONSUMER_STEPS) == set(ConsumerKillPoint)
