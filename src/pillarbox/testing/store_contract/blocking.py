"""Which keys are blocked, and what waits in them."""

from __future__ import annotations

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import BlockedKey, Fence, Settlement, Store
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
    fail,
    hold,
    ids,
    own,
    park,
    put,
    retry,
    settled,
    stored,
)

__all__ = ["BlockingContract"]


def _keyless(partition: int) -> Message:
    while (message := sample(key=None)).partition != partition:
        pass
    return message


async def _blocked(store: Store, *partitions: int) -> list[tuple[int, str]]:
    keys = await store.blocked_keys("orders", partitions=partitions or [LANE])
    return sorted((key.partition, key.key) for key in keys)


async def _queue(harness: StoreHarness, fence: Fence) -> list[Message]:
    """A retrying head, two parked behind it and a held one, all of one key; and others in between."""
    head, _, first, second, held = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, NEAR, NEAR)))
    await settled(harness.store, fence, retry(head), hold(held))
    await park(harness.store, fence, first, second)
    return [head, first, second, held]


class BlockingContract:
    """`Store.blocked_keys` and `Store.read_key`."""

    async def test_retrying_parked_and_held_messages_block_their_key(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        retrying, held, parked = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settled(store, fence, retry(retrying))
        assert await _blocked(store) == [(LANE, NEAR)]
        await settled(store, fence, hold(held))
        assert await _blocked(store) == sorted([(LANE, NEAR), (LANE, SECOND)])
        await park(store, fence, parked)
        assert await _blocked(store) == sorted([(LANE, NEAR), (LANE, SECOND), (LANE, THIRD)])

    async def test_a_blocked_key_says_what_its_first_message_waits_for(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        queue = await _queue(harness, fence)
        for number, waits in enumerate((Waits.RETRY, Waits.PARKED, Waits.PARKED, Waits.HELD), start=1):
            (blocked,) = await store.blocked_keys("orders", partitions=[LANE])
            assert blocked == BlockedKey(LANE, NEAR, waits)
            assert isinstance(blocked.front, Waits)
            await close(store, fence, queue[number - 1], State.DELIVERED, number=number)

    async def test_fresh_deferred_and_closed_messages_do_not_block(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        _, failed, *_ = await put(
            harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD, available_at=harness.clock.now() + HOUR)
        )
        await settled(store, fence, fail(failed))
        assert await _blocked(store) == []

    async def test_a_due_retry_still_blocks(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await settled(harness.store, await own(harness.store, LANE), retry(message))
        harness.clock.advance(HOUR)
        assert await _blocked(harness.store) == [(LANE, NEAR)]

    async def test_a_key_is_named_once_however_many_wait(self, harness: StoreHarness) -> None:
        await _queue(harness, await own(harness.store, LANE))
        assert await _blocked(harness.store) == [(LANE, NEAR)]

    async def test_keyless_messages_block_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        retrying, held, parked, keyed = await put(
            harness, _keyless(LANE), _keyless(LANE), _keyless(LANE), sample(key=NEAR)
        )
        await settled(store, fence, retry(retrying), hold(held), retry(keyed))
        await park(store, fence, parked)
        assert await _blocked(store) == [(LANE, NEAR)]

    async def test_blocked_keys_keep_to_their_destination_and_lanes(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far, billed = await put(
            harness, sample(key=NEAR), sample(key=FAR), sample(key=SECOND, destination="billing")
        )
        await settled(store, await own(store, LANE, OTHER), retry(near), retry(far))
        await settled(store, await own(store, LANE, destination="billing"), retry(billed))
        assert await _blocked(store, LANE) == [(LANE, NEAR)]
        assert await _blocked(store, OTHER) == [(OTHER, FAR)]
        assert await _blocked(store, LANE, OTHER) == sorted([(LANE, NEAR), (OTHER, FAR)])

    async def test_a_key_is_free_when_its_last_blocked_message_closes(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        queue = await _queue(harness, fence)
        for number, message in enumerate(queue, start=1):
            assert await _blocked(store) == [(LANE, NEAR)]
            await close(store, fence, message, State.DELIVERED, number=number)
        assert await _blocked(store) == []

    async def test_unusual_keys_block_like_others(self, harness: StoreHarness) -> None:
        store = harness.store
        for key in ("", " ", "ä\U0001f4ee", "%", "a'b\"c\\"):
            (message,) = await put(harness, sample(key=key))
            fence = await own(store, message.partition, destination="orders")
            await settled(store, fence, retry(message))
            assert (message.partition, key) in await _blocked(store, message.partition)
            found = await store.read_key("orders", partition=message.partition, key=key, after=0, limit=MANY)
            assert ids(found) == [message.id]
            await store.leave(fence.relay_id)

    async def test_the_messages_of_a_key_come_in_id_order(self, harness: StoreHarness) -> None:
        queue = await _queue(harness, await own(harness.store, LANE))
        found = await harness.store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)
        assert ids(found) == ids(queue)
        assert [message.waits for message in found] == [Waits.RETRY, Waits.PARKED, Waits.PARKED, Waits.HELD]

    async def test_a_key_is_read_above_an_id_and_up_to_a_limit(self, harness: StoreHarness) -> None:
        head, first, second, held = await _queue(harness, await own(harness.store, LANE))
        for after, limit, expected in ((0, 2, [head, first]), (head.id, 2, [first, second]), (second.id, 9, [held])):
            found = await harness.store.read_key("orders", partition=LANE, key=NEAR, after=after, limit=limit)
            assert ids(found) == ids(expected)
        assert list(await harness.store.read_key("orders", partition=LANE, key=NEAR, after=held.id, limit=9)) == []

    async def test_a_key_shows_neither_fresh_nor_deferred_messages(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR), sample(key=NEAR, available_at=harness.clock.now()))
        assert list(await harness.store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)) == []

    async def test_a_key_shows_no_other_key_of_its_lane(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settled(store, await own(store, LANE), retry(mine), retry(other))
        found = await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)
        assert ids(found) == [mine.id]

    async def test_a_key_keeps_to_its_destination(self, harness: StoreHarness) -> None:
        await _queue(harness, await own(harness.store, LANE))
        assert list(await harness.store.read_key("billing", partition=LANE, key=NEAR, after=0, limit=MANY)) == []

    async def test_a_message_of_a_key_is_whole(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}, subject="s"))
        await settled(store, fence, retry(message))
        found = await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)
        assert list(found) == [await stored(store, message)]

    async def test_the_rest_goes_on_when_the_head_closes(self, harness: StoreHarness) -> None:
        """Nothing is rewritten: the parked ones are read from their key, as they were."""
        store = harness.store
        fence = await own(store, LANE)
        head, first, second, held = await _queue(harness, fence)
        before = await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)
        await close(store, fence, head, State.DELIVERED)
        after = await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)
        assert list(after) == list(before)[1:]
        await store.settle(fence, Settlement(delivered=ids([first, second, held])))
        assert list(await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)) == []
