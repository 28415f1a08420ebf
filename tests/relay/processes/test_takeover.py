"""A relay that is killed, or stopped for too long, loses its lanes to the others, and nothing else is lost."""

from __future__ import annotations

from time import monotonic
from typing import Final

from msgspec.structs import replace

from tests.support.relay_processes.places import Load
from tests.support.relay_processes.scene import Scene

_TRIES: Final = 3


def test_the_survivor_of_a_kill_owns_all_lanes_soon_and_loses_nothing(scene: Scene) -> None:
    """Within the lease and two seconds, once in three tries: a busy machine may stand still for that long."""
    victim, survivor = scene.start(2)
    took: list[float] = []
    with scene.writing(Load()):
        while not _is_soon(scene, took) and len(took) < _TRIES:
            if took:
                victim = scene.fleet.start()
                scene.wait_shared([victim, survivor])
            scene.wait_delivered(victim, 50)
            scene.freeze_with_full_hands(victim)
            victim.kill()
            killed_at = monotonic()
            scene.wait_shared([survivor])
            took.append(monotonic() - killed_at)
            scene.wait_delivered(survivor, 100)
    scene.wait_drained()
    scene.judge()
    assert survivor.exit_code is None
    assert _is_soon(scene, took)


def _is_soon(scene: Scene, took: list[float]) -> bool:
    return any(seconds < scene.fleet.part.lease + 2 for seconds in took)


def test_a_relay_that_slept_past_its_lease_starts_again_under_a_new_id(scene: Scene) -> None:
    zombie, other = scene.start(2)
    with scene.writing(Load()):
        scene.wait_delivered(zombie, 50)
        old_id = scene.freeze_with_full_hands(zombie)
        scene.wait_shared([other])
        scene.wait_delivered(other, 50)
        zombie.thaw()
        scene.wait_shared([zombie, other])
        scene.wait_delivered(zombie, 50)
    scene.wait_drained()
    scene.judge()
    (new_id,) = scene.ids(zombie)
    assert new_id != old_id
    assert scene.count_settled(new_id)
    assert scene.count("pillarbox_claim") == 0
    assert zombie.exit_code is None


def test_a_relay_that_slept_past_its_lease_settles_nothing_of_what_it_had_in_hand(scene: Scene) -> None:
    scene.fleet.part = replace(scene.fleet.part, lease=3)  # long enough to pause before it ends
    zombie, other = scene.start(2)
    with scene.writing(Load(), least=50):
        scene.wait_delivered(zombie, 50)
        old_id = scene.freeze_with_full_hands(zombie)
    settled = scene.count_settled(old_id)
    scene.pause()  # what the zombie has in hand stays open, so that it could be settled
    scene.wait_shared([other])
    assert scene.count("pillarbox_claim where relay_id = ?", old_id) == 0
    assert scene.count("pillarbox_outbox")
    zombie.thaw()
    scene.wait_shared([zombie, other])
    assert old_id not in scene.ids(zombie)
    assert scene.count_settled(old_id) == settled
    scene.resume()
    scene.wait_drained()
    scene.judge(least=50)
    assert scene.count_settled(old_id) == settled
