"""The chain notices what it is there for: each mistake is made by the real consumer, from outside.

That the same deaths are harmless without a mistake is `test_chain`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from proof.chain.broken import BROKEN
from proof.chain.lines import LINES
from proof.chain.run import PlannedKill, Scenario, run
from proof.processes import ForkServer

_DEATHS: Final = 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BROKEN)
def test_a_mistake_is_noticed(name: str, tmp_path: Path, fork_server: ForkServer) -> None:
    mistake = BROKEN[name]
    folder = tmp_path / "line"
    folder.mkdir()
    scenario = Scenario(
        only={"consumer B": [PlannedKill(mistake.point.title, nth) for nth in range(1, _DEATHS + 1)]},
        broken=name, seconds=mistake.seconds,
    )  # fmt: skip
    with LINES["http"](folder) as line:
        verdict = run("http", line, scenario, fork_server=fork_server, folder=folder).verdict
    assert not verdict.holds
    counted = {count: getattr(verdict, count) for count in ("lost", "ghosts", "twice", "out_of_order")}
    assert {count for count, number in counted.items() if number} == {mistake.shows}
    assert counted[mistake.shows] >= _DEATHS, verdict


@pytest.mark.timeout(300)
def test_a_point_that_nobody_comes_to_is_a_fault(tmp_path: Path, fork_server: ForkServer) -> None:
    """C is alone: nothing comes to it."""
    folder = tmp_path / "line"
    folder.mkdir()
    scenario = Scenario(only={"consumer C": [PlannedKill("committed")]}, seconds=1)
    with LINES["http"](folder) as line:
        alone = replace(line, roles={"consumer C": line.roles["consumer C"]})
        result = run("http", alone, scenario, fork_server=fork_server, folder=folder)
    assert "consumer C never died at committed" in result.verdict.faults
    assert (result.points, result.hit) == (1, 0)
    assert result.verdict.lost > 0
