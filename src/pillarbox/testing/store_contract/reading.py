"""Reading fresh messages: in order, each lane from its mark on; late rows; keys that are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from random import Random
from typing import Final

import pytest

from pillarbox.contracts.store import Claim, Cursor, IdleLanes, QuietLanes, ReadResult, Selection, Settlement, Store
from pillarbox.message import Message
from pillarbox.testing.harness import HarnessTransaction, StoreHarness
from pillarbox.testing.samples import find_key, sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    MANY,
    NEAR,
    OTHER,
    SECOND,
    THIRD,
    hold,
    list_ids,
    own,
    park,
    put,
    read_due,
    read_everything,
    read_key,
    retry,
    settle_failures,
)

__all__ = [
    "ByteLimitContract",
    "Interleaving",
    "LateRowsContract",
    "PeekContract",
    "ReadContract",
    "SkippedKeysContract",
]

_MAX_PAGES: Final = 50
"""More reads than any test needs: a store that returns messages for ever fails."""


async def _read_pages(
    store: Store, partitions: Sequence[int], *, limit: int, rotate: bool = False
) -> list[list[Message]]:
    """Read until two reads in a row find nothing."""
    pages: list[list[Message]] = []
    cursor: Cursor | None = None
    order = list(partitions)
    while len(pages) < 2 or pages[-1] or pages[-2]:
        reading = await store.read("orders", partitions=order, cursor=cursor, limit=limit)
        cursor = reading.cursor
        pages.append(list(reading.messages))
        if rotate:
            order = [*order[1:], order[0]]
        assert len(pages) < _MAX_PAGES
    return pages


class ReadContract:
    """`Store.read` where ids become visible in order."""

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
            harness, sample(key=NEAR), sample(key=FAR), sample(key=NEAR, destination="billing"), sample(key=find_key(9))
        )
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(reading.messages) == [mine]

    async def test_nothing_there_is_no_message(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=FAR))
        assert list((await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
        assert list((await harness.store.read("orders", partitions=[], cursor=None, limit=MANY)).messages) == []

    async def test_a_read_goes_on_where_the_previous_one_ended(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=NEAR) for _ in range(7)))
        pages = await _read_pages(harness.store, [LANE], limit=3)
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
        messages = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, NEAR, NEAR, FAR, FAR, find_key(9))))
        for rotate in (False, True):
            pages = await _read_pages(harness.store, [LANE, OTHER, 9], limit=2, rotate=rotate)
            read = [message for page in pages for message in page]
            assert sorted(list_ids(read)) == list_ids(messages)
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
                read = set(list_ids(reading.messages))
                assert reading.complete <= set(partitions)
                for lane in reading.complete:
                    assert {message.id for message in messages if message.partition == lane} <= read

    async def test_a_read_changes_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        claimed, *_ = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, [claimed.id]))
        before = await read_everything(store)
        first = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        second = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        assert list(first.messages) == list(second.messages)
        assert await read_everything(store) == before

    async def test_a_restarted_lane_is_read_from_its_start(self, harness: StoreHarness) -> None:
        near = await put(harness, sample(key=NEAR), sample(key=NEAR))
        await put(harness, sample(key=FAR))
        reading = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=None, limit=MANY)
        again = await harness.store.read(
            "orders", partitions=[LANE, OTHER], cursor=reading.cursor.restart([LANE]), limit=MANY
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
        assert list_ids(missed)[0] in list_ids(reading.messages)

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
        await settle_failures(store, fence, retry(retrying, delay=None), hold(held))
        await park(store, fence, parked)
        for limit in (1, MANY):  # what waits does not count against the limit
            reading = await store.read("orders", partitions=[LANE], cursor=None, limit=limit)
            assert list(reading.messages) == [fresh]

    async def test_what_was_given_back_is_read_again_from_the_start(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        reading = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        again = await store.read("orders", partitions=[LANE], cursor=reading.cursor.restart([LANE]), limit=MANY)
        assert list(again.messages) == [message]


_WRITERS: Final = 4
_MAX_READS: Final = 200
"""More reads than an interleaving needs at its end."""
_KEYS: Final = tuple(find_key(lane, nth=nth) for lane in (LANE, OTHER) for nth in range(3))


class Interleaving:
    """Random steps of writers and one reader: begin a transaction, write in it, end it, read.

    It keeps the order in which the messages of each key came.
    """

    def __init__(self, harness: StoreHarness, *, seed: int) -> None:
        self._harness = harness
        self._random = Random(seed)  # noqa: S311 - a seed must repeat
        self._open: dict[str, HarnessTransaction] = {}
        self._cursor: Cursor | None = None
        self.read: dict[int, Message] = {}
        """Every message, in the order in which it was read first."""

    async def run(self, *, steps: int) -> None:
        """Take that many steps, end every transaction, and read the rest."""
        async with AsyncExitStack() as stack:
            for _ in range(steps):
                step = self._random.choice(
                    [self._begin, self._begin, self._write, self._write, self._end, self._read_some]
                )
                await step(stack)
            while self._open:
                await self._end(stack)
        for _ in range(_MAX_READS):
            if not await self._read_once():
                break

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Begin a transaction for a free key: writers are serialised if a key has one transaction at a time."""
        free = [key for key in _KEYS if key not in self._open]
        if free and len(self._open) < _WRITERS:
            transaction = await stack.enter_async_context(self._harness.open_transaction())
            self._open[self._random.choice(free)] = transaction
            await self._write(stack)

    async def _write(self, stack: AsyncExitStack) -> None:
        if self._open:
            key = self._random.choice(list(self._open))
            await self._open[key].insert([sample(key=key)])

    async def _end(self, stack: AsyncExitStack) -> None:
        if self._open:
            transaction = self._open.pop(self._random.choice(list(self._open)))
            await (transaction.rollback() if self._random.random() < 0.1 else transaction.commit())

    async def _read_some(self, stack: AsyncExitStack) -> None:
        if self._cursor is not None and self._random.random() < 0.03:
            self._cursor = self._cursor.restart([self._random.choice([LANE, OTHER])])
        await self._read_once()

    async def _read_once(self) -> bool:
        """Read once; return whether there was anything."""
        lanes = [LANE, OTHER]
        self._random.shuffle(lanes)
        reading = await self._harness.store.read("orders", partitions=lanes, cursor=self._cursor, limit=20)
        self._cursor = reading.cursor
        for message in reading.messages:
            self.read.setdefault(message.id, message)
        return bool(reading.messages)

    def find_overtaken(self) -> list[tuple[str | None, int, int]]:
        """List key, id and later id wherever the later message of a key was read first."""
        last: dict[str | None, int] = {}
        found = []
        for id, message in self.read.items():
            if last.get(message.key, 0) > id:
                found.append((message.key, id, last[message.key]))
            last[message.key] = max(id, last.get(message.key, 0))
        return found

    async def find_lost(self) -> set[int]:
        """Return the ids that were committed and never read."""
        return {message.id for message in await self._harness.store.find(Selection(), limit=MANY)} - self.read.keys()


