"""Who owns the lanes: even shares, of those that reach the destination, and what a relay leaves when it vanishes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.contracts.store import Claim, Fence
from pillarbox.contracts.transport import Outcome
from pillarbox.message import State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.mariadb import connection as mariadb_connection
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite import connection as sqlite_connection
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.telemetry import Telemetry
from pillarbox.testing.samples import find_key, sample_relay
from tests.support.relay_behaviour.scene import LEASE, SHORT_LEASE, Scene, Script, as_told, until

pytestmark = pytest.mark.usefixtures("short_outages")


async def shares(scene: Scene) -> list[int]:
    """How many lanes of `sink` each live relay owns."""
    registry = await scene.store.registry(lease=LEASE)
    owners = list(registry.owners.get("sink", {}).values())
    return sorted(owners.count(relay.relay_id) for relay in registry.relays)


async def are_shared(scene: Scene, *expected: int) -> bool:
    return await shares(scene) == list(expected)


@asynccontextmanager
async def vanishing(relay: Relay) -> AsyncIterator[None]:
    """A relay that ends without a word: nothing is settled, nothing released."""
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_three_relays_share_evenly_as_they_come_and_go(scene: Scene) -> None:
    sink = Script()
    async with scene.relay(sink):
        async with scene.relay(sink), scene.relay(sink):
            await until(lambda: are_shared(scene, 21, 21, 22))
            await scene.put(*[(number, f"key-{number}") for number in range(50)])
            await until(scene.is_drained)
        await until(lambda: are_shared(scene, 64))
    assert sorted(sink.numbers()) == list(range(50))


async def test_a_relay_owns_no_more_than_its_most_lanes(scene: Scene) -> None:
    async with scene.relay(Script(), settings=scene.quick(max_lanes=10)):
        await until(lambda: are_shared(scene, 10))
        async with scene.relay(Script(), settings=scene.quick(max_lanes=10)):
            await until(lambda: are_shared(scene, 10, 10))


async def test_a_relay_that_cannot_reach_the_destination_lends_its_lanes_to_one_that_can(scene: Scene) -> None:
    near, far = Script(), Script()
    short = scene.quick(lease=SHORT_LEASE)
    async with scene.relay(near, settings=short), scene.relay(far, settings=short):
        await until(lambda: are_shared(scene, 32, 32))
        far.is_down = True
        await scene.put(*[(number, f"key-{number}") for number in range(64)])
        await until(lambda: are_shared(scene, 0, 64))
        await until(scene.is_drained)
        far.is_down = False
        await until(lambda: are_shared(scene, 32, 32))
    assert sorted(set(near.numbers() + far.numbers())) == list(range(64))


async def test_after_an_outage_the_shares_are_even_again(scene: Scene) -> None:
    sinks = [Script(), Script()]
    short = scene.quick(lease=SHORT_LEASE)
    async with scene.relay(sinks[0], settings=short), scene.relay(sinks[1], settings=short):
        await until(lambda: are_shared(scene, 32, 32))
        for sink in sinks:
            sink.is_down = True
        await scene.put(*[(number, f"key-{number}") for number in range(64)])
        await until(lambda: nobody_reaches(scene))
        for sink in sinks:
            sink.is_down = False
        await until(scene.is_drained)
        await until(lambda: are_shared(scene, 32, 32))
    assert sorted({number for sink in sinks for number in sink.numbers()}) == list(range(64))


async def nobody_reaches(scene: Scene) -> bool:
    registry = await scene.store.registry(lease=LEASE)
    return not any("sink" in relay.reachable for relay in registry.relays)


async def test_what_a_vanished_relay_had_in_hand_is_delivered_by_another(scene: Scene) -> None:
    stuck, sink = Script(), Script()
    stuck.gate.clear()
    await scene.put(*[(number, f"key-{number % 4}") for number in range(40)])
    async with vanishing(scene.relay(stuck, settings=scene.quick(lease=SHORT_LEASE))):
        await until(lambda: len(stuck.under_way) >= 4)
    assert await scene.find(State.SENDING)
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sorted(sink.numbers()) == list(range(40))
    assert all(ids == sorted(ids) for ids in sink.by_key().values())
    assert {message.attempts for message in await scene.find(State.DELIVERED)} == {0}


async def test_a_key_that_waited_under_a_vanished_relay_waits_under_the_next(scene: Scene) -> None:
    """Message 1 waits for its next attempt. The next relay learns that before it reads message 2."""
    refusing, sink = Script(as_told({1: Outcome(delivered=False, error="not now")})), Script()
    later = RetryPolicy(schedule=[timedelta(seconds=3)], jitter=0)
    await scene.put((1, "a"), (100, "b"), (101, "b"))
    async with vanishing(scene.relay(refusing, retry=later, settings=scene.quick(lease=SHORT_LEASE))):
        await until(lambda: is_tried(scene, 1))
    await scene.put((2, "a"), (3, "a"))
    async with scene.relay(sink):
        await until(lambda: sink.numbers("a"))
        await until(scene.is_drained)
    assert sink.numbers("a") == [1, 2, 3]


async def test_a_key_that_waited_under_a_vanished_relay_waits_under_one_that_was_there_already(scene: Scene) -> None:
    """The survivor has looked at its own lanes long ago: it must look at these before it reads them."""
    key = find_key(3)  # a relay hands its highest lanes over, and keeps this one
    refusing, sink = Script(as_told({1: Outcome(delivered=False, error="not now")})), Script()
    later = RetryPolicy(schedule=[timedelta(seconds=4)], jitter=0)
    await scene.put((1, key), (100, "b"), (101, "b"))
    async with vanishing(scene.relay(refusing, retry=later, settings=scene.quick(lease=SHORT_LEASE))):
        await until(lambda: is_tried(scene, 1))
        survivor = scene.relay(sink, settings=scene.quick(lease=SHORT_LEASE))
        running = asyncio.create_task(survivor.run())
        await until(lambda: are_shared(scene, 32, 32))
    await scene.put((2, key), (3, key))
    await until(lambda: sink.numbers(key))
    await until(scene.is_drained)
    survivor.stop()
    await running
    assert sink.numbers(key) == [1, 2, 3]


async def test_a_message_is_found_while_the_lease_of_its_relay_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pending or sending, and never neither: the statements of one search have one time."""
    await scene.put((1, "a"))
    (message,) = await scene.find()
    relay = sample_relay(destination="sink")
    store: Any = scene.store
    slow_down(store, monkeypatch)
    await store.register(relay, lease=SHORT_LEASE)
    (lane,), _ = await store.take(
        relay.relay_id, "sink", partitions=[message.partition], lease=SHORT_LEASE, claim_number=1
    )
    await store.claim(Fence(relay.relay_id, "sink", {lane.partition: lane.epoch}), Claim(1, [message.id]))
    assert [one.id for one in await scene.find(State.PENDING, State.SENDING)] == [message.id]


