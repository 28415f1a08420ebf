"""Relays that die all the time, anywhere in their work."""

from __future__ import annotations

import random
import time

import pytest

from tests.support.relay_processes.places import Load
from tests.support.relay_processes.scene import Scene


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_relays_killed_at_random_lose_nothing_and_keep_the_order(scene: Scene) -> None:
    dice = random.Random(20)
    relays = scene.start(2)
    with scene.writing(Load(keys=30)):
        end = time.monotonic() + 8
        while time.monotonic() < end:
            time.sleep(dice.uniform(0.3, 0.8))
            place = dice.randrange(2)
            relays[place].kill()
            relays[place] = scene.fleet.start()
    scene.wait_drained()
    scene.judge()
