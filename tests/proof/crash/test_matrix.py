"""The short form of the matrix: the points everybody asks about, and those where most can go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from proof.crash.matrix import Run, SharedProcesses, run_scenario
from proof.crash.points import REQUIRED, KillPoint
from proof.crash.scenarios import SCENARIOS
from proof.databases import CreateDatabase
from proof.messages import POISON, build_event

_ALSO: Final = (KillPoint.RETRY_RECORDED, KillPoint.INHERIT_HALFWAY, KillPoint.WRITE_UNCOMMITTED)


@pytest.mark.parametrize("point", [*REQUIRED.values(), *_ALSO], ids=lambda point: point.title)
def test_after_a_death_nothing_is_lost_invented_or_out_of_order(
    point: KillPoint, store: str, create_database: CreateDatabase, shared: SharedProcesses
) -> None:
    result = shared.execute(Run(point, store), create_database)
    print(result.log)  # noqa: T201 - shown when the test fails
    assert result.not_reached is None
    assert result.holds, result.verdict


def test_a_death_without_a_witness_delays_giving_up_and_does_not_prevent_it(
    store: str, create_database: CreateDatabase, shared: SharedProcesses, tmp_path: Path
) -> None:
    """The third relay begins with the second of two lone messages, the deadly one, before it heard any answer."""
    key, number = POISON.split("/")
    load = [[build_event("k8", 1), build_event(key, int(number))]]
    scenario = replace(SCENARIOS[KillPoint.POISON], load=load, deaths=(4, 6))
    with create_database(tmp_path) as database, shared.make_environment(
        KillPoint.POISON, scenario, backend=store, database=database, name=tmp_path.name
    ) as environment:  # fmt: skip
        result = run_scenario(environment, nth=1)
    print(result.log)  # noqa: T201 - shown when the test fails
    assert result.not_reached is None
    assert result.holds, result.verdict
