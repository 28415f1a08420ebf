"""Fresh messages: in order, bounded, each lane from its mark on, nothing passed over."""

from __future__ import annotations

from collections.abc import Sequence

from pillarbox.message import Message
from pillarbox.protocols import Claim, Cursor, Settlement, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import key_in, sample
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

__all__ = ["ReadingContract"]

_ENOUGH = 50


async def _pages(store: Store, partitions: Sequence[int], *, limit: int, rotate: bool = False) -> list[list[Message]]:
    """Read on until two reads in a row find nothing."""
    pages: list[list[Message]] = []
    cursor: Cursor | None = None
    order = list(partitions)
    while len(pages) < 2 or pages[-1] or pages[-2]:
        reading = await store.read("orders", partitions=order, cursor=cursor, limit=limit)
        cursor = reading.cursor
        pages.append(list(reading.messages))
        if rotate:
            order = [*order[1:], order[0]]
        assert len(pages) < _ENOUGH
    return pages


class ReadingContract:
    """`Store.read`, but for late rows."""

    async def test_a_lane_is_read_in_id_order(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, THIRD, SECOND)))
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(reading.messages) == messages

    async def test_several_lanes_are_read_in_id_order(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=key) for key in (NEAR, FAR, NEAR, FAR)))
        reading = await harness.store.read("orders", partitions=[OTHER, LANE], cursor=None, limit=MANY)
        assert list(reading.messages) == messages

    async def test_a_read_keeps_to_its_destination_and_lanes(self, harness: StoreHarness) -> None:
        mine, *_ = await put(
            harness, sample(key=NEAR), sample(key=FAR), sample(key=NEAR, destination="billing"), sample(key=key_in(9))
        )
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(reading.messages) == [mine]

    async def test_nothing_there_is_no_message(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=FAR))
        assert list((await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
        assert list((await harness.store.read("orders", partitions=[], cursor=None, limit=MANY)).messages) == []

    async def test_a_read_goes_on_where_the_previous_one_ended(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=NEAR) for _ in range(7)))
        pages = await _pages(harness.store, [LANE], limit=3)
        assert [len(page) for page in pages] == [3, 3, 1, 0, 0]
        assert [message for page in pages for message in page] == messages

    async def test_what_is_written_later_is_read_later(self, harness: StoreHarness) -> None:
        store = harness.store
        empty = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        first = await put(harness, sample(key=NEAR))
        reading = await store.read("orders", partitions=[LANE], cursor=empty.cursor, limit=MANY)
        assert list(reading.messages) == first
        second = await put(harness, sample(key=SECOND))
        reading = await store.read("orders", partitions=[LANE], cursor=reading.cursor, limit=MANY)
        assert list(reading.messages) == second

    async def test_lanes_take_turns_in_the_order_given(self, harness: StoreHarness) -> None:
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        for partitions, expected in (([LANE, OTHER], near), ([OTHER, LANE], far)):
            reading = await harness.store.read("orders", partitions=partitions, cursor=None, limit=1)
            assert list(reading.messages) == [expected]

    async def test_no_lane_is_lost_when_the_limit_cuts_it_off(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, NEAR, NEAR, FAR, FAR, key_in(9))))
        for rotate in (False, True):
            pages = await _pages(harness.store, [LANE, OTHER, 9], limit=2, rotate=rotate)
            read = [message for page in pages for message in page]
            assert sorted(ids(read)) == ids(messages)
            assert all(len(page) <= 2 for page in pages)
            for partition in (LANE, OTHER, 9):
                of_lane = [message.id for message in read if message.partition == partition]
                assert of_lane == sorted(of_lane)

    async def test_within_a_lane_nothing_is_passed_over_for_a_later_one(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=key) for key in (NEAR, FAR, SECOND, FAR, THIRD, FAR)))
        for limit in range(1, 7):
            reading = await harness.store.read("orders", partitions=[OTHER, LANE], cursor=None, limit=limit)
            assert 1 <= len(reading.messages) <= limit
            for partition in (LANE, OTHER):
                of_lane = [message for message in messages if message.partition == partition]
                read = [message for message in reading.messages if message.partition == partition]
                assert read == of_lane[: len(read)]

    async def test_a_lane_read_to_its_end_is_said_to_be_complete(self, harness: StoreHarness) -> None:
        store = harness.store
        await put(harness, *(sample(key=key) for key in (NEAR, NEAR, NEAR, FAR)))
        reading = await store.read("orders", partitions=[LANE, OTHER, 9], cursor=None, limit=MANY)
        assert reading.complete == {LANE, OTHER, 9}
        reading = await store.read("orders", partitions=[LANE, OTHER, 9], cursor=reading.cursor, limit=MANY)
        assert reading.complete == {LANE, OTHER, 9}

    async def test_a_lane_with_more_to_read_is_not_complete(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, FAR, NEAR, FAR, NEAR)))
        for partitions in ([LANE, OTHER], [OTHER, LANE], [LANE], [OTHER]):
            for limit in range(1, 6):
                reading = await store.read("orders", partitions=partitions, cursor=None, limit=limit)
                read = set(ids(reading.messages))
                assert reading.complete <= set(partitions)
                for lane in reading.complete:
                    assert {message.id for message in messages if message.partition == lane} <= read

    async def test_a_read_changes_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        claimed, *_ = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, [claimed.id]))
        before = await everything(store)
        first = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        second = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(first.messages) == list(second.messages)
        assert await everything(store) == before

    async def test_a_restarted_lane_is_read_from_its_start(self, harness: StoreHarness) -> None:
        near = await put(harness, sample(key=NEAR), sample(key=NEAR))
        await put(harness, sample(key=FAR))
        reading = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=None, limit=MANY)
        again = await harness.store.read(
            "orders", partitions=[LANE, OTHER], cursor=reading.cursor.restarted([LANE]), limit=MANY
        )
        assert list(again.messages) == near
        after = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=again.cursor, limit=MANY)
        assert list(after.messages) == []

    async def test_a_cursor_dies_with_its_connection(self, harness: StoreHarness) -> None:
        messages = await put(harness, sample(key=NEAR), sample(key=NEAR))
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        store = await harness.restart()
        again = await store.read("orders", partitions=[LANE], cursor=reading.cursor, limit=MANY)
        assert list(again.messages) == messages

    async def test_a_lane_left_out_for_a_while_loses_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        await put(harness, sample(key=NEAR), sample(key=FAR))
        both = await store.read("orders", partitions=[LANE, OTHER], cursor=None, limit=MANY)
        missed = await put(harness, sample(key=NEAR))
        one = await store.read("orders", partitions=[OTHER], cursor=both.cursor, limit=MANY)
        reading = await store.read("orders", partitions=[LANE, OTHER], cursor=one.cursor, limit=MANY)
        assert ids(missed)[0] in ids(reading.messages)

    async def test_a_new_lane_is_read_from_its_start(self, harness: StoreHarness) -> None:
        far, near = await put(harness, sample(key=FAR), sample(key=NEAR))
        first = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(first.messages) == [near]
        both = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=first.cursor, limit=MANY)
        assert list(both.messages) == [far]

    async def test_what_waits_is_not_fresh(self, harness: StoreHarness) -> None:
        store = harness.store
        retrying, held, parked, fresh = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, THIRD)))
        await put(harness, sample(key=NEAR, available_at=harness.clock.now() - HOUR))
        fence = await own(store, LANE)
        await settled(store, fence, retry(retrying, delay=None), hold(held))
        await park(store, fence, parked)
        reading = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(reading.messages) == [fresh]

    async def test_what_was_given_back_is_read_again_from_the_start(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        reading = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        again = await store.read("orders", partitions=[LANE], cursor=reading.cursor.restarted([LANE]), limit=MANY)
        assert list(again.messages) == [message]