def slow_down(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lease end after each statement of a search."""
    seconds = 1.2 * SHORT_LEASE.total_seconds()
    if not isinstance(store, PostgresStore):
        kind = sqlite_connection.Transaction if isinstance(store, SqliteStore) else mariadb_connection.Transaction
        query = kind.query

        def query_slowly(self: Any, name: str, *values: Any, **options: Any) -> list[Any]:
            rows = query(self, name, *values, **options)
            time.sleep(seconds if name.startswith("find_") else 0)
            return rows

        monkeypatch.setattr(kind, "query", query_slowly)
        return
    database: Any = store._database
    snapshot = database.snapshot

    class Slow:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        async def fetch(self, *arguments: Any) -> Any:
            rows = await self._connection.fetch(*arguments)
            await asyncio.sleep(seconds)
            return rows

    @asynccontextmanager
    async def snapshot_slowly() -> AsyncIterator[Any]:
        async with snapshot() as connection:
            yield Slow(connection)

    monkeypatch.setattr(database, "snapshot", snapshot_slowly)


async def is_tried(scene: Scene, number: int) -> bool:
    return any(int(m.payload) == number and m.attempts for m in await scene.find(State.PENDING))


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
async def test_a_relay_that_looks_at_the_registry_seldom_keeps_its_lease(scene: Scene) -> None:
    lost: list[str] = []

    class Ears(Telemetry):
        def on_lease_lost(self, *, reason: str) -> None:
            lost.append(reason)

    # Longer than a busy machine stands still.
    settings = scene.quick(lease=timedelta(seconds=5), watch_interval=timedelta(seconds=30))
    destination = Destination(Script, DestinationSettings(name="sink"))
    async with Relay(scene.open_store(), [destination], settings=settings, telemetry=Ears()):
        await asyncio.sleep(12)
    assert lost == []
