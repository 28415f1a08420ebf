"""The promises of the README, each through the real relay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.contracts.store import Selection
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from tests.support.relay_behaviour.scene import DELIVERED, LEASE, Scene, Script, as_told, quick_retry, until

REFUSED = Outcome(delivered=False, error="refused as told")
REJECTED = Outcome(delivered=False, error="never as told", rejected=True)


async def test_what_was_committed_arrives_and_what_was_rolled_back_does_not(scene: Scene) -> None:
    sink = Script()
    async with scene.relay(sink):
        await scene.put((1, "a"), (2, "b"))
        await scene.put((3, "a"), commit=False)
        await scene.put((4, "a"))
        await until(lambda: len(sink.taken) >= 3)
        await until(scene.is_drained)
    assert sorted(sink.numbers()) == [1, 2, 4]
    assert {m.state for m in await scene.find()} == {State.DELIVERED}


@pytest.mark.usefixtures("short_outages")
async def test_each_key_arrives_in_order_through_failures_and_several_relays(scene: Scene) -> None:
    failures = dict.fromkeys(range(0, 120, 7), 2)

    def sometimes(message: Message) -> Outcome:
        number = int(message.payload)
        if failures.get(number, 0):
            failures[number] -= 1
            return REFUSED
        return DELIVERED

    sink = Script(sometimes, batch=5)
    for number in range(120):
        await scene.put((number, f"key-{number % 6}"))
    forever = quick_retry(attempts=None)
    async with scene.relay(sink, retry=forever), scene.relay(sink, retry=forever):
        async with scene.relay(sink, retry=forever):
            await until(lambda: len(sink.taken) >= 40)
        await until(scene.is_drained)
    assert sorted(set(sink.numbers())) == list(range(120))
    assert all(ids == sorted(ids) for ids in sink.by_key().values())


async def test_an_outage_spends_no_attempt_and_fails_no_message(scene: Scene) -> None:
    sink = Script()
    sink.is_down = True
    for number in range(30):
        await scene.put((number, f"key-{number % 4}"))
    async with scene.relay(sink):
        await until(lambda: sink.sends > 0 or sink.is_down)
        await asyncio.sleep(2.5)
        assert [m.attempts for m in await scene.find()] == [0] * 30
        assert not await scene.find(State.FAILED)
        sink.is_down = False
        await until(scene.is_drained)
    assert sorted(set(sink.numbers())) == list(range(30))
    assert all(ids == sorted(ids) for ids in sink.by_key().values())
    assert {m.attempts for m in await scene.find(State.DELIVERED)} == {0}


async def test_errors_without_a_witness_are_an_outage_too(scene: Scene) -> None:
    """A destination that answers 503 to everything is down, whatever it is called."""
    sink = Script(lambda _: REFUSED)
    await scene.put(*[(number, None) for number in range(10)])
    async with scene.relay(sink):
        await until(lambda: sink.sends >= 2)
        assert {m.attempts for m in await scene.find()} == {0}
        sink.answer = lambda _: DELIVERED
        await until(scene.is_drained)
    assert {(m.state, m.attempts) for m in await scene.find()} == {(State.DELIVERED, 0)}


async def test_a_rejected_message_fails_alone_and_its_key_goes_on(scene: Scene) -> None:
    sink = Script(as_told({3: REJECTED}))
    await scene.put((1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b"))
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sorted(sink.numbers()) == [1, 2, 4, 5]
    assert sink.numbers("a") == [1, 4]
    (failed,) = await scene.find(State.FAILED)
    assert (failed.payload, failed.last_error, failed.attempts) == (b"3", "never as told", 1)


async def test_a_message_that_always_fails_uses_its_attempts_and_nobody_elses(scene: Scene) -> None:
    sink = Script(as_told({3: REFUSED}))
    await scene.put((1, "a"), (3, "a"), (4, "a"))
    async with scene.relay(sink):
        number = 100
        while not await scene.find(State.FAILED):
            number += 1
            await scene.put((number, "other"))
            await asyncio.sleep(0.02)
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert (failed.payload, failed.attempts, failed.last_error) == (b"3", 3, "refused as told")
    assert sink.numbers("a") == [1, 4]
    assert {m.attempts for m in await scene.find(State.DELIVERED)} == {0}
    journal = await scene.store.journal(message_id=failed.message_id)
    # Tries before the first witness spend nothing.
    spent = [line.action for line in journal if line.action != "tried"]
    assert spent == ["attempt_failed", "attempt_failed", "failed"]


async def test_what_no_route_wants_is_closed_as_skipped(scene: Scene) -> None:
    async with scene.relay(Script()):
        await scene.put((1, "a"), topic="nobody")
        await until(scene.is_drained)
    (skipped,) = await scene.find()
    assert skipped.state is State.SKIPPED


def cover_eyes(store: Any, sees: asyncio.Event) -> None:
    """Let a store answer a relay's questions about the registry, and its heartbeats, only while the event is set."""
    registry, renew = store.registry, store.renew

    async def registry_when_seen(**options: Any) -> Any:
        await sees.wait()
        return await registry(**options)

    async def renew_when_seen(*arguments: Any, **options: Any) -> Any:
        await sees.wait()
        return await renew(*arguments, **options)

    store.registry, store.renew = registry_when_seen, renew_when_seen


