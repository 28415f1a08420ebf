"""The short form of the matrix: the points everybody asks about, and those where most can go wrong."""

from __future__ import annotations

from typing import Final

import pytest

from proof.crash.matrix import Run, Setting
from proof.crash.points import REQUIRED, Point
from proof.databases import MakePlace

_ALSO: Final = (Point.RETRY_RECORDED, Point.INHERIT_HALFWAY, Point.WRITE_UNCOMMITTED)


@pytest.mark.parametrize("point", [*REQUIRED.values(), *_ALSO], ids=lambda point: point.title)
def test_after_a_death_nothing_is_lost_invented_or_out_of_order(
    point: Point, store: str, make_place: MakePlace, shared: Setting
) -> None:
    result = shared.played(Run(point, store), make_place)
    print(result.log)  # noqa: T201 - shown when the test fails
    assert result.trouble is None
    assert result.holds, result.verdict
