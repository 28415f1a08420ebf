"""What was in a dead relay's hands comes into the new owner's, with one strike more."""

from __future__ import annotations

from collections.abc import Sequence

from pillarbox.message import State
from pillarbox.protocols import Claim, Fence, Inherited, Settlement, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    FAR,
    LANE,
    LEASE,
    NEAR,
    OTHER,
    SECOND,
    THIRD,
    ids,
    own,
    put,
    retry,
    settled,
    state_of,
    stored,
)

__all__ = ["InheritingContract"]


async def _heir(
    store: Store, *partitions: int, claim_number: int = 1, relay: Fence | None = None
) -> tuple[Fence, Sequence[Inherited]]:
    info = sample_relay(relay_id=None if relay is None else relay.relay_id)
    if relay is None:
        await store.register(info, lease=LEASE)
    lanes, inherited = await store.take(
        info.relay_id, "orders", partitions=partitions, lease=LEASE, claim_number=claim_number
    )
    assert {lane.partition for lane in lanes} == set(partitions)
    return Fence(info.relay_id, "orders", {lane.partition: lane.epoch for lane in lanes}), inherited


def _told(inherited: Sequence[Inherited]) -> list[tuple[int, int, list[int]]]:
    """Number, strikes and ids of each claim, fewest strikes first."""
    for one in inherited:
        assert ids(one.messages) == sorted(one.claim.message_ids)
    return sorted(
        ((one.claim.number, one.claim.strikes, sorted(one.claim.message_ids)) for one in inherited),
        key=lambda told: told[1],
    )


class InheritingContract:
    """What `Store.take` hands on."""

    async def test_claimed_messages_are_inherited_with_one_strike(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, free = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await store.claim(await own(store, LANE), Claim(4, [second.id, first.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE, claim_number=7)
        assert _told(inherited) == [(7, 1, [first.id, second.id])]
        assert await state_of(store, first) is State.SENDING
        assert await state_of(store, free) is State.PENDING

    async def test_an_inherited_message_is_whole(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}, subject="s", causation_id="c"))
        fence = await own(store, LANE)
        await settled(store, fence, retry(message, attempts=2))
        waiting = await stored(store, message)
        await store.claim(fence, Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        _, (inherited,) = await _heir(store, LANE)
        (whole,) = inherited.messages
        assert [getattr(whole, name) for name in whole.__struct_fields__ if name != "state"] == [
            getattr(waiting, name) for name in waiting.__struct_fields__ if name != "state"
        ]

    async def test_the_heir_may_settle_what_it_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, ids([first, second])))
        harness.clock.advance(LEASE)
        heir, _ = await _heir(store, LANE, claim_number=5)
        await store.settle(heir, Settlement(delivered=[first.id], returned=[second.id], finished=[5]))
        assert await state_of(store, first) is State.DELIVERED
        assert await state_of(store, second) is State.PENDING

    async def test_what_was_settled_is_not_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, returned, kept = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, ids([delivered, returned, kept])))
        await store.settle(fence, Settlement(delivered=[delivered.id], returned=[returned.id], touched=[1]))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE)
        assert _told(inherited) == [(1, 1, [kept.id])]

    async def test_what_closed_is_not_inherited_though_its_claim_still_names_it(self, harness: StoreHarness) -> None:
        store = harness.store
        closed, open_ = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, ids([closed, open_])))
        await store.settle(fence, Settlement(delivered=[closed.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE)
        assert _told(inherited) == [(1, 1, [open_.id])]
        assert await state_of(store, closed) is State.DELIVERED

    async def test_strikes_add_up(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for strikes in (1, 2, 3):
            await store.claim(fence, Claim(9, [message.id], strikes - 1))
            harness.clock.advance(LEASE)
            fence, inherited = await _heir(store, LANE)
            assert _told(inherited) == [(1, strikes, [message.id])]
            await store.settle(fence, Settlement(returned=[message.id], finished=[1]))

    async def test_an_heir_that_dies_before_it_claimed_anew_adds_no_strike(self, harness: StoreHarness) -> None:
        """It had sent nothing: whatever killed it, these did not."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id], strikes=1))
        for _ in range(3):
            harness.clock.advance(LEASE)
            _, inherited = await _heir(store, LANE)
            assert _told(inherited) == [(1, 2, [message.id])]

    async def test_a_message_in_two_claims_is_inherited_once_with_the_most_strikes(self, harness: StoreHarness) -> None:
        """A relay that is to send it alone claims it anew before it leaves the old claim."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id], strikes=1))
        await store.claim(fence, Claim(2, [message.id], strikes=2))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE)
        assert _told(inherited) == [(1, 3, [message.id])]

    async def test_one_claim_per_count_of_strikes(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR, SECOND)))
        fence = await own(store, LANE)
        one, two, three, four, five = ids(messages)
        await store.claim(fence, Claim(1, [three], strikes=2))
        await store.claim(fence, Claim(2, [one]))
        await store.claim(fence, Claim(3, [five, two]))
        await store.claim(fence, Claim(4, [four], strikes=2))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE, claim_number=10)
        told = _told(inherited)
        assert [(strikes, of_them) for _, strikes, of_them in told] == [(1, [one, two, five]), (3, [three, four])]
        assert sorted(number for number, _, _ in told) == [10, 11]

    async def test_several_dead_owners_are_inherited_together(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        await store.claim(await own(store, LANE), Claim(1, [near.id]))
        await store.claim(await own(store, OTHER), Claim(1, [far.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE, OTHER, claim_number=3)
        assert _told(inherited) == [(3, 1, [near.id, far.id])]

    async def test_each_heir_inherits_its_own_lanes(self, harness: StoreHarness) -> None:
        """One claim spans two lanes; the relay's row goes with the first, and the second heir still gets its part."""
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        await store.claim(await own(store, LANE, OTHER), Claim(1, [near.id, far.id]))
        harness.clock.advance(LEASE)
        _, first = await _heir(store, LANE)
        assert _told(first) == [(1, 1, [near.id])]
        assert await state_of(store, far) is State.SENDING
        _, second = await _heir(store, OTHER)
        assert _told(second) == [(1, 1, [far.id])]

    async def test_the_same_lane_of_another_destination_is_not_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        near, billed = await put(harness, sample(key=NEAR), sample(key=NEAR, destination="billing"))
        dead = await own(store, LANE)
        billing = await own(store, LANE, relay_id=dead.relay_id, destination="billing")
        await store.claim(dead, Claim(1, [near.id]))
        await store.claim(billing, Claim(2, [billed.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _heir(store, LANE)
        assert _told(inherited) == [(1, 1, [near.id])]

    async def test_repeating_a_take_returns_the_same_without_a_strike(self, harness: StoreHarness) -> None:
        """The answer to the first may have been lost; the relay must still learn what it holds."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        heir, first = await _heir(store, LANE)
        _, second = await _heir(store, LANE, relay=heir)
        assert _told(second) == _told(first) == [(1, 1, [message.id])]

    async def test_an_inheritance_survives_a_restart(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        store = await harness.restart()
        _, inherited = await _heir(store, LANE)
        assert _told(inherited) == [(1, 1, [message.id])]
        assert await state_of(await harness.restart(), message) is State.SENDING
