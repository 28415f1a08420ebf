"""The short form of the matrix: the points everybody asks about, and those where most can go wrong."""

from __future__ import annotations

from typing import Final

import pytest

from proof.crash.matrix import Run, SharedProcesses
from proof.crash.points import REQUIRED, KillPoint
from proof.databases import CreateDatabase

_ALSO: Final = (KillPoint.RETRY_RECORDED, KillPoint.INHERIT_HALFWAY, KillPoint.WRITE_UNCOMMITTED)


@pytest.mark.parametrize("point", [*REQUIRED.values(), *_ALSO], ids=lambda point: point.title)
def test_after_a_death_nothing_is_lost_invented_or_out_of_order(
    point: KillPoint, store: str, create_database: CreateDatabase, shared: SharedProcesses
) -> None:
    result = shared.execute(Run(point, store), create_database)
    print(result.log)  # noqa: T201 - shown when the test fails
    assert result.not_reached is None
    assert result.holds, result.verdict