def _skip_without_late_rows(harness: StoreHarness) -> None:
    if not harness.store.features.late_rows:
        pytest.skip("Ids become visible in order in this store.")


async def _read(harness: StoreHarness, cursor: Cursor | None, *partitions: int, limit: int = MANY) -> ReadResult:
    return await harness.store.read("orders", partitions=partitions or [LANE], cursor=cursor, limit=limit)


def _build(name: bytes, *, key: str = NEAR) -> Message:
    return sample(key=key, payload=name)


def _select(message: Message) -> Selection:
    return Selection(message_ids=[message.message_id])


def _list_payloads(reading: ReadResult) -> list[bytes]:
    return [message.payload for message in reading.messages]


async def _read_by_bytes(store: Store, max_bytes: int) -> list[Message]:
    """Read until every lane is read to its end; check that no read is too large."""
    found: list[Message] = []
    cursor: Cursor | None = None
    order = [LANE, OTHER, 9]
    for _ in range(_MAX_PAGES):
        reading = await store.read("orders", partitions=order, cursor=cursor, limit=20, max_bytes=max_bytes)
        cursor = reading.cursor
        # The message that reaches the limit may pass it: without it, the others are below it.
        assert sum(sorted(len(message.payload) for message in reading.messages)[:-1]) < max_bytes
        found += reading.messages
        if not reading.messages and reading.complete == {*order}:
            break
        order = [*order[1:], order[0]]
    return found


