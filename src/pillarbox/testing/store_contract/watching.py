"""What a monitor asks: how long the oldest waits, what happened lately, what is in somebody's hands for long."""

from __future__ import annotations

from datetime import datetime, timedelta

from pillarbox.message import State
from pillarbox.protocols import Claim
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    LEASE,
    NEAR,
    OTHER,
    SECOND,
    close,
    hold,
    own,
    park,
    put,
    retry,
    settled,
)

__all__ = ["WatchingContract"]

_MINUTE = timedelta(minutes=1)


def _between(begin: datetime | None, end: datetime | None) -> timedelta:
    assert begin is not None
    assert end is not None
    return end - begin


class WatchingContract:
    """`Store.oldest_due`, `activity` and `claims`."""

    async def test_nothing_is_due_where_nothing_waits(self, harness: StoreHarness) -> None:
        assert dict(await harness.store.oldest_due()) == {}

    async def test_the_oldest_of_each_destination_is_told_from_any_lane(self, harness: StoreHarness) -> None:
        (first,) = await put(harness, sample(key=FAR))
        harness.clock.advance(_MINUTE)
        _, billed = await put(harness, sample(key=NEAR), sample(key=NEAR, destination="billing"))
        assert dict(await harness.store.oldest_due()) == {"orders": first.created_at, "billing": billed.created_at}

    async def test_what_is_deferred_is_old_from_its_due_time_on(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        assert dict(await harness.store.oldest_due()) == {}
        harness.clock.advance(2 * HOUR)
        assert dict(await harness.store.oldest_due()) == {"orders": message.available_at}

    async def test_what_is_parked_or_held_is_nobodys_delay(self, harness: StoreHarness) -> None:
        head, behind = await put(harness, sample(key=NEAR), sample(key=NEAR))
        fence = await own(harness.store, LANE)
        await settled(harness.store, fence, hold(head))
        await park(harness.store, fence, behind)
        assert dict(await harness.store.oldest_due()) == {}

    async def test_deliveries_are_told_with_their_latency(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, topic="eu"))
        fence = await own(harness.store, LANE, lease=HOUR)
        harness.clock.advance(_MINUTE)
        closed = await close(harness.store, fence, message, State.DELIVERED)
        activity = await harness.store.activity(window=HOUR)
        (one,) = activity.delivered
        assert (one.destination, one.topic) == ("orders", "eu")
        assert one.latency == _between(closed.created_at, closed.status_at)
        assert one.end_to_end == _between(closed.event_time, closed.status_at)
        assert one.at == closed.status_at
        assert activity.complete

    async def test_a_deferred_ones_latency_begins_when_it_was_due(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        fence = await own(harness.store, LANE, lease=3 * HOUR)
        harness.clock.advance(HOUR + _MINUTE)
        closed = await close(harness.store, fence, message, State.DELIVERED)
        (one,) = (await harness.store.activity(window=HOUR)).delivered
        assert one.latency == _between(message.available_at, closed.status_at)

    async def test_a_retried_ones_latency_begins_when_it_was_written(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE, lease=HOUR)
        await settled(harness.store, fence, retry(message))
        harness.clock.advance(_MINUTE)
        closed = await close(harness.store, fence, message, State.DELIVERED)
        (one,) = (await harness.store.activity(window=HOUR)).delivered
        assert one.latency == _between(message.created_at, closed.status_at)

    async def test_only_the_window_is_looked_at(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE, lease=3 * HOUR)
        await settled(harness.store, fence, retry(message))
        await close(harness.store, fence, message, State.DELIVERED)
        harness.clock.advance(2 * HOUR)
        activity = await harness.store.activity(window=HOUR)
        assert (list(activity.delivered), dict(activity.attempts_failed)) == ([], {})

    async def test_of_many_deliveries_the_latest_are_told(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=NEAR, topic=f"t{number}") for number in range(4)))
        fence = await own(harness.store, LANE, lease=HOUR)
        for number, message in enumerate(messages):
            harness.clock.advance(_MINUTE)
            await close(harness.store, fence, message, State.DELIVERED, number=1_000 + number)
        activity = await harness.store.activity(window=HOUR, limit=2)
        assert [one.topic for one in activity.delivered] == ["t3", "t2"]
        assert not activity.complete

    async def test_failed_attempts_are_counted_by_destination(self, harness: StoreHarness) -> None:
        first, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(harness.store, LANE)
        await settled(harness.store, fence, retry(first), retry(second))
        await settled(harness.store, fence, retry(first, attempts=2), number=1_001)
        assert dict((await harness.store.activity(window=HOUR)).attempts_failed) == {"orders": 3}

    async def test_what_is_in_hand_for_long_is_told_oldest_first(self, harness: StoreHarness) -> None:
        first, second, third = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=FAR))
        fence = await own(harness.store, LANE, OTHER, lease=HOUR)
        began = harness.clock.now()
        await harness.store.claim(fence, Claim(1, [first.id, second.id], 2))
        harness.clock.advance(_MINUTE)
        await harness.store.claim(fence, Claim(2, [third.id]))
        harness.clock.advance(_MINUTE)
        both = await harness.store.claims(older_than=_MINUTE)
        assert [list(claim.message_ids) for claim in both] == [[first.id, second.id], [third.id]]
        (one,) = await harness.store.claims(older_than=2 * _MINUTE)
        assert (one.relay_id, one.claimed_at, one.strikes) == (fence.relay_id, began, 2)
        assert list(await harness.store.claims(older_than=LEASE * 100)) == []
        assert len(await harness.store.claims(older_than=_MINUTE, limit=1)) == 1
