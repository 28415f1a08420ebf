"""How many messages share a destination, a topic and a state, and since when."""

from __future__ import annotations

from datetime import datetime

from pillarbox.message import State
from pillarbox.protocols import Claim, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    LEASE,
    NEAR,
    SECOND,
    THIRD,
    close,
    hold,
    own,
    park,
    put,
    retry,
    settled,
)

__all__ = ["CountingContract"]

_Counted = dict[tuple[str, str | None, State, bool], tuple[int, datetime | None]]


async def _counted(store: Store, *, limit: int = 100_000) -> _Counted:
    counts = await store.counts(limit=limit)
    counted = {(one.destination, one.topic, one.state, one.due): (one.count, one.oldest_at) for one in counts}
    assert len(counted) == len(counts)
    return counted


class CountingContract:
    """`Store.counts`."""

    async def test_nothing_is_counted_where_nothing_is(self, harness: StoreHarness) -> None:
        assert await _counted(harness.store) == {}

    async def test_counts_by_destination_and_topic(self, harness: StoreHarness) -> None:
        first, _, billed, other = await put(
            harness,
            sample(key=NEAR),
            sample(key=SECOND),
            sample(key=NEAR, destination="billing"),
            sample(key=NEAR, topic="returns"),
        )
        assert await _counted(harness.store) == {
            ("orders", "orders", State.PENDING, True): (2, first.created_at),
            ("billing", "orders", State.PENDING, True): (1, billed.created_at),
            ("orders", "returns", State.PENDING, True): (1, other.created_at),
        }

    async def test_counts_by_state(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        states = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)
        closing = await put(harness, *(sample(key=NEAR) for _ in states))
        sending, _ = await put(harness, sample(key=NEAR), sample(key=NEAR))
        closed_at = harness.clock.advance(HOUR)
        for message, state in zip(closing, states, strict=True):
            await close(store, fence, message, state)
        await store.claim(fence, Claim(1, [sending.id]))
        harness.clock.advance(HOUR)
        assert await _counted(store) == {
            ("orders", "orders", State.PENDING, True): (1, sending.created_at),
            ("orders", "orders", State.SENDING, True): (1, sending.created_at),
        } | {("orders", "orders", state, True): (1, closed_at) for state in states}

    async def test_what_waits_for_a_later_time_is_counted_apart(self, harness: StoreHarness) -> None:
        store, now = harness.store, harness.clock.now()
        fence = await own(store, LANE)
        retrying, later, *_ = await put(
            harness,
            sample(key=NEAR),
            sample(key=SECOND),
            sample(key=THIRD, available_at=now + 2 * HOUR),
            sample(key=THIRD, available_at=now - HOUR),
        )
        await settled(store, fence, retry(retrying, delay=LEASE), retry(later, delay=HOUR))
        group = ("orders", "orders", State.PENDING)
        assert await _counted(store) == {(*group, True): (1, now - HOUR), (*group, False): (3, now + LEASE)}
        harness.clock.advance(LEASE)
        assert await _counted(store) == {(*group, True): (2, now - HOUR), (*group, False): (2, now + HOUR)}

    async def test_what_is_parked_was_due_when_it_was_written(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        harness.clock.advance(HOUR)
        await park(store, await own(store, LANE), message)
        assert await _counted(store) == {("orders", "orders", State.PENDING, True): (1, message.created_at)}

    async def test_held_ones_count_as_failed(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        held, failed = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settled(store, fence, hold(held))
        await close(store, fence, failed, State.FAILED)
        counted = await _counted(store)
        assert list(counted) == [("orders", "orders", State.FAILED, True)]
        assert counted["orders", "orders", State.FAILED, True][0] == 2

    async def test_no_count_looks_at_more_than_the_limit(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in range(10)))
        for message in messages[:5]:
            await close(store, fence, message, State.DELIVERED)
        counted = await _counted(store, limit=3)
        assert {state for _, _, state, _ in counted} == {State.PENDING, State.DELIVERED}
        assert all(1 <= count <= 3 for count, _ in counted.values())
        assert {count for count, _ in (await _counted(store, limit=5)).values()} == {5}
