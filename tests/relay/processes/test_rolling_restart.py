"""All relays are replaced, one after the other, while writers go on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from signal import SIGTERM
from typing import Final

from msgspec.structs import replace

from tests.support.relay_processes.fleet import RelayProcess
from tests.support.relay_processes.places import Load
from tests.support.relay_processes.scene import Scene
from tests.support.relay_processes.sink import Delivery, deliveries

_A_SECOND: Final = 1_000_000_000
_LEASE: Final = 5.0
_TRIES: Final = 3


def test_a_rolling_restart_leaves_no_gap_and_nothing_behind(scene: Scene) -> None:
    """No gap, once in three tries: a busy machine may stand still for a second by itself."""
    scene.fleet.part = replace(scene.fleet.part, lease=_LEASE)
    relays = scene.start(3)
    smooth: list[bool] = []
    while not any(smooth) and len(smooth) < _TRIES:
        before = len(deliveries(scene.sink))
        with scene.writing(Load()):
            relays = _replaced(scene, relays)
        scene.wait_drained()
        arrived = deliveries(scene.sink)[before:]
        # no second without a delivery, and no lane that waited for a lease to run out
        smooth.append(_longest_gap(arrived) < _A_SECOND and _longest_wait(arrived) < _LEASE / 2 * _A_SECOND)
    for relay in relays:
        relay.signal(SIGTERM)
    assert [relay.ended(within=40) for relay in relays] == [0, 0, 0]
    scene.judge()
    assert any(smooth)
    assert scene.count("pillarbox_claim") == 0
    assert scene.count("pillarbox_relay") == 0
    assert scene.count("pillarbox_lane where relay_id is not null") == 0


def _replaced(scene: Scene, relays: list[RelayProcess]) -> list[RelayProcess]:
    """As many new relays, one after the other."""
    for _ in relays:
        scene.wait_delivered(relays[0], 30)
        oldest, *relays = relays
        oldest.signal(SIGTERM)
        assert oldest.ended(within=40) == 0
        relays = [*relays, scene.fleet.start()]
        scene.wait_shared(relays)
    scene.wait_delivered(relays[-1], 30)
    return relays


def _longest_gap(arrived: Sequence[Delivery]) -> int:
    """The longest that nothing arrived although something was written, in nanoseconds."""
    return max(later.at - max(earlier.at, later.tick.written_at) for earlier, later in pairwise(arrived))


def _longest_wait(arrived: Sequence[Delivery]) -> int:
    """The longest that any message waited for its first delivery, in nanoseconds."""
    firsts: dict[int, Delivery] = {}
    for delivery in arrived:
        firsts.setdefault(delivery.id, delivery)
    return max(first.at - first.tick.written_at for first in firsts.values())
