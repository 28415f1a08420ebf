"""The matrix notices what it is there for: each fault is planted in a real store, between a death and the recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proof.crash.environment import Environment
from proof.crash.matrix import SharedProcesses, run_scenario
from proof.crash.points import KillPoint
from proof.crash.scenarios import SCENARIOS
from proof.databases import SqliteDatabase
from proof.judge import Verdict
from proof.messages import build_event, build_outbox

Plant = Callable[[Callable[[Environment], None]], Verdict]


@pytest.fixture
def plant(sqlite_database: SqliteDatabase, tmp_path: Path, shared: SharedProcesses) -> Iterator[Plant]:
    point = KillPoint.CLAIMED
    with shared.make_environment(
        point, SCENARIOS[point], backend="sqlite", database=sqlite_database, name=tmp_path.name
    ) as environment:

        def planted(fault: Callable[[Environment], None]) -> Verdict:
            verdict = run_scenario(environment, nth=1, after_kill=fault).verdict
            assert verdict is not None
            assert not verdict.holds
            return verdict

        yield planted


def test_a_message_that_disappears_is_lost(plant: Plant) -> None:
    verdict = plant(lambda environment: environment.execute("delete from pillarbox_outbox where subject = 'k3/2'"))
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order) == (1, 0, 0)
    assert verdict.faults == ["k3/2 is nowhere, and should be delivered"]


def test_a_message_without_its_business_row_is_a_ghost(plant: Plant) -> None:
    def publish(environment: Environment) -> None:
        with environment.database.transaction() as handle:
            build_outbox(environment.database.names).publish(handle, build_event("ghost", 1))

    verdict = plant(publish)
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order, verdict.faults) == (0, 1, 0, [])


def test_a_message_that_passes_an_earlier_one_of_its_key_is_out_of_order(plant: Plant) -> None:
    verdict = plant(
        lambda environment: environment.execute("update pillarbox_outbox set id = 10000 where subject = 'k3/2'")
    )
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order, verdict.faults) == (0, 0, 1, [])
