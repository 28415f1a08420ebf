"""Sending again what failed, and what was delivered."""

from __future__ import annotations

from msgspec.structs import replace

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Claim, Moved, Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    MANY,
    NEAR,
    OTHER,
    SECOND,
    THIRD,
    close,
    everything,
    fail,
    hold,
    ids,
    own,
    put,
    settled,
    state_of,
    stored,
)

__all__ = ["RedrivingContract"]


async def _failed(harness: StoreHarness, *messages: Message) -> list[Message]:
    """The messages, failed, as stored."""
    found = await put(harness, *messages)
    fence = await own(harness.store, *{message.partition for message in messages})
    await settled(harness.store, fence, *(fail(message) for message in found))
    await harness.store.leave(fence.relay_id)
    return [await stored(harness.store, message) for message in found]


class RedrivingContract:
    """`Store.redrive` and `Store.replay`."""

    async def test_a_failed_message_goes_again(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _failed(harness, sample(key=NEAR))
        now = harness.clock.advance(HOUR)
        assert await store.redrive(Selection(ids=[failed.id]), by="ann", limit=MANY) == Moved(1, failed.id)
        expected = replace(failed, state=State.PENDING, waits=Waits.RETRY, available_at=now, attempts=0, status_at=now)
        assert await stored(store, failed) == expected
        assert expected.last_error == "HTTP 400"
        assert list(await store.read_due("orders", partitions=[LANE], limit=MANY)) == [expected]

    async def test_it_comes_back_as_due_and_never_as_fresh(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _failed(harness, sample(key=NEAR))
        reading = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        await store.redrive(Selection(), by="ann", limit=MANY)
        for cursor in (None, reading.cursor):
            assert list((await store.read("orders", partitions=[LANE], cursor=cursor, limit=MANY)).messages) == []
        blocked = await store.blocked_keys("orders", partitions=[LANE])
        assert [(key.partition, key.key) for key in blocked] == [(LANE, NEAR)]
        assert ids(await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)) == [failed.id]

    async def test_a_held_message_goes_again(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await settled(store, await own(store, LANE), hold(message))
        held = await stored(store, message)
        now = harness.clock.advance(HOUR)
        assert await store.redrive(Selection(ids=[held.id]), by="ann", limit=MANY) == Moved(1, held.id)
        assert await stored(store, message) == replace(
            held, state=State.PENDING, waits=Waits.RETRY, available_at=now, attempts=0, status_at=now
        )

    async def test_a_discarded_message_goes_again(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.discard(Selection(ids=[message.id]), by="ann", reason="no", limit=1)
        assert await store.redrive(Selection(ids=[message.id]), by="ann", limit=1) == Moved(1, message.id)
        assert await state_of(store, message) is State.PENDING

    async def test_a_skipped_message_needs_a_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, destination="_skipped"))
        fence = await own(store, LANE, destination="_skipped")
        await close(store, fence, message, State.SKIPPED)
        assert await store.redrive(Selection(), by="ann", limit=MANY) == Moved(0, 0)
        assert await store.redrive(Selection(), by="ann", limit=MANY, to="orders") == Moved(1, message.id)
        assert ids(await store.read_due("orders", partitions=[LANE], limit=MANY)) == [message.id]

    async def test_to_another_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _failed(harness, sample(key=NEAR))
        (message,) = await put(harness, sample(key=SECOND))
        await settled(store, await own(store, LANE), hold(message))
        held = await stored(store, message)
        assert (await store.redrive(Selection(), by="ann", limit=MANY, to="spare")).count == 2
        for before in (failed, held):
            after = await stored(store, before)
            assert (after.destination, after.partition, after.id) == ("spare", before.partition, before.id)
        assert list(await store.read_due("orders", partitions=[LANE], limit=MANY)) == []
        assert ids(await store.read_due("spare", partitions=[LANE], limit=MANY)) == ids([failed, held])

    async def test_other_states_are_not_touched(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        pending, sending, delivered, failed = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        await close(store, fence, delivered, State.DELIVERED)
        await settled(store, fence, fail(failed))
        await store.claim(fence, Claim(1, [sending.id]))
        before = [await stored(store, message) for message in (pending, sending, delivered)]
        assert (await store.redrive(Selection(), by="ann", limit=MANY)).count == 1
        assert [await stored(store, message) for message in (pending, sending, delivered)] == before

    async def test_redrives_go_in_id_order_in_batches(self, harness: StoreHarness) -> None:
        store = harness.store
        failed = await _failed(harness, *(sample(key=key) for key in (NEAR, FAR, SECOND, FAR, THIRD)))
        after, moved_ids = 0, []
        for expected in ([0, 1], [2, 3], [4]):
            moved = await store.redrive(Selection(after=after), by="ann", limit=2)
            assert moved == Moved(len(expected), failed[expected[-1]].id)
            after = moved.last_id
            moved_ids += [failed[place].id for place in expected]
            assert ids(await store.find(Selection(states=[State.PENDING]), limit=MANY)) == moved_ids
        assert await store.redrive(Selection(after=after), by="ann", limit=2) == Moved(0, after)

    async def test_open_and_closed_ones_go_in_one_order(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, third, fourth = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        fence = await own(store, LANE)
        await settled(store, fence, fail(first), hold(second), fail(third), hold(fourth))
        assert await store.redrive(Selection(), by="ann", limit=3) == Moved(3, third.id)
        states = [await state_of(store, message) for message in (first, second, third, fourth)]
        assert states == [State.PENDING, State.PENDING, State.PENDING, State.FAILED]

    async def test_pages_over_named_messages_end_without_an_error(self, harness: StoreHarness) -> None:
        failed = await _failed(harness, *(sample(key=NEAR) for _ in range(3)))
        named = Selection(ids=ids(failed))
        moved = await harness.store.redrive(named, by="ann", limit=2)
        moved = await harness.store.redrive(replace(named, after=moved.last_id), by="ann", limit=2)
        assert moved == Moved(1, failed[2].id)
        last = await harness.store.redrive(replace(named, after=moved.last_id), by="ann", limit=2)
        assert last == Moved(0, failed[2].id)

    async def test_a_selection_chooses(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, *others = await _failed(harness, sample(key=NEAR, topic="mine"), sample(key=NEAR), sample(key=FAR))
        moved = await store.redrive(Selection(topic="mine", states=[State.FAILED]), by="ann", limit=MANY)
        assert moved == Moved(1, mine.id)
        assert [await stored(store, other) for other in others] == others
        assert await store.redrive(Selection(states=[State.DISCARDED]), by="ann", limit=MANY) == Moved(0, 0)

    async def test_nothing_selected_is_nothing_done(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        before = await everything(harness.store)
        assert await harness.store.redrive(Selection(topic="none"), by="ann", limit=MANY) == Moved(0, 0)
        assert await harness.store.replay(Selection(after=17), by="ann", limit=MANY) == Moved(0, 17)
        assert await everything(harness.store) == before

    async def test_by_message_id_it_reaches_every_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        first = sample(key=NEAR)
        copies = await put(harness, first, sample(key=NEAR, destination="billing", message_id=first.message_id))
        for copy in copies:
            await settled(store, await own(store, LANE, destination=copy.destination), fail(copy))
        moved = await store.redrive(Selection(message_ids=[first.message_id]), by="ann", limit=MANY)
        assert moved == Moved(2, copies[1].id)

    async def test_a_redriven_message_can_be_delivered(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _failed(harness, sample(key=NEAR))
        await store.redrive(Selection(), by="ann", limit=MANY)
        closed = await close(store, await own(store, LANE), failed, State.DELIVERED)
        assert (closed.state, closed.attempts, closed.payload) == (State.DELIVERED, 0, failed.payload)
        assert len(await store.find(Selection(), limit=MANY)) == 1

    async def test_a_delivered_message_is_replayed(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed = await put(harness, sample(key=NEAR), sample(key=FAR))
        fence = await own(store, LANE, OTHER)
        delivered = await close(store, fence, delivered, State.DELIVERED)
        failed = await close(store, fence, failed, State.FAILED)
        now = harness.clock.advance(HOUR)
        assert await store.replay(Selection(), by="ann", limit=MANY) == Moved(1, delivered.id)
        assert await stored(store, delivered) == replace(
            delivered, state=State.PENDING, waits=Waits.RETRY, available_at=now, attempts=0, status_at=now
        )
        assert await stored(store, failed) == failed

    async def test_replays_go_in_id_order_in_batches(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, FAR, SECOND)))
        fence = await own(store, LANE, OTHER)
        for message in reversed(messages):
            await close(store, fence, message, State.DELIVERED)
        assert await store.replay(Selection(), by="ann", limit=2) == Moved(2, messages[1].id)
        assert ids(await store.find(Selection(states=[State.PENDING]), limit=MANY)) == ids(messages[:2])
        assert await store.replay(Selection(after=messages[1].id), by="ann", limit=2) == Moved(1, messages[2].id)
