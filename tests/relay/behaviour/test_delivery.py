"""How the relay works, paragraph by paragraph of its design, through the real relay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pillarbox.contracts.store import Selection
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message, State, Waits, compute_partition
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, Retention
from pillarbox.testing.samples import find_key
from tests.support.relay_behaviour.scene import DELIVERED, Scene, Script, as_told, quick_retry, until

REJECTED = Outcome(delivered=False, error="never as told", rejected=True)


async def test_hold_keeps_a_key_until_a_person_acts(scene: Scene) -> None:
    sink = Script(as_told({1: REJECTED}))
    async with scene.relay(sink, after_failure="hold"):
        await scene.put((1, "a"), (2, "a"), (3, "b"))
        await until(lambda: sink.numbers() == [3])
        await scene.put((4, "a"), (5, "b"))
        await until(lambda: sink.numbers() == [3, 5])
        await until(lambda: _is_held(scene))
        (held,) = await scene.find(State.FAILED)
        await scene.store.discard(Selection(ids=[held.id]), by="anna", reason="wrong", limit=1)
        await until(lambda: sink.numbers("a") == [2, 4])
        await until(scene.is_drained)


async def test_a_held_key_stays_held_when_another_relay_takes_over(scene: Scene) -> None:
    sink = Script(as_told({1: REJECTED}))
    async with scene.relay(sink, after_failure="hold"):
        await scene.put((1, "a"), (2, "a"))
        await until(lambda: _is_held(scene))
    async with scene.relay(sink, after_failure="hold"):
        await scene.put((3, "a"), (4, "b"))
        await until(lambda: sink.numbers() == [4])
        sink.answer = lambda _: DELIVERED
        await scene.store.redrive(Selection(states=[State.FAILED]), by="anna", limit=9)
        await until(lambda: sink.numbers("a") == [1, 2, 3])


async def _is_held(scene: Scene) -> bool:
    return [m.waits for m in await scene.find(State.FAILED)] == [Waits.HELD]


async def test_a_deferred_message_waits_and_does_not_block_its_key(scene: Scene) -> None:
    sink = Script()
    async with scene.relay(sink):
        await scene.put((1, "a"), delay=timedelta(hours=1))
        await scene.put((2, "a"))
        await until(lambda: sink.numbers() == [2])
        await scene.put((3, "a"), delay=timedelta(seconds=1.5))
        await until(lambda: sink.numbers() == [2, 3])
        await until(lambda: _is_delivered(scene, 3))
    assert sink.numbers() == [2, 3]
    late = next(m for m in await scene.find() if m.payload == b"3")
    assert late.available_at is not None
    assert late.status_at is not None
    assert late.status_at >= late.available_at
    assert late.attempts == 0


async def _is_delivered(scene: Scene, number: int) -> bool:
    return number in [int(m.payload) for m in await scene.find(State.DELIVERED)]


async def test_deferred_by_a_person_a_message_blocks_its_key(scene: Scene) -> None:
    sink = Script()
    await scene.put((1, "a"))
    (message,) = await scene.find()
    later = await scene.store.now() + timedelta(hours=1)
    await scene.store.defer(Selection(ids=[message.id]), until=later, by="anna", limit=1)
    async with scene.relay(sink):
        await scene.put((2, "a"), (3, "b"))
        await until(lambda: sink.numbers() == [3])
        soon = await scene.store.now() + timedelta(seconds=0.5)
        await scene.store.defer(Selection(ids=[message.id]), until=soon, by="anna", limit=1)
        await until(scene.is_drained)
    assert sink.numbers("a") == [1, 2]


async def test_a_hot_key_leaves_room_for_the_others(scene: Scene) -> None:
    sink = Script(batch=1)
    sink.gate.clear()
    await scene.put(*[(number, "hot") for number in range(60)])
    async with scene.relay(sink, window=16):
        await until(lambda: sink.under_way)
        await scene.put(*[(number, f"cold-{number}") for number in range(100, 105)])
        await until(lambda: {m.key for m in sink.under_way} >= {f"cold-{number}" for number in range(100, 105)})
        sink.gate.set()
        await until(scene.is_drained)
    assert sink.numbers("hot") == list(range(60))


async def test_a_hot_key_does_not_hold_up_a_key_of_its_own_lane(scene: Scene) -> None:
    """Its rest is passed by, not moved aside, where the store can: no row of it is written before its turn."""
    sink = Script(batch=1)
    sink.gate.clear()
    beside = find_key(compute_partition("hot", UUID(int=0)))
    await scene.put(*[(number, "hot") for number in range(200)], (200, beside))
    async with scene.relay(sink, window=16, batch=8):
        await until(lambda: beside in {m.key for m in sink.under_way})
        rest = None if scene.store.features.skips_keys else Waits.PARKED
        assert {m.waits for m in await scene.find(State.PENDING)} == {rest}
        sink.gate.set()
        await until(scene.is_drained)
    assert sink.numbers("hot") == list(range(200))


async def test_a_paused_destination_waits_and_goes_on(scene: Scene) -> None:
    sink = Script()
    await scene.store.pause("sink", by="anna", reason="maintenance")
    async with scene.relay(sink):
        await scene.put((1, "a"), (2, "a"))
        await asyncio.sleep(0.5)
        assert sink.taken == []
        await scene.store.resume("sink", by="anna")
        await until(scene.is_drained)
    assert sink.numbers() == [1, 2]


async def test_the_destinations_own_word_on_when_to_retry_is_honoured(scene: Scene) -> None:
    busy = Outcome(delivered=False, error="busy", retry_after=timedelta(hours=1))
    sink = Script(as_told({1: busy}))
    async with scene.relay(sink):
        await scene.put((1, "a"), *[(number, None) for number in range(10, 20)])
        await until(lambda: _waits(scene, Waits.RETRY))
    (message,) = await scene.find(State.PENDING)
    assert message.available_at is not None
    assert message.available_at > datetime.now(UTC) + timedelta(minutes=50)
    assert message.attempts == 1


async def _waits(scene: Scene, waits: Waits) -> bool:
    return any(m.waits is waits for m in await scene.find(State.PENDING))


async def test_a_rate_limit_holds(scene: Scene) -> None:
    sink = Script()
    await scene.put(*[(number, None) for number in range(60)])
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with scene.relay(sink, rate=20.0):
        await until(scene.is_drained)
    # 20 at once, the other 40 at 20 a second: two seconds at the least.
    assert loop.time() - began >= 2.0
    assert len(sink.taken) == 60


async def test_no_more_bytes_are_held_than_the_window_allows(scene: Scene) -> None:
    """Counted while nothing is answered: what a relay holds then, it holds in memory."""
    size, window_bytes, count = 20_000, 100_000, 40
    sink = Script(lambda _: DELIVERED)
    sink.gate.clear()
    scene.payload_size = size
    await scene.put(*[(number, None) for number in range(count)])
    relay = scene.relay(sink, window_bytes=window_bytes)
    async with relay:
        await until(lambda: len(sink.under_way) >= window_bytes // size)
        ordering = relay._pipelines["sink"].state.ordering
        held: list[int] = []
        while len(sink.taken) < count:
            held.append(ordering.bytes_in_flight)
            sink.gate.set()
            await asyncio.sleep(0)
        await until(scene.is_drained)
    assert max(held) < window_bytes + 2 * size
    assert len({message.id for message in sink.taken}) == len(sink.taken) == count


async def test_failed_messages_go_on_to_the_dead_letter_destination(scene: Scene) -> None:
    sink, letters = Script(as_told({1: REJECTED})), Script()
    relay = Relay(
        scene.open_store(),
        [
            Destination(lambda: sink, DestinationSettings(name="sink", dead_letter="letters", retry=quick_retry())),
            Destination(lambda: letters, DestinationSettings(name="letters")),
        ],
        settings=scene.quick(),
    )
    async with relay:
        await scene.put((1, "a"), (2, "a"))
        await until(lambda: letters.numbers() == [1])
        await until(scene.is_drained)
    assert sink.numbers() == [2]


async def test_dead_letters_are_of_one_destination_only(scene: Scene) -> None:
    sink, other, letters = Script(as_told({1: REJECTED})), Script(as_told({1: REJECTED})), Script()
    relay = Relay(
        scene.open_store(),
        [
            Destination(lambda: sink, DestinationSettings(name="sink", dead_letter="letters", retry=quick_retry())),
            Destination(lambda: other, DestinationSettings(name="other", retry=quick_retry())),
            Destination(lambda: letters, DestinationSettings(name="letters")),
        ],
        settings=scene.quick(),
    )
    async with relay:
        await scene.put((1, "a"))
        await scene.put((1, "a"), topic="other")
        await until(letters.numbers)
        await until(scene.is_drained)
    assert letters.numbers() == [1]
    assert [(message.state, message.destination) for message in await scene.find(State.FAILED)] == [
        (State.FAILED, "other")
    ]


async def test_nothing_is_deleted_that_the_archive_did_not_take(scene: Scene) -> None:
    taken: list[Message] = []
    is_broken = True

    async def archive(messages: Sequence[Message]) -> None:
        if is_broken:
            raise OSError("the archive's disk is full")
        taken.extend(messages)

    retention = Retention(delivered=timedelta(0), every=timedelta(milliseconds=50))
    relay = Relay(
        scene.open_store(),
        [Destination(Script, DestinationSettings(name="sink"))],
        settings=scene.quick(retention=retention),
        archive=archive,
    )
    async with relay:
        await scene.put((1, "a"))
        await until(scene.is_drained)
        await asyncio.sleep(0.3)
        assert [m.state for m in await scene.find()] == [State.DELIVERED]
        is_broken = False
        await until(lambda: _is_empty(scene))
    assert [m.payload for m in taken] == [b"1"]


async def _is_empty(scene: Scene) -> bool:
    return not await scene.find()


async def test_a_sleeping_relay_is_woken_by_a_writer(scene: Scene) -> None:
    sink = Script()
    async with scene.relay(sink, settings=scene.quick(poll_interval=timedelta(seconds=300))):
        await scene.put((1, "a"))
        await until(lambda: sink.numbers() == [1])
        await asyncio.sleep(1.5)
        await scene.put((2, "a"))
        await until(lambda: sink.numbers() == [1, 2])


async def test_a_slow_destination_does_not_slow_or_fail_a_write(scene: Scene) -> None:
    sink = Script()
    sink.gate.clear()
    async with scene.relay(sink):
        await scene.put((0, "a"))
        await until(lambda: sink.under_way)
        for number in range(1, 50):
            await scene.put((number, "a"))
        assert len(await scene.find()) == 50
        sink.gate.set()
        await until(scene.is_drained)
    assert sink.numbers() == list(range(50))


async def test_once_delivers_what_is_there_and_returns(scene: Scene) -> None:
    sink = Script()
    await scene.put(*[(number, f"key-{number % 3}") for number in range(200)])
    await scene.relay(sink).run(once=True)
    assert sorted(sink.numbers()) == list(range(200))
    assert await scene.is_drained()


async def test_a_connection_that_breaks_under_a_batch_twice_sends_each_alone(scene: Scene) -> None:
    class Breaking(Script):
        broken = 0

        async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
            if any(m.payload == b"13" for m in messages) and len(messages) > 1:
                self.broken += 1
                raise TransportUnavailable("connection cut", mid_send=True)
            return await super().send(messages)

    sink = Breaking()
    await scene.put(*[(number, None) for number in range(20)])
    async with scene.relay(sink):
        await until(scene.is_drained, within=80)
    assert sorted(set(sink.numbers())) == list(range(20))
    assert {(m.state, m.attempts) for m in await scene.find()} == {(State.DELIVERED, 0)}
