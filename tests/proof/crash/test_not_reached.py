"""A point where nobody dies is a failure of the run, and so is one where somebody ends otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from proof.crash.environment import Environment
from proof.crash.matrix import SharedProcesses, run_scenario
from proof.crash.points import KillPoint
from proof.crash.scenarios import SCENARIOS
from proof.databases import SqliteDatabase


@pytest.fixture
def idle(sqlite_database: SqliteDatabase, tmp_path: Path, shared: SharedProcesses) -> Iterator[Environment]:
    """A relay that would die with its first claim, and has nothing to claim."""
    scenario = replace(SCENARIOS[KillPoint.CLAIMED], load=(), load_after=())
    with shared.make_environment(
        KillPoint.CLAIMED, scenario, backend="sqlite", database=sqlite_database, name=tmp_path.name
    ) as environment:
        yield environment


def test_a_point_that_nobody_comes_to_is_not_hit(idle: Environment) -> None:
    result = run_scenario(idle, nth=1, timeout=1)
    assert (result.hit, result.holds) == (False, False)
    assert result.not_reached == "not within 1 s: it comes to claimed"


def test_a_process_that_ends_by_itself_has_not_come_to_its_point(idle: Environment) -> None:
    idle.database.rows("drop table pillarbox_schema")
    result = run_scenario(idle, nth=1)
    assert not result.hit
    assert result.not_reached == "it ended with code 1 before it came to claimed"