async def test_a_relay_whose_lanes_were_taken_over_settles_nothing(scene: Scene) -> None:
    """The zombie: its answers come after another relay has taken its lanes. It must not close what is not its own."""
    await scene.put((1, "a"))
    slow, quick = Script(), Script()
    slow.gate.clear()
    store, sees = scene.open_store(), asyncio.Event()
    sees.set()
    cover_eyes(store, sees)
    destination = Destination(lambda: slow, DestinationSettings(name="sink", send_timeout=timedelta(minutes=1)))
    zombie = Relay(store, [destination], settings=scene.quick(lease=LEASE))
    async with zombie:
        await until(lambda: slow.under_way)
        (before,) = (await scene.store.registry(lease=LEASE)).relays
        # From now on the zombie sees no registry and renews nothing, as if it were frozen; the registry counts it dead.
        sees.clear()
        await until(lambda: scene.store.renew(before.relay_id, lease=timedelta(0), reachable=["sink"]))
        async with scene.relay(quick, settings=scene.quick(lease=LEASE)):
            await until(lambda: quick.numbers() == [1])
            await until(scene.is_drained)
            (closed,) = await scene.find()
            slow.gate.set()
            await until(lambda: slow.numbers() == [1])
            sees.set()
            await until(lambda: zombie.relay_id != str(before.relay_id))
            assert await scene.find() == [closed]


async def test_two_relays_share_the_lanes_and_one_takes_all_when_the_other_leaves(scene: Scene) -> None:
    async def owned() -> list[int]:
        registry = await scene.store.registry(lease=LEASE)
        owners = list(registry.owners.get("sink", {}).values())
        return sorted(owners.count(owner) for owner in set(owners))

    async def shares(expected: list[int]) -> bool:
        return await owned() == expected

    async with scene.relay(Script()):
        await until(lambda: shares([64]))
        async with scene.relay(Script()):
            await until(lambda: shares([32, 32]))
        await until(lambda: shares([64]))


async def test_a_graceful_stop_leaves_nothing_behind(scene: Scene) -> None:
    sink = Script(batch=1)
    sink.gate.clear()
    await scene.put(*[(number, f"key-{number}") for number in range(20)])
    relay = scene.relay(sink, window=5)
    async with relay:
        await until(lambda: sink.under_way)
        relay.stop()
        sink.gate.set()
    registry = await scene.store.registry(lease=LEASE)
    assert (list(registry.relays), registry.owners) == ([], {})
    assert not await scene.find(State.SENDING)
    delivered = {int(m.payload) for m in await scene.find(State.DELIVERED)}
    assert delivered == set(sink.numbers())
    assert {m.attempts for m in await scene.find(State.PENDING)} <= {0}
    await scene.relay(sink).run(once=True)
    assert sorted(sink.numbers()) == list(range(20))


async def test_redriven_by_a_person_a_failed_message_arrives(scene: Scene) -> None:
    sink = Script(as_told({1: REJECTED}))
    async with scene.relay(sink):
        await scene.put((1, "a"), (2, "a"))
        await until(scene.is_drained)
        sink.answer = lambda _: DELIVERED
        await scene.store.redrive(Selection(states=[State.FAILED]), by="anna", limit=10)
        await until(lambda: sink.numbers() == [2, 1])
        await until(scene.is_drained)
    assert {m.state for m in await scene.find()} == {State.DELIVERED}
