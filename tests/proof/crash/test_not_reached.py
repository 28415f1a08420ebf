"""A point where nobody dies is a failure of the run, and so is one where somebody ends otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from proof.crash.matrix import Setting, play
from proof.crash.points import Point
from proof.crash.scene import Scene
from proof.crash.stories import STORIES
from proof.databases import SqlitePlace


@pytest.fixture
def idle(sqlite_place: SqlitePlace, tmp_path: Path, shared: Setting) -> Iterator[Scene]:
    """A relay that would die with its first claim, and has nothing to claim."""
    story = replace(STORIES[Point.CLAIMED], load=(), later=())
    with shared.scene(Point.CLAIMED, story, backend="sqlite", place=sqlite_place, name=tmp_path.name) as scene:
        yield scene


def test_a_point_that_nobody_comes_to_is_not_hit(idle: Scene) -> None:
    result = play(idle, nth=1, patience=1)
    assert (result.hit, result.holds) == (False, False)
    assert result.trouble == "not within 1 s: it comes to claimed"


def test_a_process_that_ends_by_itself_has_not_come_to_its_point(idle: Scene) -> None:
    idle.place.rows("drop table pillarbox_schema")
    result = play(idle, nth=1)
    assert not result.hit
    assert result.trouble == "it ended with code 1 before it came to claimed"
