"""Stopping: what is under way may finish, what is known is recorded, and nothing is left in anybody's hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from pillarbox.contracts.store import Claim, Fence, Store
from pillarbox.message import Message, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.testing.samples import sample_relay
from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.locks import count_waits, hold
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


async def test_leaving_is_tried_again_when_the_line_broke(scene: Scene) -> None:
    """Otherwise its lanes would wait for the end of the lease, though it stopped gracefully."""
    sink, wire = Script(), Wire(scene.open_store())
    relay = Relay(wire.store, [Destination(lambda: sink, DestinationSettings(name="sink"))], settings=scene.quick())
    async with relay:
        await scene.put((1, "a"))
        await until(scene.is_drained)
        wire.broken.add("leave")
        relay.stop()
        await until(lambda: "leave" in wire.refused)
        wire.broken.clear()
    await leaves_nothing(scene)


async def test_a_take_under_way_when_its_relay_leaves_leaves_no_lane(scene: Scene) -> None:
    """The take has its lanes and waits for a lock. Nobody waits for its answer: the relay has been stopped."""
    if scene.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    is_mysql = scene.url.startswith("mysql")
    lock = "lock tables pillarbox_outbox write" if is_mysql else "lock table pillarbox_outbox in access exclusive mode"
    await scene.put((1, "a"))
    (message,) = await scene.find()
    relay = sample_relay(destination="sink")
    async with opened(scene) as first, opened(scene) as second:
        await die_with(first, message)
        await first.register(relay, lease=LEASE)
        async with hold(scene, lock):
            take = asyncio.create_task(
                first.take(relay.relay_id, "sink", partitions=range(64), lease=LEASE, claim_number=1)
            )
            await until(lambda: take.done() or count_waits(scene))
            leave = asyncio.create_task(second.leave(relay.relay_id))
            await until(lambda: take.done() or leave.done() or count_waits(scene) > 1)
        # On a slow machine a wait for the lock may end with an error. That leaves no lane either.
        await asyncio.gather(take, leave, return_exceptions=True)
        if leave.exception() is not None:
            await second.leave(relay.relay_id)
    assert owned_rows(scene, relay.relay_id) == 0


@asynccontextmanager
async def opened(scene: Scene) -> AsyncIterator[Store]:
    store = scene.open_store()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def die_with(store: Store, message: Message) -> None:
    """Leave a message in the hands of a relay that has expired."""
    dead = sample_relay(destination="sink")
    await store.register(dead, lease=timedelta(0))
    (lane,), _ = await store.take(dead.relay_id, "sink", partitions=[message.partition], lease=LEASE, claim_number=1)
    await store.claim(Fence(dead.relay_id, "sink", {lane.partition: lane.epoch}), Claim(1, [message.id]))


def owned_rows(scene: Scene, relay_id: UUID) -> int:
    """How many lanes are in the name of a relay, whether it is in the registry or not."""
    lane = scene.names.table("lane", quote="")
    is_mysql = scene.url.startswith("mysql")
    with (
        closing(connected(scene.url) if is_mysql else psycopg.connect(scene.url)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute(f"select count(*) from {lane} where relay_id = %s", (str(relay_id),))
        ((count,),) = cursor.fetchall()
        return int(count)


async def test_it_can_be_stopped_before_it_has_begun(scene: Scene) -> None:
    relay = scene.relay(Script())
    relay.stop()
    async with asyncio.timeout(30):
        await relay.run()
    await leaves_nothing(scene)
