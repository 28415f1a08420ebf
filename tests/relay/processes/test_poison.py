"""A message that kills whoever delivers it is failed in the end, and costs its neighbours nothing."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from pillarbox.relay.ordering import LONE_STRIKES
from tests.support.relay_processes.fleet import until
from tests.support.relay_processes.scene import Scene
from tests.support.relay_processes.ticks import Tick

_NOT_DELIVERED: Final = "select key, state, attempts, last_error from pillarbox_messages where state <> 'delivered'"
_LONE_CAP: Final = 2
_DEATHS: Final = LONE_STRIKES + _LONE_CAP
"""In smaller and smaller company, and then alone up to the cap."""


def test_a_deadly_message_fails_alone(scene: Scene) -> None:
    scene.fleet.part = replace(scene.fleet.part, lone_cap=_LONE_CAP)
    keys = [f"k{number}" for number in range(40)]
    ticks = [Tick(key=key, number=1, written_at=0, deadly=key == "k7") for key in keys]
    scene.place.put([*ticks, *(replace(tick, number=2, deadly=False) for tick in ticks)])
    deaths = 0
    relay = scene.fleet.start()

    def supervised() -> bool:
        nonlocal relay, deaths
        if relay.exit_code is not None:
            assert relay.exit_code == 1
            deaths += 1
            # Without another message that is acknowledged nothing shows that the destination works: no death counts.
            scene.place.put([Tick(key=f"witness-{deaths}", number=1, written_at=0)])
            relay = scene.fleet.start()
        return not scene.count("pillarbox_outbox")

    until(supervised, within=60, what="every message is closed")
    firsts = scene.first_deliveries()
    assert {key: [first.tick.number for first in firsts[key]] for key in keys} == {
        key: [2] if key == "k7" else [1, 2] for key in keys
    }
    reason = f"a relay or its connection died {_LONE_CAP} times while it sent this message alone"
    assert scene.place.rows(_NOT_DELIVERED) == [("k7", "failed", 0, reason)]
    delivered = "pillarbox_history where status = 'delivered' and coalesce(attempts, 0) = 0 and last_error is null"
    assert scene.count(delivered) == 79 + deaths
    assert deaths <= _DEATHS  # a lease that a busy machine let run out counts like a death
