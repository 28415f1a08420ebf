"""Ids become visible out of order, and the relay delivers in order nevertheless."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.relay_processes.places import Load
from tests.support.relay_processes.scene import Scene


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_slow_transactions_of_serialised_writers_come_in_order(scene: Scene) -> None:
    scene.fleet.part = replace(scene.fleet.part, latency=0)
    scene.start(1)
    with scene.writing(Load(keys=40, writers=24, rest=0, hold=0.5, rollbacks=0.02)):
        scene.wait_written(1_000)
    scene.wait_drained()
    scene.judge(least=1_000)
