"""How a lane gets an owner."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from pillarbox.protocols import Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample_relay
from pillarbox.testing.store_contract.arrange import HOUR, LANE, LEASE, OTHER, own

__all__ = ["TakingContract"]


async def _registered(store: Store, *, lease: timedelta = LEASE) -> UUID:
    relay = sample_relay()
    await store.register(relay, lease=lease)
    return relay.relay_id


async def _taken(store: Store, relay_id: UUID, *partitions: int, destination: str = "orders") -> dict[int, int]:
    """Take lanes; partition to epoch of what was got."""
    lanes, _ = await store.take(relay_id, destination, partitions=partitions, lease=LEASE, claim_number=1)
    assert all(lane.destination == destination for lane in lanes)
    assert len({lane.partition for lane in lanes}) == len(lanes)
    return {lane.partition: lane.epoch for lane in lanes}


async def _owners(store: Store) -> dict[int, UUID]:
    return dict((await store.registry(lease=LEASE)).owners.get("orders", {}))


class TakingContract:
    """`Store.take`, but for what it inherits."""

    async def test_free_lanes_are_taken(self, harness: StoreHarness) -> None:
        relay_id = await _registered(harness.store)
        lanes, inherited = await harness.store.take(
            relay_id, "orders", partitions=[LANE, OTHER, 0, 63], lease=LEASE, claim_number=1
        )
        assert {lane.partition for lane in lanes} == {LANE, OTHER, 0, 63}
        assert list(inherited) == []
        assert await _owners(harness.store) == dict.fromkeys((LANE, OTHER, 0, 63), relay_id)

    async def test_a_live_owner_keeps_its_lanes(self, harness: StoreHarness) -> None:
        owner = await own(harness.store, LANE)
        other = await _registered(harness.store)
        assert set(await _taken(harness.store, other, LANE, OTHER)) == {OTHER}
        assert await _owners(harness.store) == {LANE: owner.relay_id, OTHER: other}

    async def test_a_lane_is_free_from_the_moment_its_owner_expires(self, harness: StoreHarness) -> None:
        await own(harness.store, LANE)
        harness.clock.advance(LEASE - timedelta(microseconds=1))
        other = await _registered(harness.store)
        assert await _taken(harness.store, other, LANE) == {}
        harness.clock.advance(timedelta(microseconds=1))
        assert set(await _taken(harness.store, other, LANE)) == {LANE}

    async def test_a_renewed_owner_keeps_its_lanes(self, harness: StoreHarness) -> None:
        owner = await own(harness.store, LANE)
        harness.clock.advance(LEASE / 2)
        assert await harness.store.renew(owner.relay_id, lease=LEASE, reachable=[])
        harness.clock.advance(LEASE / 2)
        assert await _taken(harness.store, await _registered(harness.store), LANE) == {}

    async def test_an_owner_that_expires_too_far_ahead_counts_as_dead(self, harness: StoreHarness) -> None:
        dead = await own(harness.store, LANE, lease=HOUR)
        relay_id = await _registered(harness.store)
        assert set(await _taken(harness.store, relay_id, LANE)) == {LANE}
        assert not await harness.store.renew(dead.relay_id, lease=HOUR, reachable=[])

    async def test_destinations_have_lanes_of_their_own(self, harness: StoreHarness) -> None:
        await own(harness.store, LANE)
        other = await _registered(harness.store)
        assert set(await _taken(harness.store, other, LANE, destination="billing")) == {LANE}

    async def test_every_taking_raises_the_epoch(self, harness: StoreHarness) -> None:
        store = harness.store
        epochs = []
        for _ in range(3):
            fence = await own(store, LANE)
            epochs.append(fence.epochs[LANE])
            harness.clock.advance(LEASE)
        released = await own(store, LANE)
        epochs.append(released.epochs[LANE])
        await store.release(released)
        left = await own(store, LANE)
        epochs.append(left.epochs[LANE])
        await store.leave(left.relay_id)
        epochs.append((await own(store, LANE)).epochs[LANE])
        assert epochs == sorted(set(epochs))

    async def test_an_own_lane_is_returned_under_a_new_epoch(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        taken = await _taken(harness.store, fence.relay_id, LANE)
        assert taken[LANE] > fence.epochs[LANE]
        assert await _owners(harness.store) == {LANE: fence.relay_id}

    async def test_a_lane_that_is_not_asked_for_stays_as_it_is(self, harness: StoreHarness) -> None:
        dead = await own(harness.store, LANE, OTHER)
        harness.clock.advance(LEASE)
        relay_id = await _registered(harness.store)
        await _taken(harness.store, relay_id, LANE)
        assert await _owners(harness.store) == {LANE: relay_id}
        assert (await own(harness.store, OTHER)).epochs[OTHER] > dead.epochs[OTHER]

    async def test_the_dead_owner_is_gone_for_good(self, harness: StoreHarness) -> None:
        """Even a clock that goes back does not bring it to life: its row went with its lane."""
        before = harness.clock.now()
        dead = await own(harness.store, LANE, OTHER)
        harness.clock.advance(LEASE)
        await _taken(harness.store, await _registered(harness.store), LANE)
        harness.clock.jump(before)
        assert not await harness.store.renew(dead.relay_id, lease=LEASE, reachable=[])
        assert dead.relay_id not in (await _owners(harness.store)).values()

    async def test_taking_is_durable(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        assert await _owners(await harness.restart()) == {LANE: fence.relay_id}
