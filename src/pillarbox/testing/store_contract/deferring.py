"""Letting messages wait until a time that a person chose."""

from __future__ import annotations

from msgspec.structs import replace

from pillarbox.message import State, Waits
from pillarbox.protocols import Claim, Moved, Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    SECOND,
    THIRD,
    close,
    everything,
    hold,
    ids,
    own,
    park,
    put,
    retry,
    settled,
    stored,
)

__all__ = ["DeferringContract"]


class DeferringContract:
    """`Store.defer`."""

    async def test_pending_messages_wait_until_then(self, harness: StoreHarness) -> None:
        store = harness.store
        fresh, retrying, deferred = await put(
            harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD, available_at=harness.clock.now())
        )
        await settled(store, await own(store, LANE), retry(retrying, attempts=3))
        before = [await stored(store, message) for message in (fresh, retrying, deferred)]
        now = harness.clock.advance(LEASE)
        until = now + HOUR
        moved = await store.defer(Selection(), until=until, by="ann", limit=MANY)
        assert moved == Moved(3, deferred.id)
        assert [await stored(store, message) for message in (fresh, retrying, deferred)] == [
            replace(message, waits=Waits.RETRY, available_at=until, status_at=now) for message in before
        ]

    async def test_the_key_waits_with_it(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.defer(Selection(ids=[message.id]), until=harness.clock.now() + HOUR, by="ann", limit=1)
        blocked = await store.blocked_keys("orders", partitions=[LANE])
        assert [(key.partition, key.key) for key in blocked] == [(LANE, NEAR)]
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
        assert list(await store.read_due("orders", partitions=[LANE], limit=MANY)) == []
        harness.clock.advance(HOUR)
        assert ids(await store.read_due("orders", partitions=[LANE], limit=MANY)) == [message.id]

    async def test_others_are_left_alone(self, harness: StoreHarness) -> None:
        """Parked ones wait for their head, held ones for a person, claimed ones for an answer."""
        store = harness.store
        fence = await own(store, LANE)
        parked, held, sending, delivered = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR)))
        await settled(store, fence, hold(held))
        await park(store, fence, parked)
        await close(store, fence, delivered, State.DELIVERED)
        await store.claim(fence, Claim(1, [sending.id]))
        before = await everything(store)
        moved = await store.defer(Selection(), until=harness.clock.now() + HOUR, by="ann", limit=MANY)
        assert moved == Moved(0, 0)
        assert await everything(store) == before

    async def test_deferrals_go_in_id_order_in_batches(self, harness: StoreHarness) -> None:
        store, until = harness.store, harness.clock.now() + HOUR
        messages = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        assert await store.defer(Selection(), until=until, by="ann", limit=2) == Moved(2, messages[1].id)
        waits = [message.waits for message in await store.find(Selection(), limit=MANY)]
        assert waits == [Waits.RETRY, Waits.RETRY, None]
        after = messages[1].id
        assert await store.defer(Selection(after=after), until=until, by="ann", limit=2) == Moved(1, messages[2].id)

    async def test_a_selection_of_other_states_defers_nothing(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        selection = Selection(states=[State.FAILED, State.SENDING])
        moved = await harness.store.defer(selection, until=harness.clock.now() + HOUR, by="ann", limit=MANY)
        assert moved == Moved(0, 0)
        assert await stored(harness.store, message) == message
