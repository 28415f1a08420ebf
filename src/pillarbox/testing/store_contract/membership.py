"""Who is alive."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

from msgspec.structs import replace

from pillarbox.protocols import RelayInfo
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample_relay
from pillarbox.testing.store_contract.arrange import HOUR, LANE, LEASE, OTHER, own

__all__ = ["MembershipContract"]

_INSTANT = timedelta(microseconds=1)


def _plain(relay: RelayInfo) -> RelayInfo:
    return replace(relay, destinations=list(relay.destinations), reachable=list(relay.reachable))


async def _alive(harness: StoreHarness) -> list[UUID]:
    return [relay.relay_id for relay in (await harness.store.registry(lease=LEASE)).relays]


class MembershipContract:
    """`Store.register`, `Store.renew` and `Store.registry`."""

    async def test_the_clock_is_the_stores_own(self, harness: StoreHarness) -> None:
        assert await harness.store.now() == harness.clock.now()
        harness.clock.advance(HOUR)
        assert await harness.store.now() == harness.clock.now()

    async def test_closing_twice_is_harmless(self, harness: StoreHarness) -> None:
        store = await harness.second()
        await store.close()
        await store.close()

    async def test_an_empty_registry(self, harness: StoreHarness) -> None:
        registry = await harness.store.registry(lease=LEASE)
        assert (registry.now, list(registry.relays), dict(registry.owners)) == (harness.clock.now(), [], {})

    async def test_a_registered_relay_is_alive_for_one_lease(self, harness: StoreHarness) -> None:
        relay = replace(
            sample_relay(), destinations=["orders", "billing"], reachable=["billing"], service="shöp", asleep=True
        )
        now = harness.clock.now()
        await harness.store.register(relay, lease=LEASE)
        (found,) = (await harness.store.registry(lease=LEASE)).relays
        assert _plain(found) == replace(relay, started_at=now, expires_at=now + LEASE)
        harness.clock.advance(LEASE - _INSTANT)
        assert await _alive(harness) == [relay.relay_id]
        harness.clock.advance(_INSTANT)
        assert await _alive(harness) == []

    async def test_registering_twice_is_harmless(self, harness: StoreHarness) -> None:
        relay = sample_relay()
        await harness.store.register(relay, lease=LEASE)
        before = (await harness.store.registry(lease=LEASE)).relays
        await harness.store.register(relay, lease=LEASE)
        assert list((await harness.store.registry(lease=LEASE)).relays) == list(before)

    async def test_relays_are_listed_by_id(self, harness: StoreHarness) -> None:
        relays = [sample_relay() for _ in range(5)]
        for relay in relays:
            await harness.store.register(relay, lease=LEASE)
        assert await _alive(harness) == sorted(relay.relay_id for relay in relays)

    async def test_renewing_gives_another_lease(self, harness: StoreHarness) -> None:
        relay = replace(sample_relay(), destinations=["orders", "billing"])
        started_at = harness.clock.now()
        await harness.store.register(relay, lease=LEASE)
        now = harness.clock.advance(LEASE - _INSTANT)
        assert await harness.store.renew(relay.relay_id, lease=LEASE, reachable=["billing"], asleep=True)
        (found,) = (await harness.store.registry(lease=LEASE)).relays
        assert _plain(found) == replace(
            relay, reachable=["billing"], asleep=True, started_at=started_at, expires_at=now + LEASE
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
        assert await _alive(harness) == [one.relay_id]

    async def test_an_expired_relay_cannot_renew(self, harness: StoreHarness) -> None:
        relay = sample_relay()
        await harness.store.register(relay, lease=LEASE)
        harness.clock.advance(LEASE)
        assert not await harness.store.renew(relay.relay_id, lease=LEASE, reachable=["orders"])
        assert await _alive(harness) == []
        assert not await harness.store.renew(relay.relay_id, lease=LEASE, reachable=["orders"])

    async def test_an_unknown_relay_cannot_renew(self, harness: StoreHarness) -> None:
        assert not await harness.store.renew(uuid4(), lease=LEASE, reachable=[])
        assert await _alive(harness) == []

    async def test_an_expiry_too_far_ahead_counts_as_expired(self, harness: StoreHarness) -> None:
        """It was written by a clock that went wrong, and nobody must wait for it."""
        fence = await own(harness.store, LANE, lease=LEASE + _INSTANT)
        registry = await harness.store.registry(lease=LEASE)
        assert (list(registry.relays), dict(registry.owners)) == ([], {})
        registry = await harness.store.registry(lease=LEASE + _INSTANT)
        assert [relay.relay_id for relay in registry.relays] == [fence.relay_id]

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
