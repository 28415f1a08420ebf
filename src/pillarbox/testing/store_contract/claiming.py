"""A batch in a relay's hands, and what waits behind it."""

from __future__ import annotations

from msgspec.structs import replace

from pillarbox.message import State, Waits
from pillarbox.protocols import Claim, Selection, Settlement
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    SECOND,
    everything,
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

__all__ = ["ClaimingContract"]


class ClaimingContract:
    """`Store.claim`."""

    async def test_a_claimed_message_is_sending_and_otherwise_unchanged(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        harness.clock.advance(HOUR)
        await store.claim(await own(store, LANE), Claim(1, [mine.id]))
        assert await stored(store, mine) == replace(mine, state=State.SENDING)
        assert await stored(store, other) == other

    async def test_a_claim_survives_a_restart(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [message.id]))
        assert await state_of(await harness.restart(), message) is State.SENDING

    async def test_a_relay_may_have_several_claims(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [first.id]))
        await store.claim(fence, Claim(2, [second.id]))
        await store.settle(fence, Settlement(returned=[first.id], finished=[1]))
        assert await state_of(store, first) is State.PENDING
        assert await state_of(store, second) is State.SENDING

    async def test_two_relays_may_use_the_same_number(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        mine, theirs = await own(store, LANE), await own(store, far.partition)
        await store.claim(mine, Claim(1, [near.id]))
        await store.claim(theirs, Claim(1, [far.id]))
        await store.settle(mine, Settlement(returned=[near.id], finished=[1]))
        assert await state_of(store, near) is State.PENDING
        assert await state_of(store, far) is State.SENDING

    async def test_repeating_a_claim_changes_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, waiting, other = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, SECOND)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [mine.id]), park=[waiting.id])
        before = await everything(store)
        harness.clock.advance(LEASE / 2)
        await store.claim(fence, Claim(1, [mine.id]), park=[waiting.id])
        await store.claim(fence, Claim(1, [other.id]))
        assert (await everything(store))[0] == before[0]

    async def test_a_repeated_claim_is_let_go_by_one_settle(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for _ in range(2):
            await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        assert await state_of(store, message) is State.PENDING

    async def test_parking_sets_a_fresh_message_aside(self, harness: StoreHarness) -> None:
        store = harness.store
        head, waiting = await put(harness, sample(key=NEAR), sample(key=NEAR))
        now = harness.clock.advance(HOUR)
        await store.claim(await own(store, LANE), Claim(1, [head.id]), park=[waiting.id])
        assert await stored(store, waiting) == replace(waiting, waits=Waits.PARKED, status_at=now)
        assert await state_of(store, head) is State.SENDING

    async def test_parking_alone_claims_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, []), park=[message.id])
        parked = await stored(store, message)
        assert (parked.state, parked.waits) == (State.PENDING, Waits.PARKED)

    async def test_a_message_is_parked_once(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await park(store, fence, message)
        parked = await stored(store, message)
        harness.clock.advance(LEASE / 2)
        await park(store, fence, message, number=3)
        assert await stored(store, message) == parked

    async def test_a_deferred_message_is_parked_too(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now()))
        now = harness.clock.advance(HOUR)
        await park(store, await own(store, LANE), message)
        assert await stored(store, message) == replace(message, waits=Waits.PARKED, available_at=None, status_at=now)
        assert list(await store.read_due("orders", partitions=[LANE], limit=MANY)) == []

    async def test_what_retries_or_is_held_is_not_parked(self, harness: StoreHarness) -> None:
        store = harness.store
        retrying, held = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await settled(store, fence, retry(retrying), hold(held))
        before = await store.find(Selection(), limit=MANY)
        await park(store, fence, retrying, held)
        assert list(await store.find(Selection(), limit=MANY)) == list(before)

    async def test_an_empty_claim_leaves_its_number_free(self, harness: StoreHarness) -> None:
        """It only parks, so there is nothing to record; the number can still be used."""
        store = harness.store
        message, parked = await put(harness, sample(key=NEAR), sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, []), park=[parked.id])
        await store.claim(fence, Claim(1, [message.id]))
        assert await state_of(store, message) is State.SENDING

    async def test_parking_leaves_no_line_in_the_journal(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await park(harness.store, await own(harness.store, LANE), message)
        assert list(await harness.store.journal()) == []

    async def test_a_parked_message_is_still_there(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        await park(harness.store, await own(harness.store, LANE), *messages)
        found = await harness.store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)
        assert ids(found) == ids(messages)

    async def test_a_claim_on_what_does_not_exist_invents_nothing(self, harness: StoreHarness) -> None:
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [4711]), park=[4712])
        assert list(await harness.store.find(Selection(), limit=MANY)) == []

    async def test_a_claim_parks_nothing_outside_its_lanes(self, harness: StoreHarness) -> None:
        store = harness.store
        far, billed = await put(harness, sample(key=FAR), sample(key=NEAR, destination="billing"))
        await park(store, await own(store, LANE), far, billed)
        assert [await stored(store, far), await stored(store, billed)] == [far, billed]
