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


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_closes_and_none_overtakes_in_runs(seed: int) -> None:
    World(seed, has_runs=True).run()


def test_the_seeds_meet_runs_of_every_kind() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS[:40]:
        world = World(seed, has_runs=True)
        world.run()
        seen += world.seen
    assert [what for what in (*RARE, "in a run", "left unsent") if not seen[what]] == []


def test_the_seeds_meet_every_kind_of_trouble() -> None:
    """A driver that never got there would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in SEEDS[:80]:
        world = World(seed)
        world.run()
        seen += world.seen
    assert [what for what in RARE if not seen[what]] == []
