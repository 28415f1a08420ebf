"""Every kill point is passed on every store: a name for something that no longer happens proves nothing."""

from __future__ import annotations

from pathlib import Path

from proof.crash.matrix import SharedProcesses
from proof.crash.points import KillPoint
from proof.crash.survey import SURVEYED, survey
from proof.databases import CreateDatabase


def test_every_kill_point_is_reached(
    store: str, create_database: CreateDatabase, shared: SharedProcesses, tmp_path: Path
) -> None:
    # The point only chooses the URL: one with which every call is a transaction.
    with create_database(tmp_path) as database, shared.make_environment(
        KillPoint.CLAIM_UNCOMMITTED, SURVEYED, backend=store, database=database, name=f"survey-{tmp_path.name}"
    ) as environment:  # fmt: skip
        reached = survey(environment)
        print(environment.read_logs())  # noqa: T201 - shown when the test fails
    missing = ", ".join(point.title for point in KillPoint if point not in reached)
    assert not missing, missing