class ByteLimitContract:
    """Every read ends with the message whose payload reaches `max_bytes`."""

    async def test_a_read_ends_with_the_message_that_reaches_its_bytes(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=NEAR, payload=bytes(100)) for _ in range(5)))
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY, max_bytes=250)
        assert list(reading.messages) == messages[:3]
        assert LANE not in reading.complete
        rest = await harness.store.read(
            "orders", partitions=[LANE], cursor=reading.cursor, limit=MANY, max_bytes=10_000
        )
        assert list(rest.messages) == messages[3:]
        assert LANE in rest.complete
        exact = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY, max_bytes=200)
        assert list(exact.messages) == messages[:2]

    async def test_one_message_comes_however_large_it_is(self, harness: StoreHarness) -> None:
        large, _ = await put(harness, sample(key=NEAR, payload=bytes(100_000)), sample(key=NEAR))
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY, max_bytes=1)
        assert list(reading.messages) == [large]

    async def test_a_large_message_is_left_for_the_next_read(self, harness: StoreHarness) -> None:
        small, large = await put(harness, sample(key=NEAR, payload=bytes(10)), sample(key=NEAR, payload=bytes(10_000)))
        reading = await harness.store.read("orders", partitions=[LANE], cursor=None, limit=MANY, max_bytes=10)
        assert list(reading.messages) == [small]
        rest = await harness.store.read("orders", partitions=[LANE], cursor=reading.cursor, limit=MANY, max_bytes=10)
        assert list(rest.messages) == [large]

    async def test_reads_by_bytes_find_everything_once_and_in_order(self, harness: StoreHarness) -> None:
        dice = Random(1)  # noqa: S311 - it must repeat
        keys = [find_key(lane, nth=nth) for lane in (LANE, OTHER, 9) for nth in (0, 1)]
        messages = await put(
            harness, *(sample(key=dice.choice(keys), payload=bytes(dice.randrange(200))) for _ in range(30))
        )
        for max_bytes in (1, 150, 1_000):
            found = await _read_by_bytes(harness.store, max_bytes)
            assert sorted(list_ids(found)) == list_ids(messages)
            for lane in (LANE, OTHER, 9):
                ids = [message.id for message in found if message.partition == lane]
                assert ids == sorted(ids)

    async def test_due_messages_end_with_the_one_that_reaches_the_bytes(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key, payload=bytes(100)) for key in (NEAR, FAR, SECOND)))
        fence = await own(store, LANE, OTHER)
        for message in messages:
            await settle_failures(store, fence, retry(message))
            harness.clock.advance(timedelta(milliseconds=1))
        harness.clock.advance(HOUR)
        due = await read_due(store, LANE, OTHER, max_bytes=101)
        assert list_ids(due) == list_ids(messages[:2])
        assert [len(message.payload) for message in due] == [100, 100]
        assert list_ids(await read_due(store, LANE, OTHER, max_bytes=100)) == [messages[0].id]

    async def test_a_key_ends_with_the_message_that_reaches_the_bytes(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=NEAR, payload=bytes(100)) for _ in range(4)))
        await park(store, await own(store, LANE), *messages)
        first = await read_key(store, max_bytes=101)
        assert list_ids(first) == list_ids(messages[:2])
        assert list_ids(await read_key(store, max_bytes=100)) == [messages[0].id]

    async def test_late_ones_that_are_too_large_make_every_lane_start_over(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=NEAR, payload=bytes(100)) for _ in range(3)])
            await harness.insert([_build(b"4", key=SECOND)])
            cursor: Cursor | None = (await _read(harness, None)).cursor
            await slow.commit()
        found: list[int] = []
        for _ in range(5):
            reading = await harness.store.read("orders", partitions=[LANE], cursor=cursor, limit=MANY, max_bytes=150)
            assert sum(len(message.payload) for message in reading.messages) < 300
            cursor = reading.cursor
            found += [message.id for message in reading.messages if len(message.payload) == 100]
        assert len(found) == len(set(found)) == 3
        assert found == sorted(found)


