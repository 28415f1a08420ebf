"""Rows whose ids were passed before they could be seen: each comes, once, before anything later of its key.

Skipped for stores where ids become visible in order.
"""

from __future__ import annotations

import pytest

from pillarbox.message import Message
from pillarbox.protocols import Cursor, Reading, Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import FAR, HOUR, LANE, MANY, NEAR, OTHER, SECOND, own, park
from pillarbox.testing.store_contract.interleaving import Interleaving

__all__ = ["LateRowsContract"]


def _needs_late_rows(harness: StoreHarness) -> None:
    if not harness.store.features.late_rows:
        pytest.skip("Ids become visible in order in this store.")


async def _read(harness: StoreHarness, cursor: Cursor | None, *partitions: int, limit: int = MANY) -> Reading:
    return await harness.store.read("orders", partitions=partitions or [LANE], cursor=cursor, limit=limit)


def _named(name: bytes, *, key: str = NEAR) -> Message:
    return sample(key=key, payload=name)


def _of(message: Message) -> Selection:
    return Selection(message_ids=[message.message_id])


def _names(reading: Reading) -> list[bytes]:
    return [message.payload for message in reading.messages]


class LateRowsContract:
    """`Store.read` where ids become visible out of order."""

    async def test_late_by_a_transaction_older_than_what_was_read(self, harness: StoreHarness) -> None:
        """The slow transaction was in progress, and among those the snapshot lists (xip)."""
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"100")])
            await harness.insert([_named(b"105", key=SECOND)])
            first = await _read(harness, None)
            assert _names(first) == [b"105"]
            await slow.commit()
        second = await _read(harness, first.cursor)
        assert _names(second) == [b"100"]
        await harness.insert([_named(b"106")])
        assert _names(await _read(harness, second.cursor)) == [b"106"]

    async def test_late_comes_together_with_a_later_one_of_its_key(self, harness: StoreHarness) -> None:
        """T1 draws 100 and is slow, 105 is read, T1 commits, T3 writes 106 for T1's key: 100 stands before 106."""
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"100")])
            await harness.insert([_named(b"105", key=SECOND)])
            first = await _read(harness, None)
            await slow.commit()
        await harness.insert([_named(b"106")])
        assert _names(await _read(harness, first.cursor)) == [b"100", b"106"]

    async def test_late_by_a_transaction_younger_than_what_was_read(self, harness: StoreHarness) -> None:
        """The slow transaction began after the one that was read, so the snapshot ends before it (xmax)."""
        _needs_late_rows(harness)
        async with harness.open_transaction() as fast, harness.open_transaction() as slow:
            await fast.insert([_named(b"99", key=SECOND)])
            await slow.insert([_named(b"100")])
            await fast.insert([_named(b"105", key=SECOND)])
            await fast.commit()
            first = await _read(harness, None)
            assert _names(first) == [b"99", b"105"]
            await slow.commit()
        await harness.insert([_named(b"106")])
        assert _names(await _read(harness, first.cursor)) == [b"100", b"106"]

    async def test_late_ones_of_both_sorts_at_once(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with (
            harness.open_transaction() as older,
            harness.open_transaction() as fast,
            harness.open_transaction() as younger,
        ):
            await older.insert([_named(b"1")])
            await fast.insert([_named(b"2", key=SECOND)])
            await younger.insert([_named(b"3")])
            await fast.insert([_named(b"4", key=SECOND)])
            await fast.commit()
            first = await _read(harness, None)
            assert _names(first) == [b"2", b"4"]
            await younger.commit()
            await older.commit()
        assert _names(await _read(harness, first.cursor)) == [b"1", b"3"]

    async def test_a_late_message_comes_once(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"late")])
            await harness.insert([_named(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        reading = await _read(harness, cursor)
        assert _names(reading) == [b"late"]
        for _ in range(3):
            reading = await _read(harness, reading.cursor)
            assert _names(reading) == []

    async def test_a_slow_transaction_may_outlast_many_reads(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"late")])
            cursor = None
            for name in (b"1", b"2", b"3"):
                await harness.insert([_named(name, key=SECOND)])
                reading = await _read(harness, cursor)
                assert _names(reading) == [name]
                cursor = reading.cursor
            await slow.commit()
        assert _names(await _read(harness, cursor)) == [b"late"]

    async def test_late_ones_come_in_addition_to_the_limit(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"1"), _named(b"2"), _named(b"3")])
            await harness.insert([_named(b"4", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        await harness.insert([_named(b"5"), _named(b"6")])
        reading = await _read(harness, cursor, limit=1)
        assert _names(reading) == [b"1", b"2", b"3", b"5"]
        assert _names(await _read(harness, reading.cursor, limit=1)) == [b"6"]

    async def test_late_in_another_lane_or_destination_stays_there(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"far", key=FAR), sample(key=NEAR, destination="billing")])
            await harness.insert([_named(b"near"), _named(b"other", key=FAR)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        assert _names(await _read(harness, cursor)) == []

    async def test_a_lane_left_out_when_its_late_message_came_loses_nothing(self, harness: StoreHarness) -> None:
        """The snapshot of the read between knows the slow transaction as ended, and did not look at its lane."""
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"late")])
            await harness.insert([_named(b"near"), _named(b"far", key=FAR)])
            both = await _read(harness, None, LANE, OTHER)
            await slow.commit()
        one = await _read(harness, both.cursor, OTHER)
        assert b"late" in _names(await _read(harness, one.cursor, LANE, OTHER))

    async def test_a_restarted_lane_shows_a_late_message_once(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"late")])
            await harness.insert([_named(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        assert _names(await _read(harness, cursor.restarted([LANE]))) == [b"late", b"early"]

    async def test_a_late_message_that_rolled_back_never_comes(self, harness: StoreHarness) -> None:
        _needs_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_named(b"late")])
            await harness.insert([_named(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.rollback()
        assert _names(await _read(harness, cursor)) == []

    async def test_only_fresh_messages_come_late(self, harness: StoreHarness) -> None:
        """A late one that was deferred, or has been parked since, comes by its own way."""
        _needs_late_rows(harness)
        store = harness.store
        parked = _named(b"parked")
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=NEAR, available_at=harness.clock.now() - HOUR), parked])
            await harness.insert([_named(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        await park(store, await own(store, LANE), *await store.find(_of(parked), limit=MANY))
        assert _names(await _read(harness, cursor)) == []
        assert len(await store.read_due("orders", partitions=[LANE], limit=MANY)) == 1
        assert len(await store.read_key("orders", partition=LANE, key=NEAR, after=0, limit=MANY)) == 1

    async def test_serialised_writers_are_never_overtaken(self, harness: StoreHarness) -> None:
        """Random interleavings: each key in id order, and everything that was committed."""
        _needs_late_rows(harness)
        for seed in range(8):
            run = Interleaving(harness, seed=seed)
            await run.run(steps=80)
            assert len(run.read) > 10
            assert run.overtaken() == []
            assert await run.lost() == set()
