"""Membership: the registry of relays, taking lanes over, recovering claims, and leaving."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import (
    Claim,
    Fence,
    RecoveredClaim,
    RegistryDigestStore,
    RelayInfo,
    Selection,
    Settlement,
    Store,
)
from pillarbox.errors import Fenced
from pillarbox.message import State
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
    SECOND,
    THIRD,
    close,
    list_ids,
    own,
    put,
    read_state,
    reload,
    retry,
    settle_failures,
)

__all__ = ["LeaveContract", "MembershipContract", "RecoveryContract", "TakeoverContract"]

_INSTANT = timedelta(microseconds=1)


def _with_lists(relay: RelayInfo) -> RelayInfo:
    return replace(relay, destinations=list(relay.destinations), reachable=list(relay.reachable))


async def _list_live(harness: StoreHarness) -> list[UUID]:
    return [relay.relay_id for relay in (await harness.store.registry(lease=LEASE)).relays]


class MembershipContract:
    """`Store.register`, `Store.renew` and `Store.registry`."""

    async def test_the_clock_is_the_stores_own(self, harness: StoreHarness) -> None:
        assert await harness.store.now() == harness.clock.now()
        harness.clock.advance(HOUR)
        assert await harness.store.now() == harness.clock.now()

    async def test_closing_twice_is_harmless(self, harness: StoreHarness) -> None:
        store = await harness.open_second()
        await store.close()
        await store.close()

    async def test_an_empty_registry(self, harness: StoreHarness) -> None:
        registry = await harness.store.registry(lease=LEASE)
        assert (registry.now, list(registry.relays), dict(registry.owners)) == (harness.clock.now(), [], {})

    async def test_the_digest_changes_with_the_registry_and_with_nothing_else(self, harness: StoreHarness) -> None:
        store = harness.store
        if not isinstance(store, RegistryDigestStore):
            pytest.skip("this store has no digest of its registry")
        one, other = sample_relay(), sample_relay()
        seen = [await store.registry_digest(lease=LEASE)]

        async def check(*, changed: bool) -> None:
            digest = await store.registry_digest(lease=LEASE)
            assert digest == await store.registry_digest(lease=LEASE)
            assert (digest not in seen) is changed
            seen[changed * len(seen) :] = [digest]

        await store.register(one, lease=LEASE)
        await check(changed=True)
        lanes, _ = await store.take(one.relay_id, "orders", partitions=[1, 2], lease=LEASE, claim_number=1)
        await check(changed=True)
        harness.clock.advance(LEASE / 2)
        assert await store.renew(one.relay_id, lease=LEASE, reachable=one.reachable)
        await check(changed=False)
        await store.register(other, lease=LEASE)
        await check(changed=True)
        await store.release(Fence(one.relay_id, "orders", {lanes[0].partition: lanes[0].epoch}))
        await check(changed=True)
        await store.take(other.relay_id, "orders", partitions=[1], lease=LEASE, claim_number=1)
        await check(changed=True)
        assert await store.renew(one.relay_id, lease=LEASE, reachable=[])
        await check(changed=True)
        harness.clock.advance(LEASE - _INSTANT)
        assert await store.renew(other.relay_id, lease=LEASE, reachable=other.reachable)
        harness.clock.advance(_INSTANT)
        await check(changed=True)  # one has expired
        await store.leave(other.relay_id)
        await check(changed=True)

    async def test_a_registered_relay_is_alive_for_one_lease(self, harness: StoreHarness) -> None:
        relay = replace(
            sample_relay(), destinations=["orders", "billing"], reachable=["billing"], service="shöp", asleep=True,
            labels={"team": "shöp, \"one\"", "zone": "eu"},
        )  # fmt: skip
        now = harness.clock.now()
        await harness.store.register(relay, lease=LEASE)
        (found,) = (await harness.store.registry(lease=LEASE)).relays
        assert _with_lists(found) == replace(relay, started_at=now, expires_at=now + LEASE, lease=LEASE)
        harness.clock.advance(LEASE - _INSTANT)
        assert await _list_live(harness) == [relay.relay_id]
        harness.clock.advance(_INSTANT)
        assert await _list_live(harness) == []

    async def test_registering_twice_is_harmless(self, harness: StoreHarness) -> None:
        relay = sample_relay()
        await harness.store.register(relay, lease=LEASE)
        before = (await harness.store.registry(lease=LEASE)).relays
        await harness.store.register(relay, lease=LEASE)
        assert list((await harness.store.registry(lease=LEASE)).relays) == list(before)
        now = harness.clock.advance(LEASE / 2)
        await harness.store.register(relay, lease=LEASE)
        (again,) = (await harness.store.registry(lease=LEASE)).relays
        assert (again.started_at, again.expires_at) == (before[0].started_at, now + LEASE)

    async def test_registering_anew_replaces_the_labels(self, harness: StoreHarness) -> None:
        relay = sample_relay()
        for labels in ({"zone": "eu"}, {"team": "shop"}, {}):
            await harness.store.register(replace(relay, labels=labels), lease=LEASE)
            assert await harness.store.renew(relay.relay_id, lease=LEASE, reachable=[])
            (found,) = (await harness.store.registry(lease=LEASE)).relays
            assert found.labels == labels

    async def test_relays_are_listed_by_id(self, harness: StoreHarness) -> None:
        relays = [sample_relay() for _ in range(5)]
        for relay in relays:
            await harness.store.register(relay, lease=LEASE)
        assert await _list_live(harness) == sorted(relay.relay_id for relay in relays)

    async def test_renewing_gives_another_lease(self, harness: StoreHarness) -> None:
        relay = replace(sample_relay(), destinations=["orders", "billing"])
        started_at = harness.clock.now()
        await harness.store.register(relay, lease=LEASE)
        now = harness.clock.advance(LEASE - _INSTANT)
        assert await harness.store.renew(relay.relay_id, lease=LEASE, reachable=["billing"], asleep=True)
        (found,) = (await harness.store.registry(lease=LEASE)).relays
        assert _with_lists(found) == replace(
            relay, reachable=["billing"], asleep=True, started_at=started_at, expires_at=now + LEASE, lease=LEASE
        )
        assert await harness.store.renew(relay.relay_id, lease=LEASE, reachable=[])
        (found,) = (await harness.store.registry(lease=LEASE)).relays
        assert (list(found.reachable), found.asleep) == ([], False)

    async def test_renewing_one_relay_leaves_the_others_alone(self, harness: StoreHarness) -> None:
        one, other = sample_relay(), sample_relay()
        await harness.store.register(one, lease=LEASE)
        await harness.store.register(other, lease=LEASE)
        harness.clock.advance(LEASE - _INSTANT)
        await harness.store.renew(one.relay_id, lease=LEASE, reachable=[])
        harness.clock.advance(_INSTANT)
        assert await _list_live(harness) == [one.relay_id]

    async def test_an_expired_relay_cannot_renew(self, harness: StoreHarness) -> None:
        relay = sample_relay()
        await harness.store.register(relay, lease=LEASE)
        harness.clock.advance(LEASE)
        assert not await harness.store.renew(relay.relay_id, lease=LEASE, reachable=["orders"])
        assert await _list_live(harness) == []
        assert not await harness.store.renew(relay.relay_id, lease=LEASE, reachable=["orders"])

    async def test_an_unknown_relay_cannot_renew(self, harness: StoreHarness) -> None:
        assert not await harness.store.renew(uuid4(), lease=LEASE, reachable=[])
        assert await _list_live(harness) == []

    async def test_an_expiry_too_far_ahead_counts_as_expired(self, harness: StoreHarness) -> None:
        """It was written by a clock that went wrong, and nobody must wait for it."""
        now = harness.clock.now()
        fence = await own(harness.store, LANE)
        harness.clock.jump(now - _INSTANT)
        registry = await harness.store.registry(lease=HOUR)
        assert (list(registry.relays), dict(registry.owners)) == ([], {})
        harness.clock.jump(now)
        registry = await harness.store.registry(lease=HOUR)
        assert [relay.relay_id for relay in registry.relays] == [fence.relay_id]

    async def test_a_relay_counts_by_its_own_lease(self, harness: StoreHarness) -> None:
        """Relays and monitors with another lease in their configuration see the same relays."""
        short, long = await own(harness.store, LANE), await own(harness.store, OTHER, lease=HOUR)
        for lease in (LEASE / 2, LEASE, 2 * HOUR):
            registry = await harness.store.registry(lease=lease)
            assert {relay.relay_id: relay.lease for relay in registry.relays} == {
                short.relay_id: LEASE,
                long.relay_id: HOUR,
            }
            assert dict(registry.owners["orders"]) == {LANE: short.relay_id, OTHER: long.relay_id}

    async def test_renewing_with_another_lease_changes_it(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        assert await harness.store.renew(fence.relay_id, lease=HOUR, reachable=[])
        (relay,) = (await harness.store.registry(lease=LEASE)).relays
        assert relay.lease == HOUR

    async def test_the_registry_names_the_owners(self, harness: StoreHarness) -> None:
        one = await own(harness.store, LANE, OTHER)
        other = await own(harness.store, LANE, destination="billing")
        owners = (await harness.store.registry(lease=LEASE)).owners
        assert {destination: dict(lanes) for destination, lanes in owners.items()} == {
            "orders": {LANE: one.relay_id, OTHER: one.relay_id},
            "billing": {LANE: other.relay_id},
        }

    async def test_the_dead_own_nothing(self, harness: StoreHarness) -> None:
        await own(harness.store, LANE)
        harness.clock.advance(LEASE / 2)
        alive = await own(harness.store, OTHER)
        harness.clock.advance(LEASE / 2)
        owners = (await harness.store.registry(lease=LEASE)).owners
        assert {destination: dict(lanes) for destination, lanes in owners.items()} == {
            "orders": {OTHER: alive.relay_id}
        }

    async def test_the_registry_survives_a_restart(self, harness: StoreHarness) -> None:
        await own(harness.store, LANE)
        before = await harness.store.registry(lease=LEASE)
        after = await (await harness.restart()).registry(lease=LEASE)
        assert list(after.relays) == list(before.relays)
        assert after.owners == before.owners


async def _register(store: Store, *, lease: timedelta = LEASE) -> UUID:
    relay = sample_relay()
    await store.register(relay, lease=lease)
    return relay.relay_id


async def _take(store: Store, relay_id: UUID, *partitions: int, destination: str = "orders") -> dict[int, int]:
    """Take lanes, and map the partitions that were taken to their epochs."""
    lanes, _ = await store.take(relay_id, destination, partitions=partitions, lease=LEASE, claim_number=1)
    assert all(lane.destination == destination for lane in lanes)
    assert len({lane.partition for lane in lanes}) == len(lanes)
    return {lane.partition: lane.epoch for lane in lanes}


async def _read_owners(store: Store) -> dict[int, UUID]:
    return dict((await store.registry(lease=LEASE)).owners.get("orders", {}))


class TakeoverContract:
    """The lanes of `Store.take`."""

    async def test_free_lanes_are_taken(self, harness: StoreHarness) -> None:
        relay_id = await _register(harness.store)
        lanes, inherited = await harness.store.take(
            relay_id, "orders", partitions=[LANE, OTHER, 0, 63], lease=LEASE, claim_number=1
        )
        assert {lane.partition for lane in lanes} == {LANE, OTHER, 0, 63}
        assert list(inherited) == []
        assert await _read_owners(harness.store) == dict.fromkeys((LANE, OTHER, 0, 63), relay_id)

    async def test_a_live_owner_keeps_its_lanes(self, harness: StoreHarness) -> None:
        owner = await own(harness.store, LANE)
        other = await _register(harness.store)
        assert set(await _take(harness.store, other, LANE, OTHER)) == {OTHER}
        assert await _read_owners(harness.store) == {LANE: owner.relay_id, OTHER: other}

    async def test_a_lane_is_free_from_the_moment_its_owner_expires(self, harness: StoreHarness) -> None:
        await own(harness.store, LANE)
        harness.clock.advance(LEASE - timedelta(microseconds=1))
        other = await _register(harness.store)
        assert await _take(harness.store, other, LANE) == {}
        harness.clock.advance(timedelta(microseconds=1))
        assert set(await _take(harness.store, other, LANE)) == {LANE}

    async def test_a_renewed_owner_keeps_its_lanes(self, harness: StoreHarness) -> None:
        owner = await own(harness.store, LANE)
        harness.clock.advance(LEASE / 2)
        assert await harness.store.renew(owner.relay_id, lease=LEASE, reachable=[])
        harness.clock.advance(LEASE / 2)
        assert await _take(harness.store, await _register(harness.store), LANE) == {}

    async def test_an_owner_that_expires_too_far_ahead_counts_as_dead(self, harness: StoreHarness) -> None:
        dead = await own(harness.store, LANE)
        harness.clock.jump(harness.clock.now() - _INSTANT)
        relay_id = await _register(harness.store)
        assert set(await _take(harness.store, relay_id, LANE)) == {LANE}
        assert not await harness.store.renew(dead.relay_id, lease=LEASE, reachable=[])

    async def test_an_owner_with_a_longer_lease_keeps_its_lanes(self, harness: StoreHarness) -> None:
        owner = await own(harness.store, LANE, lease=HOUR)
        harness.clock.advance(LEASE)
        assert await _take(harness.store, await _register(harness.store), LANE) == {}
        assert await harness.store.renew(owner.relay_id, lease=HOUR, reachable=[])

    async def test_destinations_have_lanes_of_their_own(self, harness: StoreHarness) -> None:
        await own(harness.store, LANE)
        other = await _register(harness.store)
        assert set(await _take(harness.store, other, LANE, destination="billing")) == {LANE}

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
        taken = await _take(harness.store, fence.relay_id, LANE)
        assert taken[LANE] > fence.epochs[LANE]
        assert await _read_owners(harness.store) == {LANE: fence.relay_id}

    async def test_a_lane_that_is_not_asked_for_stays_as_it_is(self, harness: StoreHarness) -> None:
        dead = await own(harness.store, LANE, OTHER)
        harness.clock.advance(LEASE)
        relay_id = await _register(harness.store)
        await _take(harness.store, relay_id, LANE)
        assert await _read_owners(harness.store) == {LANE: relay_id}
        assert (await own(harness.store, OTHER)).epochs[OTHER] > dead.epochs[OTHER]

    async def test_the_dead_owner_is_gone_for_good(self, harness: StoreHarness) -> None:
        """Even a clock that goes back does not bring it to life: its row went with its lane."""
        before = harness.clock.now()
        dead = await own(harness.store, LANE, OTHER)
        harness.clock.advance(LEASE)
        await _take(harness.store, await _register(harness.store), LANE)
        harness.clock.jump(before)
        assert not await harness.store.renew(dead.relay_id, lease=LEASE, reachable=[])
        assert dead.relay_id not in (await _read_owners(harness.store)).values()

    async def test_taking_is_durable(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        assert await _read_owners(await harness.restart()) == {LANE: fence.relay_id}


async def _read_owned(store: Store) -> set[int]:
    return set((await store.registry(lease=LEASE)).owners.get("orders", {}))


class LeaveContract:
    """`Store.release`, `Store.leave` and `Store.forget`."""

    async def test_a_released_lane_is_free_at_once(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE, OTHER)
        await harness.store.release(fence.narrow([LANE]))
        assert await _read_owned(harness.store) == {OTHER}
        await own(harness.store, LANE)
        assert await _read_owned(harness.store) == {LANE, OTHER}

    async def test_releasing_drops_the_claims_in_the_lane_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far, alone = await put(harness, sample(key=NEAR), sample(key=FAR), sample(key=NEAR))
        fence = await own(store, LANE, OTHER)
        await store.claim(fence, Claim(1, [near.id, far.id]))
        await store.claim(fence, Claim(2, [alone.id]))
        await store.release(fence.narrow([LANE]))
        states = [await read_state(store, message) for message in (near, alone, far)]
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
        assert await _read_owned(store) == {LANE}
        await store.settle(new, Settlement(delivered=[message.id], finished=[1]))
        assert await read_state(store, message) is State.DELIVERED

    async def test_releasing_under_an_older_epoch_gives_nothing_up(self, harness: StoreHarness) -> None:
        old = await own(harness.store, LANE)
        new = await own(harness.store, LANE, relay_id=old.relay_id)
        await harness.store.release(old)
        assert await _read_owned(harness.store) == {LANE}
        await harness.store.release(new)
        assert await _read_owned(harness.store) == set()

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
        states = [await read_state(store, message) for message in (near, billed, theirs)]
        assert states == [State.PENDING, State.PENDING, State.SENDING]
        assert not await store.renew(fence.relay_id, lease=LEASE, reachable=[])
        with pytest.raises(Fenced):
            await store.claim(fence, Claim(3, [near.id]))
        for destination in ("orders", "billing"):
            heir = await _register(store)
            lanes, inherited = await store.take(heir, destination, partitions=[LANE], lease=LEASE, claim_number=1)
            assert ([lane.partition for lane in lanes], list(inherited)) == ([LANE], [])

    async def test_a_relay_that_left_takes_nothing(self, harness: StoreHarness) -> None:
        """A take may reach the store after its relay has left: nobody waits for its answer any more."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        gone = await own(store, OTHER)
        await store.leave(gone.relay_id)
        for relay_id in (gone.relay_id, uuid4()):
            lanes, inherited = await store.take(
                relay_id, "orders", partitions=[LANE, OTHER], lease=LEASE, claim_number=1
            )
            assert (list(lanes), list(inherited)) == ([], [])
        (heir,), (inherited_by_heir,) = await store.take(
            await _register(store), "orders", partitions=[LANE], lease=LEASE, claim_number=1
        )
        assert (heir.epoch, inherited_by_heir.claim.strikes) == (2, 1), "nothing was written for the relay that left"

    async def test_leaving_twice_is_harmless(self, harness: StoreHarness) -> None:
        fence = await own(harness.store, LANE)
        for _ in range(2):
            await harness.store.leave(fence.relay_id)
        assert await _read_owned(harness.store) == set()

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
        relay = sample_relay()
        await store.register(relay, lease=LEASE)
        _, inherited = await store.take(relay.relay_id, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
        assert [(list(one.claim.message_ids), one.claim.strikes) for one in inherited] == [([message.id], 1)]

    async def test_forgetting_drops_claims_that_nobody_needs(self, harness: StoreHarness) -> None:
        """All in it closed. A replay would otherwise find the message in a dead relay's hands."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(delivered=[message.id]))
        harness.clock.advance(LEASE + HOUR)
        await store.forget(stale_after=HOUR)
        assert list(await store.claims(older_than=timedelta(0))) == []
        await store.replay(Selection(ids=[message.id]), by="ann", limit=1)
        assert await read_state(store, message) is State.PENDING

    async def test_forgetting_leaves_the_claims_of_the_living(self, harness: StoreHarness) -> None:
        store = harness.store
        closed, open_ = await put(harness, sample(key=NEAR), sample(key=NEAR))
        fence = await own(store, LANE)
        await close(store, fence, closed, State.DELIVERED)
        await store.claim(fence, Claim(1, [open_.id]))
        await store.forget(stale_after=HOUR)
        assert await read_state(store, open_) is State.SENDING


async def _take_as_heir(
    store: Store, *partitions: int, claim_number: int = 1, relay: Fence | None = None
) -> tuple[Fence, Sequence[RecoveredClaim]]:
    info = sample_relay(relay_id=None if relay is None else relay.relay_id)
    if relay is None:
        await store.register(info, lease=LEASE)
    lanes, inherited = await store.take(
        info.relay_id, "orders", partitions=partitions, lease=LEASE, claim_number=claim_number
    )
    assert {lane.partition for lane in lanes} == set(partitions)
    return Fence(info.relay_id, "orders", {lane.partition: lane.epoch for lane in lanes}), inherited


def _summarize(inherited: Sequence[RecoveredClaim]) -> list[tuple[int, int, list[int]]]:
    """List number, strikes and ids of each claim, fewest strikes first."""
    for one in inherited:
        assert list_ids(one.messages) == sorted(one.claim.message_ids)
    return sorted(
        ((one.claim.number, one.claim.strikes, sorted(one.claim.message_ids)) for one in inherited),
        key=lambda claim: claim[1],
    )


class RecoveryContract:
    """The recovered claims of `Store.take`: what the dead owners had in their hands."""

    async def test_claimed_messages_are_inherited_with_one_strike(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, free = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await store.claim(await own(store, LANE), Claim(4, [second.id, first.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE, claim_number=7)
        assert _summarize(inherited) == [(7, 1, [first.id, second.id])]
        assert await read_state(store, first) is State.SENDING
        assert await read_state(store, free) is State.PENDING

    async def test_an_inherited_message_comes_without_payload_and_headers(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}, subject="s", causation_id="c"))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message, attempts=2))
        waiting = await reload(store, message)
        await store.claim(fence, Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        _, (inherited,) = await _take_as_heir(store, LANE)
        (light,) = inherited.messages
        assert (light.payload, light.headers) == (b"", {})
        others = [name for name in light.__struct_fields__ if name not in ("state", "payload", "headers")]
        assert [getattr(light, name) for name in others] == [getattr(waiting, name) for name in others]

    async def test_the_heir_may_settle_what_it_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, list_ids([first, second])))
        harness.clock.advance(LEASE)
        heir, _ = await _take_as_heir(store, LANE, claim_number=5)
        await store.settle(heir, Settlement(delivered=[first.id], returned=[second.id], finished=[5]))
        assert await read_state(store, first) is State.DELIVERED
        assert await read_state(store, second) is State.PENDING

    async def test_what_was_settled_is_not_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, returned, kept = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, list_ids([delivered, returned, kept])))
        await store.settle(fence, Settlement(delivered=[delivered.id], returned=[returned.id], touched=[1]))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE)
        assert _summarize(inherited) == [(1, 1, [kept.id])]

    async def test_what_closed_is_not_inherited_though_its_claim_still_names_it(self, harness: StoreHarness) -> None:
        store = harness.store
        closed, open_ = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, list_ids([closed, open_])))
        await store.settle(fence, Settlement(delivered=[closed.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE)
        assert _summarize(inherited) == [(1, 1, [open_.id])]
        assert await read_state(store, closed) is State.DELIVERED

    async def test_strikes_add_up(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for strikes in (1, 2, 3):
            await store.claim(fence, Claim(9, [message.id], strikes - 1))
            harness.clock.advance(LEASE)
            fence, inherited = await _take_as_heir(store, LANE)
            assert _summarize(inherited) == [(1, strikes, [message.id])]
            await store.settle(fence, Settlement(returned=[message.id], finished=[1]))

    async def test_an_heir_that_dies_before_it_claimed_anew_adds_no_strike(self, harness: StoreHarness) -> None:
        """It had sent nothing: whatever killed it, these did not."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id], strikes=1))
        for _ in range(3):
            harness.clock.advance(LEASE)
            _, inherited = await _take_as_heir(store, LANE)
            assert _summarize(inherited) == [(1, 2, [message.id])]

    async def test_a_message_in_two_claims_is_inherited_once_with_the_most_strikes(self, harness: StoreHarness) -> None:
        """A relay that is to send it alone claims it anew before it leaves the old claim."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id], strikes=1))
        await store.claim(fence, Claim(2, [message.id], strikes=2))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE)
        assert _summarize(inherited) == [(1, 3, [message.id])]

    async def test_one_claim_per_count_of_strikes(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR, SECOND)))
        fence = await own(store, LANE)
        one, two, three, four, five = list_ids(messages)
        await store.claim(fence, Claim(1, [three], strikes=2))
        await store.claim(fence, Claim(2, [one]))
        await store.claim(fence, Claim(3, [five, two]))
        await store.claim(fence, Claim(4, [four], strikes=2))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE, claim_number=10)
        claims = _summarize(inherited)
        assert [(strikes, of_them) for _, strikes, of_them in claims] == [(1, [one, two, five]), (3, [three, four])]
        assert sorted(number for number, _, _ in claims) == [10, 11]

    async def test_several_dead_owners_are_inherited_together(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        await store.claim(await own(store, LANE), Claim(1, [near.id]))
        await store.claim(await own(store, OTHER), Claim(1, [far.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE, OTHER, claim_number=3)
        assert _summarize(inherited) == [(3, 1, [near.id, far.id])]

    async def test_each_heir_inherits_its_own_lanes(self, harness: StoreHarness) -> None:
        """One claim spans two lanes; the relay's row goes with the first, and the second heir still gets its part."""
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        await store.claim(await own(store, LANE, OTHER), Claim(1, [near.id, far.id]))
        harness.clock.advance(LEASE)
        _, first = await _take_as_heir(store, LANE)
        assert _summarize(first) == [(1, 1, [near.id])]
        assert await read_state(store, far) is State.PENDING
        _, second = await _take_as_heir(store, OTHER)
        assert _summarize(second) == [(1, 1, [far.id])]

    async def test_the_same_lane_of_another_destination_is_not_inherited(self, harness: StoreHarness) -> None:
        store = harness.store
        near, billed = await put(harness, sample(key=NEAR), sample(key=NEAR, destination="billing"))
        dead = await own(store, LANE)
        billing = await own(store, LANE, relay_id=dead.relay_id, destination="billing")
        await store.claim(dead, Claim(1, [near.id]))
        await store.claim(billing, Claim(2, [billed.id]))
        harness.clock.advance(LEASE)
        _, inherited = await _take_as_heir(store, LANE)
        assert _summarize(inherited) == [(1, 1, [near.id])]

    async def test_repeating_a_take_returns_the_same_without_a_strike(self, harness: StoreHarness) -> None:
        """The answer to the first may have been lost; the relay must still learn what it holds."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        heir, first = await _take_as_heir(store, LANE)
        _, second = await _take_as_heir(store, LANE, relay=heir)
        assert _summarize(second) == _summarize(first) == [(1, 1, [message.id])]

    async def test_what_a_relay_takes_over_from_itself_leaves_its_old_claim(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        again, recovered = await _take_as_heir(store, LANE, claim_number=5, relay=fence)
        assert [one.claim.number for one in recovered] == [5]
        await store.settle(again, Settlement(returned=[message.id], finished=[5]))
        assert await read_state(store, message) is State.PENDING

    async def test_an_inheritance_survives_a_restart(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        store = await harness.restart()
        _, inherited = await _take_as_heir(store, LANE)
        assert _summarize(inherited) == [(1, 1, [message.id])]
        assert await read_state(await harness.restart(), message) is State.SENDING
