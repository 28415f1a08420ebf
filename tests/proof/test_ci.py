"""What `make test-proof` runs of the proofs: seeds that are known and new ones, and a sample of the crash matrix."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from proof.crash.matrix import list_runs
from proof.crash.points import KillPoint
from proof.crash.scenarios import SCENARIOS
from proof.simulation import __main__ as simulation

_ROOT = Path(__file__).parents[2]


def test_new_seeds_are_others_each_time_and_none_of_the_known() -> None:
    first, second = simulation.draw_seeds(200), simulation.draw_seeds(200)
    assert len(first) == 200
    assert first != second
    assert min(*first, *second) >= 1_000_000


def test_new_seeds_are_run_beside_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    simulation.main(["--seeds", "2", "--new", "3", "--no-variants", "--workers", "1"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["seeds"] == 5


def test_a_sample_has_each_point_once_and_another_seed_draws_others() -> None:
    stores = ["postgres", "mariadb"]
    runs = list_runs(list(KillPoint), stores, draw=Random(7))
    assert [run.point for run in runs] == list(KillPoint)
    assert {run.store for run in runs} == set(stores)
    assert all(run.nth in SCENARIOS[run.point].occurrences for run in runs)
    assert list_runs(list(KillPoint), stores, draw=Random(8)) != runs
    assert len(list_runs(list(KillPoint), stores)) > len(runs)


def test_continuous_integration_runs_tests_and_proofs_by_commands_that_the_readme_names() -> None:
    script, readme = ((_ROOT / name).read_text() for name in (".ci/run", "README.md"))
    commands = [line for line in script.splitlines() if line.startswith("make ")]
    assert commands == ["make check", "make test", "make test-proof"]
    assert all(f"\n{command} " in readme for command in commands)
