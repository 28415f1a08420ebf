"""The matrix notices what it is there for: each fault is planted in a real store, between a death and the recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proof.crash.matrix import Setting, play
from proof.crash.points import Point
from proof.crash.scene import Scene
from proof.crash.stories import STORIES
from proof.databases import SqlitePlace
from proof.judge import Verdict
from proof.messages import outbox, parcel

Plant = Callable[[Callable[[Scene], None]], Verdict]


@pytest.fixture
def plant(sqlite_place: SqlitePlace, tmp_path: Path, shared: Setting) -> Iterator[Plant]:
    point = Point.CLAIMED
    with shared.scene(point, STORIES[point], backend="sqlite", place=sqlite_place, name=tmp_path.name) as scene:

        def planted(fault: Callable[[Scene], None]) -> Verdict:
            verdict = play(scene, nth=1, meanwhile=fault).verdict
            assert verdict is not None
            assert not verdict.holds
            return verdict

        yield planted


def test_a_message_that_disappears_is_lost(plant: Plant) -> None:
    verdict = plant(lambda scene: scene.change("delete from pillarbox_outbox where subject = 'k3/2'"))
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order) == (1, 0, 0)
    assert verdict.faults == ["k3/2 is nowhere, and should be delivered"]


def test_a_message_without_its_business_row_is_a_ghost(plant: Plant) -> None:
    def publish(scene: Scene) -> None:
        with scene.place.transaction() as handle:
            outbox(scene.place.names).publish(handle, parcel("ghost", 1))

    verdict = plant(publish)
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order, verdict.faults) == (0, 1, 0, [])


def test_a_message_that_passes_an_earlier_one_of_its_key_is_out_of_order(plant: Plant) -> None:
    verdict = plant(lambda scene: scene.change("update pillarbox_outbox set id = 10000 where subject = 'k3/2'"))
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order, verdict.faults) == (0, 0, 1, [])
