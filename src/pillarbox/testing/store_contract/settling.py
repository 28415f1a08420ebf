"""Outcomes: what closes, what waits, what goes back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pillarbox.errors import IllegalTransition
from pillarbox.message import State, Waits
from pillarbox.protocols import Claim, Selection, Settlement, Trouble
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    OTHER,
    SECOND,
    THIRD,
    close,
    everything,
    fail,
    hold,
    own,
    park,
    put,
    retry,
    settled,
    state_of,
    stored,
)

__all__ = ["SettlingContract"]


class SettlingContract:
    """`Store.settle`."""

    async def test_a_delivered_message_closes(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        closed = await close(store, fence, message, State.DELIVERED)
        assert closed == replace(message, state=State.DELIVERED, status_at=now)
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
        assert list(await store.journal()) == []

    async def test_a_delivered_message_keeps_what_was_spent_on_it(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settled(store, fence, retry(message, attempts=2, error="HTTP 500"))
        waiting = await stored(store, message)
        now = harness.clock.advance(LEASE)
        closed = await close(store, fence, message, State.DELIVERED)
        assert closed == replace(waiting, state=State.DELIVERED, waits=None, status_at=now)
        assert (closed.attempts, closed.last_error, closed.available_at) == (2, "HTTP 500", now)

    async def test_a_parked_message_closes_without_a_time(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, third = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        fence = await own(store, LANE)
        await park(store, fence, first, second, third)
        await close(store, fence, first, State.DELIVERED)
        await close(store, fence, second, State.FAILED)
        await close(store, fence, third, State.DISCARDED)
        for message in (first, second, third):
            closed = await stored(store, message)
            assert (closed.waits, closed.available_at) == (None, None)

    async def test_a_retry_waits_with_its_error(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        await settled(store, fence, retry(message, delay=LEASE, attempts=3, error="HTTP 503 ü"))
        assert await stored(store, message) == replace(
            message, waits=Waits.RETRY, available_at=now + LEASE, attempts=3, last_error="HTTP 503 ü", status_at=now
        )

    async def test_a_deferral_waits_and_spends_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        trouble = Trouble(message_id=message.id, state=State.PENDING, waits=Waits.DEFERRED, delay=HOUR)
        await settled(store, fence, trouble)
        assert await stored(store, message) == replace(
            message, waits=Waits.DEFERRED, available_at=now + HOUR, status_at=now
        )

    async def test_a_held_message_stays_open_and_is_shown_as_failed(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settled(store, fence, retry(message))
        now = harness.clock.advance(LEASE)
        await settled(store, fence, hold(message, attempts=5, error="HTTP 400"))
        assert await stored(store, message) == replace(
            message, state=State.FAILED, waits=Waits.HELD, attempts=5, last_error="HTTP 400", status_at=now
        )

    async def test_a_trouble_may_park(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now()))
        fence = await own(store, LANE)
        now = harness.clock.advance(LEASE / 2)
        await settled(store, fence, Trouble(message_id=message.id, state=State.PENDING, waits=Waits.PARKED))
        assert await stored(store, message) == replace(message, waits=Waits.PARKED, available_at=None, status_at=now)
        assert list(await store.journal()) == []

    async def test_a_failed_message_closes_with_its_error_and_attempts(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        await settled(store, fence, fail(message, attempts=4, error="HTTP 422"))
        assert await stored(store, message) == replace(
            message, state=State.FAILED, attempts=4, last_error="HTTP 422", status_at=now
        )

    async def test_skipped_and_discarded_close_too(self, harness: StoreHarness) -> None:
        store = harness.store
        skipped, discarded = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        for message, state in ((skipped, State.SKIPPED), (discarded, State.DISCARDED)):
            await store.settle(fence, Settlement(troubles=[Trouble(message_id=message.id, state=state, error="why")]))
            assert await stored(store, message) == replace(message, state=state, last_error="why", status_at=now)

    async def test_a_returned_message_is_as_it_was(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        harness.clock.advance(HOUR)
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        assert await stored(store, message) == message

    async def test_a_returned_retry_is_still_a_retry(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settled(store, fence, retry(message))
        waiting = await stored(store, message)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        assert await stored(store, message) == waiting

    async def test_a_touched_claim_keeps_the_rest(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed, returned, kept = await put(
            harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD), sample(key=FAR)
        )
        fence = await own(store, LANE, OTHER)
        await store.claim(fence, Claim(1, [delivered.id, failed.id, returned.id, kept.id]))
        await store.settle(
            fence,
            Settlement(delivered=[delivered.id], troubles=[retry(failed)], returned=[returned.id], touched=[1]),
        )
        states = [await state_of(store, message) for message in (delivered, failed, returned, kept)]
        assert states == [State.DELIVERED, State.PENDING, State.PENDING, State.SENDING]

    async def test_several_claims_are_settled_together(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, kept = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [first.id]))
        await store.claim(fence, Claim(2, [second.id, kept.id]))
        await store.settle(fence, Settlement(delivered=[first.id, second.id], finished=[1], touched=[2]))
        states = [await state_of(store, message) for message in (first, second, kept)]
        assert states == [State.DELIVERED, State.DELIVERED, State.SENDING]

    async def test_settling_leaves_the_claims_of_others_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        mine, theirs = await own(store, LANE), await own(store, OTHER)
        await store.claim(mine, Claim(1, [near.id]))
        await store.claim(theirs, Claim(1, [far.id]))
        await store.settle(mine, Settlement(delivered=[near.id], finished=[1]))
        assert await state_of(store, far) is State.SENDING

    async def test_trouble_is_durable(self, harness: StoreHarness) -> None:
        retrying, failed, held = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settled(harness.store, await own(harness.store, LANE), retry(retrying), fail(failed), hold(held))
        before = await harness.store.find(Selection(), limit=MANY)
        assert list(await (await harness.restart()).find(Selection(), limit=MANY)) == list(before)

    async def test_repeating_a_settlement_that_closed_changes_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed, returned = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [delivered.id, failed.id, returned.id]))
        settlement = Settlement(delivered=[delivered.id], troubles=[fail(failed)], returned=[returned.id], finished=[1])
        await store.settle(fence, settlement)
        before = await everything(store)
        await store.settle(fence, settlement)
        assert await everything(store) == before
        harness.clock.advance(LEASE / 2)
        await store.settle(fence, settlement)
        assert (await everything(store))[:2] == before[:2]

    async def test_repeating_a_settlement_that_waits_changes_no_message(self, harness: StoreHarness) -> None:
        store = harness.store
        retrying, held = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [retrying.id, held.id]))
        settlement = Settlement(troubles=[retry(retrying), hold(held)], finished=[1])
        await store.settle(fence, settlement)
        before = await store.find(Selection(), limit=MANY)
        await store.settle(fence, settlement)
        assert list(await store.find(Selection(), limit=MANY)) == list(before)

    async def test_what_is_no_longer_open_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed, discarded = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await close(store, fence, delivered, State.DELIVERED)
        await close(store, fence, failed, State.FAILED)
        await store.discard(Selection(ids=[discarded.id]), by="ann", reason="no", limit=1)
        before = await everything(store)
        await store.settle(fence, Settlement(delivered=[failed.id, discarded.id], troubles=[fail(delivered)]))
        await store.settle(fence, Settlement(troubles=[retry(delivered), hold(failed), retry(discarded)]))
        assert await everything(store) == before

    async def test_unknown_ids_and_claims_are_no_error(self, harness: StoreHarness) -> None:
        store = harness.store
        await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        before = await everything(store)
        unknown = Trouble(message_id=4712, state=State.FAILED, attempts=1, error="x")
        await store.settle(
            fence,
            Settlement(delivered=[4711], troubles=[unknown], returned=[4713], finished=[9], touched=[10]),
        )
        assert await everything(store) == before

    async def test_a_settlement_reaches_only_the_lanes_it_proves(self, harness: StoreHarness) -> None:
        store = harness.store
        far, billed, retried = await put(
            harness, sample(key=FAR), sample(key=NEAR, destination="billing"), sample(key=FAR)
        )
        fence = await own(store, LANE)
        await store.settle(fence, Settlement(delivered=[far.id, billed.id], troubles=[retry(retried)]))
        for message in (far, billed, retried):
            assert await stored(store, message) == message
        assert list(await store.journal()) == []

    async def test_no_outcome_of_an_undelivered_message_is_refused(self, harness: StoreHarness) -> None:
        """Delivered, sending, pending without a reason: refused by name, and nothing of the settlement is written."""
        store = harness.store
        message, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id, other.id]))
        before = await everything(store)
        for state in (State.DELIVERED, State.SENDING, State.PENDING):
            wrong = Trouble(message_id=message.id, state=state)
            with pytest.raises(IllegalTransition) as refused:
                await store.settle(fence, Settlement(delivered=[other.id], troubles=[wrong], finished=[1]))
            assert f"{message.id}" in str(refused.value)
            assert State.SENDING in str(refused.value)
            assert state in str(refused.value)
            assert await everything(store) == before
