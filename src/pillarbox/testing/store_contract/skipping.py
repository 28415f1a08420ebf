"""Keys that a reader does not want now: passed by, and still there.

Skipped for stores that leave nothing out.
"""

from __future__ import annotations

import pytest

from pillarbox.message import Message
from pillarbox.protocols import Cursor, Reading
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import FAR, LANE, MANY, NEAR, OTHER, SECOND, THIRD, ids, own, park, put

__all__ = ["SkippingContract"]


async def _started(harness: StoreHarness) -> Cursor:
    """A cursor at the start of two lanes."""
    if not harness.store.features.skips_keys:
        pytest.skip("This store leaves no key out.")
    return (await harness.store.read("orders", partitions=[LANE, OTHER], cursor=None, limit=MANY)).cursor


async def _read(harness: StoreHarness, cursor: Cursor, *, limit: int = MANY) -> Reading:
    return await harness.store.read("orders", partitions=[LANE, OTHER], cursor=cursor, limit=limit)


class SkippingContract:
    """`Store.read` with keys to skip."""

    async def test_a_skipped_key_does_not_come(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, FAR, THIRD, NEAR)))
        reading = await _read(harness, start.skipping([NEAR]))
        assert list(reading.messages) == [message for message in messages if message.key != NEAR]
        assert reading.complete == {LANE, OTHER}

    async def test_several_keys_can_be_skipped(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        _, _, third, _ = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, FAR)))
        assert list((await _read(harness, start.skipping([NEAR, SECOND, FAR]))).messages) == [third]

    async def test_a_message_without_a_key_is_never_skipped(self, harness: StoreHarness) -> None:
        await _started(harness)
        store, everywhere = harness.store, range(64)
        start = await store.read("orders", partitions=everywhere, cursor=None, limit=MANY)
        _, keyless = await put(harness, sample(key=NEAR), sample(key=None))
        reading = await store.read("orders", partitions=everywhere, cursor=start.cursor.skipping([NEAR]), limit=MANY)
        assert list(reading.messages) == [keyless]

    async def test_what_is_skipped_does_not_count_against_the_limit(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        *_, last = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, NEAR, SECOND)))
        assert list((await _read(harness, start.skipping([NEAR]), limit=1)).messages) == [last]

    async def test_the_mark_passes_what_is_skipped_at_the_end_of_a_lane(self, harness: StoreHarness) -> None:
        """Or each read would walk over it again."""
        start = await _started(harness)
        *_, last = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, NEAR)))
        reading = await _read(harness, start.skipping([NEAR]))
        assert reading.cursor.low[LANE] == last.id

    async def test_the_mark_of_a_lane_that_was_cut_off_passes_nothing_unread(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        messages = await put(harness, *(sample(key=key) for key in (SECOND, NEAR, THIRD, NEAR, SECOND, NEAR)))
        cursor, read = start, list[Message]()
        for _ in range(4):
            reading = await _read(harness, cursor.skipping([NEAR]), limit=1)
            cursor, read = reading.cursor, [*read, *reading.messages]
        assert read == [message for message in messages if message.key != NEAR]

    async def test_skipped_once_is_not_skipped_for_ever(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        await put(harness, sample(key=NEAR))
        reading = await _read(harness, start.skipping([NEAR]))
        (later,) = await put(harness, sample(key=NEAR))
        assert list((await _read(harness, reading.cursor)).messages) == [later]

    async def test_what_was_skipped_is_still_there(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        before, *skipped = await put(harness, *(sample(key=key) for key in (SECOND, NEAR, NEAR)))
        reading = await _read(harness, start.skipping([NEAR]))
        above = Cursor({LANE: before.id}, None, reading.cursor.session)
        again = await harness.store.read("orders", partitions=[LANE], cursor=above, limit=MANY)
        assert list(again.messages) == skipped
        assert again.complete == {LANE}

    async def test_what_waits_is_no_end_of_a_lane(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        first, waiting = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await park(harness.store, await own(harness.store, LANE), waiting)
        reading = await _read(harness, start.skipping([NEAR]))
        assert (ids(reading.messages), reading.cursor.low[LANE]) == ([], first.id)

    async def test_a_cursor_of_another_connection_skips_nothing(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        messages = await put(harness, sample(key=NEAR))
        store = await harness.restart()
        reading = await store.read("orders", partitions=[LANE, OTHER], cursor=start.skipping([NEAR]), limit=MANY)
        assert list(reading.messages) == messages

    async def test_what_comes_late_of_a_skipped_key_does_come(self, harness: StoreHarness) -> None:
        start = await _started(harness)
        if not harness.store.features.late_rows:
            pytest.skip("Ids become visible in order in this store.")
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=NEAR, payload=b"late")])
            await harness.insert([sample(key=SECOND)])
            reading = await _read(harness, start.skipping([NEAR]))
            await slow.commit()
        again = await _read(harness, reading.cursor.skipping([NEAR]))
        assert [message.payload for message in again.messages] == [b"late"]