class LateRowsContract:
    """`Store.read` where ids become visible out of order."""

    async def test_late_by_a_transaction_older_than_what_was_read(self, harness: StoreHarness) -> None:
        """The slow transaction was in progress, and among those the snapshot lists (xip)."""
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"100")])
            await harness.insert([_build(b"105", key=SECOND)])
            first = await _read(harness, None)
            assert _list_payloads(first) == [b"105"]
            await slow.commit()
        second = await _read(harness, first.cursor)
        assert _list_payloads(second) == [b"100"]
        await harness.insert([_build(b"106")])
        assert _list_payloads(await _read(harness, second.cursor)) == [b"106"]

    async def test_late_comes_together_with_a_later_one_of_its_key(self, harness: StoreHarness) -> None:
        """T1 draws 100 and is slow, 105 is read, T1 commits, T3 writes 106 for T1's key: 100 stands before 106."""
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"100")])
            await harness.insert([_build(b"105", key=SECOND)])
            first = await _read(harness, None)
            await slow.commit()
        await harness.insert([_build(b"106")])
        assert _list_payloads(await _read(harness, first.cursor)) == [b"100", b"106"]

    async def test_late_by_a_transaction_younger_than_what_was_read(self, harness: StoreHarness) -> None:
        """The slow transaction began after the one that was read, so the snapshot ends before it (xmax)."""
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as fast, harness.open_transaction() as slow:
            await fast.insert([_build(b"99", key=SECOND)])
            await slow.insert([_build(b"100")])
            await fast.insert([_build(b"105", key=SECOND)])
            await fast.commit()
            first = await _read(harness, None)
            assert _list_payloads(first) == [b"99", b"105"]
            await slow.commit()
        await harness.insert([_build(b"106")])
        assert _list_payloads(await _read(harness, first.cursor)) == [b"100", b"106"]

    async def test_late_ones_of_both_sorts_at_once(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with (
            harness.open_transaction() as older,
            harness.open_transaction() as fast,
            harness.open_transaction() as younger,
        ):
            await older.insert([_build(b"1")])
            await fast.insert([_build(b"2", key=SECOND)])
            await younger.insert([_build(b"3")])
            await fast.insert([_build(b"4", key=SECOND)])
            await fast.commit()
            first = await _read(harness, None)
            assert _list_payloads(first) == [b"2", b"4"]
            await younger.commit()
            await older.commit()
        assert _list_payloads(await _read(harness, first.cursor)) == [b"1", b"3"]

    async def test_a_late_message_comes_once(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"late")])
            await harness.insert([_build(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        reading = await _read(harness, cursor)
        assert _list_payloads(reading) == [b"late"]
        for _ in range(3):
            reading = await _read(harness, reading.cursor)
            assert _list_payloads(reading) == []

    async def test_a_slow_transaction_may_outlast_many_reads(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"late")])
            cursor = None
            for name in (b"1", b"2", b"3"):
                await harness.insert([_build(name, key=SECOND)])
                reading = await _read(harness, cursor)
                assert _list_payloads(reading) == [name]
                cursor = reading.cursor
            await slow.commit()
        assert _list_payloads(await _read(harness, cursor)) == [b"late"]

    async def test_late_ones_come_in_addition_to_the_limit(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"1"), _build(b"2"), _build(b"3")])
            await harness.insert([_build(b"4", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        await harness.insert([_build(b"5"), _build(b"6")])
        reading = await _read(harness, cursor, limit=1)
        assert _list_payloads(reading) == [b"1", b"2", b"3", b"5"]
        assert _list_payloads(await _read(harness, reading.cursor, limit=1)) == [b"6"]

    async def test_late_in_another_lane_or_destination_stays_there(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"far", key=FAR), sample(key=NEAR, destination="billing")])
            await harness.insert([_build(b"near"), _build(b"other", key=FAR)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        assert _list_payloads(await _read(harness, cursor)) == []

    async def test_a_lane_left_out_when_its_late_message_came_loses_nothing(self, harness: StoreHarness) -> None:
        """The snapshot of the read between knows the slow transaction as ended, and did not look at its lane."""
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"late")])
            await harness.insert([_build(b"near"), _build(b"far", key=FAR)])
            both = await _read(harness, None, LANE, OTHER)
            await slow.commit()
        one = await _read(harness, both.cursor, OTHER)
        assert b"late" in _list_payloads(await _read(harness, one.cursor, LANE, OTHER))

    async def test_a_restarted_lane_shows_a_late_message_once(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"late")])
            await harness.insert([_build(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        assert _list_payloads(await _read(harness, cursor.restart([LANE]))) == [b"late", b"early"]

    async def test_a_late_message_that_rolled_back_never_comes(self, harness: StoreHarness) -> None:
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([_build(b"late")])
            await harness.insert([_build(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.rollback()
        assert _list_payloads(await _read(harness, cursor)) == []

    async def test_only_fresh_messages_come_late(self, harness: StoreHarness) -> None:
        """A late one that was deferred, or has been parked since, comes by its own way."""
        _skip_without_late_rows(harness)
        store = harness.store
        parked = _build(b"parked")
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=NEAR, available_at=harness.clock.now() - HOUR), parked])
            await harness.insert([_build(b"early", key=SECOND)])
            cursor = (await _read(harness, None)).cursor
            await slow.commit()
        await park(store, await own(store, LANE), *await store.find(_select(parked), limit=MANY))
        assert _list_payloads(await _read(harness, cursor)) == []
        assert len(await read_due(store)) == 1
        assert len(await read_key(store)) == 1

    async def test_serialised_writers_are_never_overtaken(self, harness: StoreHarness) -> None:
        """Random interleavings: each key in id order, and everything that was committed."""
        _skip_without_late_rows(harness)
        for seed in range(8):
            run = Interleaving(harness, seed=seed)
            await run.run(steps=80)
            assert len(run.read) > 10
            assert run.find_overtaken() == []
            assert await run.find_lost() == set()


async def _start(harness: StoreHarness) -> Cursor:
    """Return a cursor at the start of two lanes; skip the test where the store skips no keys."""
    if not harness.store.features.skips_keys:
        pytest.skip("This store leaves no key out.")
    return (await harness.store.read("orders", partitions=[LANE, OTHER], cursor=None, limit=MANY)).cursor


async def _read_both_lanes(harness: StoreHarness, cursor: Cursor, *, limit: int = MANY) -> ReadResult:
    return await harness.store.read("orders", partitions=[LANE, OTHER], cursor=cursor, limit=limit)


class SkippedKeysContract:
    """`Store.read` with keys that the cursor skips."""

    async def test_a_skipped_key_does_not_come(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, FAR, THIRD, NEAR)))
        reading = await _read_both_lanes(harness, start.skip_keys([NEAR]))
        assert list(reading.messages) == [message for message in messages if message.key != NEAR]
        assert reading.complete == {LANE, OTHER}

    async def test_several_keys_can_be_skipped(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        _, _, third, _ = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, FAR)))
        assert list((await _read_both_lanes(harness, start.skip_keys([NEAR, SECOND, FAR]))).messages) == [third]

    async def test_a_message_without_a_key_is_never_skipped(self, harness: StoreHarness) -> None:
        await _start(harness)
        store, everywhere = harness.store, range(64)
        start = await store.read("orders", partitions=everywhere, cursor=None, limit=MANY)
        _, keyless = await put(harness, sample(key=NEAR), sample(key=None))
        reading = await store.read("orders", partitions=everywhere, cursor=start.cursor.skip_keys([NEAR]), limit=MANY)
        assert list(reading.messages) == [keyless]

    async def test_what_is_skipped_does_not_count_against_the_limit(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        *_, last = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, NEAR, SECOND)))
        assert list((await _read_both_lanes(harness, start.skip_keys([NEAR]), limit=1)).messages) == [last]

    async def test_the_mark_passes_what_is_skipped_at_the_end_of_a_lane(self, harness: StoreHarness) -> None:
        """Or each read would walk over it again."""
        start = await _start(harness)
        *_, last = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, NEAR)))
        reading = await _read_both_lanes(harness, start.skip_keys([NEAR]))
        assert reading.cursor.low[LANE] == last.id

    async def test_the_mark_of_a_lane_that_was_cut_off_passes_nothing_unread(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        messages = await put(harness, *(sample(key=key) for key in (SECOND, NEAR, THIRD, NEAR, SECOND, NEAR)))
        cursor, read = start, list[Message]()
        for _ in range(4):
            reading = await _read_both_lanes(harness, cursor.skip_keys([NEAR]), limit=1)
            cursor, read = reading.cursor, [*read, *reading.messages]
        assert read == [message for message in messages if message.key != NEAR]

    async def test_what_stands_above_the_mark_of_a_lane_that_was_cut_off_is_not_passed(
        self, harness: StoreHarness
    ) -> None:
        """A key that is not skipped any more is read on from the mark. Older messages of another lane come first."""
        start = await _start(harness)
        keys = (FAR, FAR, FAR, FAR, SECOND, THIRD, NEAR, THIRD, NEAR)
        messages = await put(harness, *(sample(key=key) for key in keys))
        reading = await _read_both_lanes(harness, start.skip_keys([NEAR]), limit=4)
        again = await _read_both_lanes(harness, reading.cursor)
        found = [one.id for one in again.messages if one.partition == LANE]
        above = [one.id for one in messages if one.partition == LANE and one.id > reading.cursor.low[LANE]]
        assert found == above
        assert len(above) > 1

    async def test_skipped_once_is_not_skipped_for_ever(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        await put(harness, sample(key=NEAR))
        reading = await _read_both_lanes(harness, start.skip_keys([NEAR]))
        (later,) = await put(harness, sample(key=NEAR))
        assert list((await _read_both_lanes(harness, reading.cursor)).messages) == [later]

    async def test_what_was_skipped_is_still_there(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        before, *skipped = await put(harness, *(sample(key=key) for key in (SECOND, NEAR, NEAR)))
        reading = await _read_both_lanes(harness, start.skip_keys([NEAR]))
        above = Cursor({LANE: before.id}, None, reading.cursor.session)
        again = await harness.store.read("orders", partitions=[LANE], cursor=above, limit=MANY)
        assert list(again.messages) == skipped
        assert again.complete == {LANE}

    async def test_what_waits_is_no_end_of_a_lane(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        first, waiting = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await park(harness.store, await own(harness.store, LANE), waiting)
        reading = await _read_both_lanes(harness, start.skip_keys([NEAR]))
        assert (list_ids(reading.messages), reading.cursor.low[LANE]) == ([], first.id)

    async def test_a_cursor_of_another_connection_skips_nothing(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        messages = await put(harness, sample(key=NEAR))
        store = await harness.restart()
        reading = await store.read("orders", partitions=[LANE, OTHER], cursor=start.skip_keys([NEAR]), limit=MANY)
        assert list(reading.messages) == messages

    async def test_what_comes_late_of_a_skipped_key_does_come(self, harness: StoreHarness) -> None:
        start = await _start(harness)
        if not harness.store.features.late_rows:
            pytest.skip("Ids become visible in order in this store.")
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=NEAR, payload=b"late")])
            await harness.insert([sample(key=SECOND)])
            reading = await _read_both_lanes(harness, start.skip_keys([NEAR]))
            await slow.commit()
        again = await _read_both_lanes(harness, reading.cursor.skip_keys([NEAR]))
        assert [message.payload for message in again.messages] == [b"late"]


_IDLE: Final = ("orders", "billing")
"""Destinations that are looked into at once."""


async def _settle_down(harness: StoreHarness) -> dict[str, IdleLanes]:
    """Deliver a message to each destination, and read on to the end: from here on only new ones are found."""
    store, idle = harness.store, {}
    for name in _IDLE:
        (message,) = await put(harness, sample(key=NEAR, destination=name))
        fence = await own(store, LANE, OTHER, destination=name)
        first = await store.read(name, partitions=[LANE, OTHER], cursor=None, limit=MANY)
        assert list_ids(first.messages) == [message.id]
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(delivered=[message.id], finished=[1]))
        last = await store.read(name, partitions=[LANE, OTHER], cursor=first.cursor, limit=MANY)
        await store.leave(fence.relay_id)
        idle[name] = IdleLanes([LANE, OTHER], last.cursor)
    return idle


def _go_on(quiet: QuietLanes) -> IdleLanes:
    return IdleLanes([LANE, OTHER], quiet.cursor)


class PeekContract:
    """`Store.peek`."""

    async def test_destinations_with_nothing_to_read_are_quiet(self, harness: StoreHarness) -> None:
        idle = await _settle_down(harness)
        for _ in range(3):
            quiet = await harness.store.peek(idle)
            assert quiet.keys() == set(_IDLE)
            assert not any(lanes.has_blocked for lanes in quiet.values())
            idle = {name: _go_on(lanes) for name, lanes in quiet.items()}

    async def test_nobody_asks_for_nothing(self, harness: StoreHarness) -> None:
        assert dict(await harness.store.peek({})) == {}

    async def test_a_fresh_message_is_seen_in_its_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        idle = {name: _go_on(lanes) for name, lanes in (await store.peek(await _settle_down(harness))).items()}
        (message,) = await put(harness, sample(key=FAR, destination="billing"))
        assert (await store.peek(idle)).keys() == {"orders"}
        found = await store.read("billing", partitions=[LANE, OTHER], cursor=idle["billing"].cursor, limit=MANY)
        assert list_ids(found.messages) == [message.id]

    async def test_what_came_after_a_look_is_read_from_its_cursor(self, harness: StoreHarness) -> None:
        quiet = await harness.store.peek(await _settle_down(harness))
        messages = await put(harness, sample(key=NEAR), sample(key=FAR), sample(key=NEAR))
        cursor = quiet["orders"].cursor
        found = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=cursor, limit=MANY)
        assert list_ids(found.messages) == list_ids(messages)

    async def test_a_deferred_message_is_seen_when_it_is_due(self, harness: StoreHarness) -> None:
        idle = await _settle_down(harness)
        (message,) = await put(harness, sample(key=FAR), delay=HOUR)
        assert message.available_at is not None
        assert (await harness.store.peek(idle)).keys() == set(_IDLE)
        harness.clock.jump(message.available_at)
        assert (await harness.store.peek(idle)).keys() == {"billing"}

    async def test_a_retry_is_seen_when_it_is_due(self, harness: StoreHarness) -> None:
        store, idle = harness.store, await _settle_down(harness)
        (message,) = await put(harness, sample(key=NEAR))
        await settle_failures(store, await own(store, LANE), retry(message, delay=HOUR))
        quiet = await store.peek(idle)
        assert {name: lanes.has_blocked for name, lanes in quiet.items()} == {"orders": True, "billing": False}
        harness.clock.advance(HOUR)
        assert (await store.peek(idle)).keys() == {"billing"}

    async def test_what_blocks_a_key_is_told(self, harness: StoreHarness) -> None:
        store, idle = harness.store, await _settle_down(harness)
        fence = await own(store, LANE, OTHER)
        (held,) = await put(harness, sample(key=NEAR))
        await settle_failures(store, fence, hold(held))
        assert (await store.peek(idle))["orders"].has_blocked
        await store.discard(Selection(ids=[held.id]), by="test", reason="none", limit=MANY)
        (parked,) = await put(harness, sample(key=FAR))
        await park(store, fence, parked)
        assert (await store.peek(idle))["orders"].has_blocked

    async def test_a_late_message_is_seen(self, harness: StoreHarness) -> None:
        """It was written before the last read, and committed after it."""
        _skip_without_late_rows(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=NEAR)])
            idle = await _settle_down(harness)
            quiet = await harness.store.peek(idle)
            assert quiet.keys() == set(_IDLE)
            await slow.commit()
        assert "orders" not in await harness.store.peek(idle)
        assert "orders" not in await harness.store.peek({name: _go_on(lanes) for name, lanes in quiet.items()})

    async def test_what_was_in_progress_during_a_look_is_read_from_its_cursor(self, harness: StoreHarness) -> None:
        """Its transaction began after the last read, and before the look."""
        _skip_without_late_rows(harness)
        idle = await _settle_down(harness)
        async with harness.open_transaction() as slow:
            await slow.insert([sample(key=FAR)])
            quiet = await harness.store.peek(idle)
            fresh = await put(harness, sample(key=FAR), sample(key=NEAR))
            cursor = quiet["orders"].cursor
            first = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=cursor, limit=MANY)
            assert list_ids(first.messages) == list_ids(fresh)
            await slow.commit()
        second = await harness.store.read("orders", partitions=[LANE, OTHER], cursor=first.cursor, limit=MANY)
        assert len(second.messages) == 1
