"""A relay that does not know that it is dead: its heartbeat is lost, its clock stands still, it goes on working."""

from __future__ import annotations

from collections.abc import Iterable

from pillarbox.clock import SystemClock
from pillarbox.contracts.transport import Outcome
from pillarbox.message import State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.telemetry import Telemetry
from tests.support.relay_behaviour.scene import DELIVERED, SHORT_LEASE, Scene, Script, quick_retry, until
from tests.support.relay_behaviour.wire import Wire

REJECTED = Outcome(delivered=False, error="rejected by the zombie's destination", rejected=True)


class Stopped(SystemClock):
    """By this clock no lease ever ends."""

    def monotonic(self) -> float:
        return 0.0


class Ears(Telemetry):
    """Hears of writes that were refused."""

    def __init__(self) -> None:
        self.refused: list[int] = []

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        self.refused += partitions


def zombie(scene: Scene, sink: Script, ears: Ears) -> tuple[Relay, Wire]:
    wire = Wire(scene.open_store())
    settings = DestinationSettings(name="sink", retry=quick_retry())
    destination = Destination(lambda: sink, settings)
    return Relay(
        wire.store, [destination], settings=scene.quick(lease=SHORT_LEASE), clock=Stopped(), telemetry=ears
    ), wire


async def test_a_zombie_fails_nothing_that_another_relay_is_delivering(scene: Scene) -> None:
    await scene.put((1, "a"), (2, "a"))
    stale, live, ears = Script(lambda _: REJECTED), Script(), Ears()
    stale.gate.clear()
    live.gate.clear()
    relay, wire = zombie(scene, stale, ears)
    async with relay:
        await until(lambda: stale.under_way)
        wire.broken.add("renew")
        async with scene.relay(live):
            await until(lambda: live.under_way)
            stale.gate.set()
            await until(lambda: ears.refused)
            assert not await scene.find(State.FAILED)
            live.gate.set()
            await until(scene.is_drained)
        wire.broken.clear()
    assert live.numbers() == [1, 2]
    assert {(message.state, message.attempts) for message in await scene.find()} == {(State.DELIVERED, 0)}


async def test_a_zombie_sends_nothing_new_of_lanes_that_are_anothers(scene: Scene) -> None:
    """It reads on, but must claim before it sends, and the claim is refused."""
    await scene.put((1, "a"))
    stale, live, ears = Script(), Script(lambda _: DELIVERED), Ears()
    relay, wire = zombie(scene, stale, ears)
    async with relay:
        await until(lambda: stale.numbers() == [1])
        wire.broken.add("renew")
        async with scene.relay(live):
            await until(lambda: owns_everything(scene, but=relay.relay_id))
            await scene.put(*[(number, f"key-{number}") for number in range(2, 60)])
            await until(scene.is_drained)
            assert stale.numbers() == [1]
        wire.broken.clear()
    assert sorted(live.numbers()) == list(range(2, 60))


async def owns_everything(scene: Scene, *, but: str | None) -> bool:
    registry = await scene.store.registry(lease=scene.quick().lease)
    owners = [str(owner) for owner in registry.owners.get("sink", {}).values()]
    return len(owners) == 64 and but not in owners
