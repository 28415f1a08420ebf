"""Stopping: what is under way may finish, what is known is recorded, and nothing is left in anybody's hands."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pillarbox.message import State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from tests.support.relay_behaviour.scene import LEASE, Scene, Script, until
from tests.support.relay_behaviour.wire import Wire


async def leaves_nothing(scene: Scene) -> None:
    registry = await scene.store.registry(lease=LEASE)
    assert (list(registry.relays), registry.owners) == ([], {})
    assert not await scene.find(State.SENDING)


async def both_own_lanes(scene: Scene) -> bool:
    registry = await scene.store.registry(lease=timedelta(hours=1))
    return len(set(registry.owners.get("sink", {}).values())) == 2


async def test_what_is_being_recorded_when_the_relay_stops_is_recorded(scene: Scene) -> None:
    """Nothing is sent twice because of a stop: the lanes are left when the last outcome is in the table."""
    sink, wire = Script(), Wire(scene.open_store())
    wire.slow["settle"] = 0.3
    relay = Relay(wire.store, [Destination(lambda: sink, DestinationSettings(name="sink"))], settings=scene.quick())
    async with relay:
        await scene.put(*[(number, f"key-{number}") for number in range(10)])
        await until(lambda: "settle" in wire.under_way)
        relay.stop()
    await leaves_nothing(scene)
    recorded = {int(message.payload) for message in await scene.find(State.DELIVERED)}
    assert recorded == set(sink.numbers())


async def test_a_destination_that_does_not_answer_is_waited_for_only_so_long(scene: Scene) -> None:
    sink = Script()
    sink.gate.clear()
    await scene.put((1, "a"), (2, "b"))
    async with asyncio.timeout(30), scene.relay(sink, send_timeout=timedelta(seconds=1)) as relay:
        await until(lambda: len(sink.under_way) >= 2)
        relay.stop()
    await leaves_nothing(scene)
    assert {(message.state, message.attempts) for message in await scene.find()} == {(State.PENDING, 0)}


async def test_a_stopped_relay_hands_its_lanes_over_at_once(scene: Scene) -> None:
    """No lease has to run out: the other relay's is an hour, and so was the first one's."""
    first, second = Script(), Script()
    hour = scene.quick(lease=timedelta(hours=1))
    async with scene.relay(second, settings=hour):
        async with scene.relay(first, settings=hour):
            await until(lambda: both_own_lanes(scene))
            await scene.put(*[(number, f"key-{number}") for number in range(30)])
            await until(lambda: first.taken)
        await scene.put(*[(number, f"key-{number}") for number in range(30, 60)])
        await until(scene.is_drained)
    taken = first.numbers() + second.numbers()
    assert sorted(taken) == list(range(60))


async def test_it_can_be_stopped_before_it_has_begun(scene: Scene) -> None:
    relay = scene.relay(Script())
    relay.stop()
    async with asyncio.timeout(30):
        await relay.run()
    await leaves_nothing(scene)
