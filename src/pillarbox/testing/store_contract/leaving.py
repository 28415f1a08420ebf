"""How lanes are given up, and what is tidied after the dead."""

from __future__ import annotations

from pillarbox.message import State
from pillarbox.protocols import Claim, Selection, Settlement, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    LEASE,
    MANY,
    NEAR,
    OTHER,
    close,
    own,
    put,
    state_of,
)

__all__ = ["LeavingContract"]


async def _owned(store: Store) -> set[int]:
    return set((await store.registry(lease=LEASE)).owners.get("orders", {}))


class LeavingContract:
    """`Store.release`, `Store.leave` and `Store.forget`."""

    async def test_a_released_lane_is_free_at_once(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE, OTHER)
        await harness.store.release(fence.narrowed([LANE]))
        assert await _owned(harness.store) == {OTHER}
        await own(harness.store, LANE)
        assert await _owned(harness.store) == {LANE, OTHER}

    async def test_releasing_drops_the_claims_in_the_lane_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far, alone = await put(harness, sample(key=NEAR), sample(key=FAR), sample(key=NEAR))
        fence = await own(store, LANE, OTHER)
        await store.claim(fence, Claim(1, [near.id, far.id]))
        await store.claim(fence, Claim(2, [alone.id]))
        await store.release(fence.narrowed([LANE]))
        states = [await state_of(store, message) for message in (near, alone, far)]
        assert states == [State.PENDING, State.PENDING, State.SENDING]

    async def test_what_was_released_is_read_and_not_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        await store.release(fence)
        relay = sample_relay()
        await store.register(relay, lease=LEASE)
        _, inherited = await store.take(relay.relay_id, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
        assert list(inherited) == []
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == [message]

    async def test_releasing_what_is_not_owned_is_fine(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        old = await own(store, LANE, OTHER)
        harness.clock.advance(LEASE)
        new = await own(store, LANE)
        await store.claim(new, Claim(1, [message.id]))
        await store.release(old)
        await store.release(old)
        assert await _owned(store) == {LANE}
        await store.settle(new, Settlement(delivered=[message.id], finished=[1]))
        assert await state_of(store, message) is State.DELIVERED

    async def test_leaving_gives_everything_up(self, harness: StoreHarness) -> None:
        store = harness.store
        near, billed, theirs = await put(
            harness, sample(key=NEAR), sample(key=NEAR, destination="billing"), sample(key=FAR)
        )
        fence = await own(store, LANE)
        billing = await own(store, LANE, relay_id=fence.relay_id, destination="billing")
        other = await own(store, OTHER)
        await store.claim(fence, Claim(1, [near.id]))
        await store.claim(billing, Claim(2, [billed.id]))
        await store.claim(other, Claim(1, [theirs.id]))
        await store.leave(fence.relay_id)
        registry = await store.registry(lease=LEASE)
        assert [relay.relay_id for relay in registry.relays] == [other.relay_id]
        assert {name: dict(lanes) for name, lanes in registry.owners.items()} == {"orders": {OTHER: other.relay_id}}
        states = [await state_of(store, message) for message in (near, billed, theirs)]
        assert states == [State.PENDING, State.PENDING, State.SENDING]
        assert not await store.renew(fence.relay_id, lease=LEASE, reachable=[])

    async def test_leaving_twice_is_harmless(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        for _ in range(2):
            await harness.store.leave(fence.relay_id)
        assert await _owned(harness.store) == set()

    async def test_relays_are_forgotten_when_they_expired_long_ago(self, harness: StoreHarness) -> None:
        store, before = harness.store, harness.clock.now()
        old, young = sample_relay(), sample_relay()
        await store.register(old, lease=LEASE)
        harness.clock.advance(HOUR / 2)
        await store.register(young, lease=LEASE)
        harness.clock.advance(LEASE + HOUR / 2)
        assert await store.forget(stale_after=HOUR) == 1
        assert await store.forget(stale_after=HOUR) == 0
        harness.clock.jump(before + HOUR / 2)
        assert not await store.renew(old.relay_id, lease=LEASE, reachable=[])
        assert await store.renew(young.relay_id, lease=LEASE, reachable=[])

    async def test_the_living_are_not_forgotten(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        assert await harness.store.forget(stale_after=LEASE) == 0
        assert await harness.store.renew(fence.relay_id, lease=LEASE, reachable=[])

    async def test_forgetting_drops_no_claim_that_a_takeover_needs(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE + HOUR)
        assert await store.forget(stale_after=HOUR) == 1
        assert await state_of(store, message) is State.SENDING
        relay = sample_relay()
        await store.register(relay, lease=LEASE)
        _, (inherited,) = await store.take(relay.relay_id, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
        assert (list(inherited.claim.message_ids), inherited.claim.strikes) == ([message.id], 1)

    async def test_forgetting_drops_claims_that_nobody_needs(self, harness: StoreHarness) -> None:
        """All in it closed. A replay would otherwise find the message in a dead relay's hands."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(delivered=[message.id]))
        harness.clock.advance(LEASE + HOUR)
        await store.forget(stale_after=HOUR)
        await store.replay(Selection(ids=[message.id]), by="ann", limit=1)
        assert await state_of(store, message) is State.PENDING

    async def test_forgetting_leaves_the_claims_of_the_living(self, harness: StoreHarness) -> None:
        store = harness.store
        closed, open_ = await put(harness, sample(key=NEAR), sample(key=NEAR))
        fence = await own(store, LANE)
        await close(store, fence, closed, State.DELIVERED)
        await store.claim(fence, Claim(1, [open_.id]))
        await store.forget(stale_after=HOUR)
        assert await state_of(store, open_) is State.SENDING
