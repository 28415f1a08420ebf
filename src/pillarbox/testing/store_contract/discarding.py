"""Closing messages without sending them."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from pillarbox.errors import NoSuchMessage
from pillarbox.message import State
from pillarbox.protocols import Claim, Moved, Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    MANY,
    NEAR,
    SECOND,
    THIRD,
    close,
    everything,
    fail,
    hold,
    ids,
    own,
    park,
    put,
    retry,
    settled,
    state_of,
    stored,
)

__all__ = ["DiscardingContract"]


class DiscardingContract:
    """`Store.discard`."""

    async def test_whatever_waits_can_be_discarded(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        fresh, retrying, parked, held, deferred = await put(
            harness,
            *(sample(key=key) for key in (NEAR, SECOND, SECOND, THIRD)),
            sample(key=NEAR, available_at=harness.clock.now() + HOUR),
        )
        await settled(store, fence, retry(retrying, attempts=3), hold(held))
        await park(store, fence, parked)
        everyone = [fresh, retrying, parked, held, deferred]
        before = [await stored(store, message) for message in everyone]
        now = harness.clock.advance(HOUR)
        moved = await store.discard(Selection(), by="ann", reason="wrong price", limit=MANY)
        assert moved == Moved(5, deferred.id)
        assert [await stored(store, message) for message in everyone] == [
            replace(message, state=State.DISCARDED, waits=None, last_error="wrong price", status_at=now)
            for message in before
        ]
        assert list(await store.blocked_keys("orders", partitions=[LANE])) == []
        assert await store.next_due("orders", partitions=[LANE]) is None

    async def test_a_failed_message_can_be_discarded(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        failed = await close(store, await own(store, LANE), message, State.FAILED)
        now = harness.clock.advance(HOUR)
        assert await store.discard(Selection(ids=[failed.id]), by="ann", reason="no", limit=1) == Moved(1, failed.id)
        assert await stored(store, failed) == replace(failed, state=State.DISCARDED, last_error="no", status_at=now)

    async def test_what_a_relay_has_in_hand_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        sending, pending = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, [sending.id]))
        assert await store.discard(Selection(), by="ann", reason="no", limit=MANY) == Moved(1, pending.id)
        assert await state_of(store, sending) is State.SENDING

    async def test_what_is_over_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, discarded, skipped = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await close(store, fence, delivered, State.DELIVERED)
        await close(store, fence, skipped, State.SKIPPED)
        await store.discard(Selection(ids=[discarded.id]), by="ann", reason="first", limit=1)
        before = await everything(store)
        assert await store.discard(Selection(), by="bob", reason="second", limit=MANY) == Moved(0, 0)
        assert await everything(store) == before

    async def test_batches_go_in_id_order_open_and_closed_together(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, third = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        await settled(store, await own(store, LANE), fail(second))
        moved = await store.discard(Selection(), by="ann", reason="no", limit=2)
        assert moved == Moved(2, second.id)
        assert ids(await store.find(Selection(states=[State.DISCARDED]), limit=MANY)) == ids([first, second])
        assert await store.discard(Selection(after=second.id), by="ann", reason="no", limit=2) == Moved(1, third.id)

    async def test_a_selection_chooses_by_state(self, harness: StoreHarness) -> None:
        store = harness.store
        pending, failed, held = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settled(store, await own(store, LANE), fail(failed), hold(held))
        moved = await store.discard(Selection(states=[State.FAILED]), by="ann", reason="no", limit=MANY)
        assert moved == Moved(2, held.id)
        assert await state_of(store, pending) is State.PENDING

    async def test_no_ids_are_no_messages(self, harness: StoreHarness) -> None:
        """An empty list is a condition that nothing meets, not one that is missing."""
        await put(harness, sample(key=NEAR))
        before = await everything(harness.store)
        for selection in (Selection(ids=[]), Selection(message_ids=[]), Selection(states=[])):
            with suppress(NoSuchMessage):
                moved = await harness.store.discard(selection, by="ann", reason="no", limit=MANY)
                assert moved == Moved(0, 0)
        assert await everything(harness.store) == before
