"""Deferred and retrying messages: when their time has come, longest due first."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.message import Message, Waits
from pillarbox.protocols import Claim
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    MANY,
    NEAR,
    OTHER,
    SECOND,
    THIRD,
    everything,
    hold,
    ids,
    own,
    park,
    put,
    retry,
    settled,
)

__all__ = ["DueContract"]

MINUTE = timedelta(minutes=1)


class DueContract:
    """`Store.read_due` and `Store.next_due`."""

    async def _due(
        self, harness: StoreHarness, *partitions: int, limit: int = MANY, skip: list[int] | None = None
    ) -> list[int]:
        due = await harness.store.read_due("orders", partitions=partitions or [LANE], limit=limit, skip=skip or [])
        return ids(due)

    async def test_longest_due_comes_first_across_lanes(self, harness: StoreHarness) -> None:
        now = harness.clock.now()
        young, old, oldest, middle = await put(
            harness,
            sample(key=NEAR, available_at=now),
            sample(key=NEAR, available_at=now - 2 * HOUR),
            sample(key=FAR, available_at=now - 3 * HOUR),
            sample(key=FAR, available_at=now - HOUR),
        )
        assert await self._due(harness, LANE, OTHER) == ids([oldest, old, middle, young])
        assert await self._due(harness, LANE, OTHER, limit=2) == ids([oldest, old])

    async def test_equally_due_come_in_id_order(self, harness: StoreHarness) -> None:
        at = harness.clock.now()
        messages = await put(harness, *(sample(key=key, available_at=at) for key in (NEAR, FAR, SECOND, FAR)))
        assert await self._due(harness, OTHER, LANE) == ids(messages)

    async def test_nothing_comes_before_its_time(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now() + HOUR))
        harness.clock.advance(HOUR - timedelta(microseconds=1))
        assert await self._due(harness) == []
        harness.clock.advance(timedelta(microseconds=1))
        assert await self._due(harness) == [message.id]

    async def test_a_delayed_message_comes_due(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        assert message.available_at is not None
        harness.clock.jump(message.available_at - timedelta(microseconds=1))
        assert await self._due(harness) == []
        harness.clock.jump(message.available_at)
        assert await self._due(harness) == [message.id]

    async def test_a_retry_comes_due_after_its_delay(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await settled(harness.store, await own(harness.store, LANE), retry(message, delay=MINUTE))
        assert await self._due(harness) == []
        harness.clock.advance(MINUTE)
        assert await self._due(harness) == [message.id]

    async def test_a_retry_without_a_delay_is_due_at_once(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await settled(harness.store, await own(harness.store, LANE), retry(message, delay=None))
        assert await self._due(harness) == [message.id]

    async def test_deferred_and_retrying_are_told_apart(self, harness: StoreHarness) -> None:
        retrying, deferred = await put(
            harness, sample(key=NEAR), sample(key=SECOND, available_at=harness.clock.now() + MINUTE)
        )
        await settled(harness.store, await own(harness.store, LANE), retry(retrying, delay=MINUTE))
        harness.clock.advance(MINUTE)
        due = await harness.store.read_due("orders", partitions=[LANE], limit=MANY)
        assert [(message.id, message.waits) for message in due] == [
            (retrying.id, Waits.RETRY),
            (deferred.id, Waits.DEFERRED),
        ]

    async def test_skipped_ids_do_not_count_against_the_limit(self, harness: StoreHarness) -> None:
        now = harness.clock.now()
        first, second, third = await put(harness, *(sample(key=NEAR, available_at=now) for _ in range(3)))
        assert await self._due(harness, limit=1, skip=[first.id, second.id]) == [third.id]
        assert await self._due(harness, skip=ids([first, second, third])) == []

    async def test_only_what_waits_for_a_time_comes_due(self, harness: StoreHarness) -> None:
        store = harness.store
        _, held, parked = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settled(store, fence, hold(held))
        await park(store, fence, parked)
        harness.clock.advance(timedelta(days=10_000))
        assert await self._due(harness) == []

    async def test_due_keeps_to_its_destination_and_lanes(self, harness: StoreHarness) -> None:
        now = harness.clock.now()
        mine, *_ = await put(
            harness,
            sample(key=NEAR, available_at=now),
            sample(key=FAR, available_at=now),
            sample(key=NEAR, destination="billing", available_at=now),
        )
        assert await self._due(harness) == [mine.id]

    async def test_reading_the_due_changes_nothing(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now()))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [message.id]))
        before = await everything(harness.store)
        await self._due(harness)
        assert await everything(harness.store) == before

    async def test_a_due_message_is_whole(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}, available_at=harness.clock.now()))
        due: list[Message] = list(await harness.store.read_due("orders", partitions=[LANE], limit=MANY))
        assert due == [message]

    async def test_next_due_is_the_earliest_of_these_lanes(self, harness: StoreHarness) -> None:
        store, now = harness.store, harness.clock.now()
        retrying, *_ = await put(
            harness,
            sample(key=NEAR),
            sample(key=NEAR, available_at=now + 3 * HOUR),
            sample(key=FAR, available_at=now + HOUR),
            sample(key=SECOND, destination="billing", available_at=now),
        )
        assert await store.next_due("orders", partitions=[LANE]) == now + 3 * HOUR
        assert await store.next_due("orders", partitions=[LANE, OTHER]) == now + HOUR
        await settled(store, await own(store, LANE), retry(retrying, delay=MINUTE))
        assert await store.next_due("orders", partitions=[LANE]) == now + MINUTE
        harness.clock.advance(HOUR)
        assert await store.next_due("orders", partitions=[LANE]) == now + MINUTE

    async def test_next_due_is_none_where_nothing_waits_for_a_time(self, harness: StoreHarness) -> None:
        store = harness.store
        _, held, parked = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settled(store, fence, hold(held))
        await park(store, fence, parked)
        assert await store.next_due("orders", partitions=[LANE]) is None
