"""The ordering core under everything at once. A seed that fails fails again: `World(seed).run()`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.lanes.lane_driver import World

SEEDS = range(200)
RARE = (
    "late",
    "alone",
    "in a group",
    "given up",
    "inherited",
    "handed over",
    "fenced",
    "held",
    "struck",
    "meddled",
    "parked",
    "deferred",
    "crowded",
    "left",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_closes_and_none_overtakes(seed: int) -> None:
    World(seed).run()


def test_the_seeds_meet_every_kind_of_trouble() -> None:
    """A driver that never got there would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in SEEDS[:40]:
        world = World(seed)
        world.run()
        seen += world.seen
    assert [what for what in RARE if not seen[what]] == []
