"""Waiting messages: deferred and retrying ones that come due, and keys that are blocked."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.contracts.store import BlockedKey, Claim, DueMark, DueMessage, Fence, Selection, Settlement, Store
from pillarbox.message import Message, State, Waits
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
    close,
    fail,
    hold,
    list_ids,
    own,
    park,
    put,
    read_due,
    read_everything,
    read_key,
    reload,
    retry,
    settle_failures,
)

__all__ = ["BlockedKeysContract", "DueContract"]

_MINUTE = timedelta(minutes=1)


class DueContract:
    """`Store.find_due`, `Store.read_due` and `Store.next_due`."""

    async def _read_due(self, harness: StoreHarness, *partitions: int, limit: int = MANY) -> list[int]:
        return list_ids(await read_due(harness.store, *partitions, limit=limit))

    async def test_longest_due_comes_first_across_lanes(self, harness: StoreHarness) -> None:
        now = harness.clock.now()
        young, old, oldest, middle = await put(
            harness,
            sample(key=NEAR, available_at=now),
            sample(key=NEAR, available_at=now - 2 * HOUR),
            sample(key=FAR, available_at=now - 3 * HOUR),
            sample(key=FAR, available_at=now - HOUR),
        )
        assert await self._read_due(harness, LANE, OTHER) == list_ids([oldest, old, middle, young])
        assert await self._read_due(harness, LANE, OTHER, limit=2) == list_ids([oldest, old])
        assert await self._read_due(harness, LANE, limit=1) == [old.id]

    async def test_equally_due_come_in_id_order(self, harness: StoreHarness) -> None:
        at = harness.clock.now()
        messages = await put(harness, *(sample(key=key, available_at=at) for key in (NEAR, FAR, SECOND, FAR)))
        assert await self._read_due(harness, OTHER, LANE) == list_ids(messages)

    async def test_nothing_comes_before_its_time(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now() + HOUR))
        harness.clock.advance(HOUR - timedelta(microseconds=1))
        assert list(await harness.store.find_due("orders", partitions=[LANE], limit=MANY)) == []
        assert list(await harness.store.read_due("orders", [message.id])) == []
        harness.clock.advance(timedelta(microseconds=1))
        assert await self._read_due(harness) == [message.id]

    async def test_a_delayed_message_comes_due(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        assert message.available_at is not None
        harness.clock.jump(message.available_at - timedelta(microseconds=1))
        assert await self._read_due(harness) == []
        harness.clock.jump(message.available_at)
        assert await self._read_due(harness) == [message.id]

    async def test_a_retry_comes_due_after_its_delay(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await settle_failures(harness.store, await own(harness.store, LANE), retry(message, delay=_MINUTE))
        assert await self._read_due(harness) == []
        harness.clock.advance(_MINUTE)
        assert await self._read_due(harness) == [message.id]

    async def test_a_retry_without_a_delay_is_due_at_once(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await settle_failures(harness.store, await own(harness.store, LANE), retry(message, delay=None))
        assert await self._read_due(harness) == [message.id]

    async def test_deferred_and_retrying_are_told_apart(self, harness: StoreHarness) -> None:
        retrying, deferred = await put(
            harness, sample(key=NEAR), sample(key=SECOND, available_at=harness.clock.now() + _MINUTE)
        )
        await settle_failures(harness.store, await own(harness.store, LANE), retry(retrying, delay=_MINUTE))
        harness.clock.advance(_MINUTE)
        due = await read_due(harness.store)
        assert [(message.id, message.waits) for message in due] == [
            (retrying.id, Waits.RETRY),
            (deferred.id, Waits.DEFERRED),
        ]

    async def test_a_search_goes_on_beyond_its_mark(self, harness: StoreHarness) -> None:
        """Longest due first across lanes of any length, each message once, page by page."""
        now = harness.clock.now()
        ages = [(NEAR, age % 7) for age in range(40)] + [(FAR, age) for age in range(3)]
        messages = await put(harness, *(sample(key=key, available_at=now - age * _MINUTE) for key, age in ages))
        expected = sorted(messages, key=lambda message: (message.available_at, message.id))
        for limit in (1, 7, len(messages)):
            found: list[int] = []
            after: DueMark | None = None
            while page := await harness.store.find_due("orders", partitions=[LANE, OTHER], limit=limit, after=after):
                assert len(page) <= limit
                assert not set(found) & {due.id for due in page}, "a search that does not go on never ends"
                found += [due.id for due in page]
                after = page[-1].mark
            assert found == list_ids(expected)

    async def test_a_search_says_what_must_be_known_to_choose(self, harness: StoreHarness) -> None:
        now = harness.clock.now()
        (message,) = await put(harness, sample(key=NEAR, payload=b"12345", available_at=now))
        (found,) = await harness.store.find_due("orders", partitions=[LANE], limit=MANY)
        assert found == DueMessage(message.id, LANE, NEAR, Waits.DEFERRED, now, 5)

    async def test_what_is_not_due_any_more_is_not_read(self, harness: StoreHarness) -> None:
        """Between the search and the read an operator may have changed it."""
        store, now = harness.store, harness.clock.now()
        later, gone, due, elsewhere = await put(
            harness,
            *(sample(key=NEAR, available_at=now) for _ in range(3)),
            sample(key=NEAR, destination="billing", available_at=now),
        )
        await store.defer(Selection(ids=[later.id]), until=now + HOUR, by="anna", limit=1)
        await store.discard(Selection(ids=[gone.id]), by="anna", reason="not wanted", limit=1)
        read = await store.read_due("orders", list_ids([later, gone, due, elsewhere]))
        assert list_ids(read) == [due.id]

    async def test_only_what_waits_for_a_time_comes_due(self, harness: StoreHarness) -> None:
        store = harness.store
        _, held, parked = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, hold(held))
        await park(store, fence, parked)
        harness.clock.advance(timedelta(days=10_000))
        assert await self._read_due(harness) == []

    async def test_due_keeps_to_its_destination_and_lanes(self, harness: StoreHarness) -> None:
        now = harness.clock.now()
        mine, *_ = await put(
            harness,
            sample(key=NEAR, available_at=now),
            sample(key=FAR, available_at=now),
            sample(key=NEAR, destination="billing", available_at=now),
        )
        assert await self._read_due(harness) == [mine.id]

    async def test_reading_the_due_changes_nothing(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now()))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [message.id]))
        before = await read_everything(harness.store)
        await self._read_due(harness)
        assert await read_everything(harness.store) == before

    async def test_a_due_message_is_whole(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}, available_at=harness.clock.now()))
        due: list[Message] = list(await read_due(harness.store))
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
        await settle_failures(store, await own(store, LANE), retry(retrying, delay=_MINUTE))
        assert await store.next_due("orders", partitions=[LANE]) == now + _MINUTE
        harness.clock.advance(HOUR)
        assert await store.next_due("orders", partitions=[LANE]) == now + _MINUTE

    async def test_next_due_is_none_where_nothing_waits_for_a_time(self, harness: StoreHarness) -> None:
        store = harness.store
        _, held, parked = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, hold(held))
        await park(store, fence, parked)
        assert await store.next_due("orders", partitions=[LANE]) is None


def _build_keyless(partition: int) -> Message:
    while (message := sample(key=None)).partition != partition:
        pass
    return message


async def _list_blocked(store: Store, *partitions: int) -> list[tuple[int, str]]:
    keys = await store.blocked_keys("orders", partitions=partitions or [LANE])
    return sorted((key.partition, key.key) for key in keys)


async def _put_queue(harness: StoreHarness, fence: Fence) -> list[Message]:
    """Put a retrying head, two parked behind it and a held one of one key, with another key in between."""
    head, _, first, second, held = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, NEAR, NEAR, NEAR)))
    await settle_failures(harness.store, fence, retry(head), hold(held))
    await park(harness.store, fence, first, second)
    return [head, first, second, held]


class BlockedKeysContract:
    """`Store.blocked_keys` and `Store.read_keys`."""

    async def test_retrying_parked_and_held_messages_block_their_key(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        retrying, held, parked = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settle_failures(store, fence, retry(retrying))
        assert await _list_blocked(store) == [(LANE, NEAR)]
        await settle_failures(store, fence, hold(held))
        assert await _list_blocked(store) == sorted([(LANE, NEAR), (LANE, SECOND)])
        await park(store, fence, parked)
        assert await _list_blocked(store) == sorted([(LANE, NEAR), (LANE, SECOND), (LANE, THIRD)])

    async def test_a_blocked_key_says_what_its_first_message_waits_for(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        queue = await _put_queue(harness, fence)
        for number, waits in enumerate((Waits.RETRY, Waits.PARKED, Waits.PARKED, Waits.HELD), start=1):
            (blocked,) = await store.blocked_keys("orders", partitions=[LANE])
            assert blocked == BlockedKey(LANE, NEAR, waits)
            assert isinstance(blocked.front, Waits)
            await close(store, fence, queue[number - 1], State.DELIVERED, number=number)

    async def test_fresh_deferred_and_closed_messages_do_not_block(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        _, failed, *_ = await put(
            harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD, available_at=harness.clock.now() + HOUR)
        )
        await settle_failures(store, fence, fail(failed))
        assert await _list_blocked(store) == []

    async def test_a_due_retry_still_blocks(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await settle_failures(harness.store, await own(harness.store, LANE), retry(message))
        harness.clock.advance(HOUR)
        assert await _list_blocked(harness.store) == [(LANE, NEAR)]

    async def test_a_key_is_named_once_however_many_wait(self, harness: StoreHarness) -> None:
        await _put_queue(harness, await own(harness.store, LANE))
        assert await _list_blocked(harness.store) == [(LANE, NEAR)]

    async def test_keyless_messages_block_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        retrying, held, keyed = await put(harness, _build_keyless(LANE), _build_keyless(LANE), sample(key=NEAR))
        await settle_failures(store, fence, retry(retrying), hold(held), retry(keyed))
        assert await _list_blocked(store) == [(LANE, NEAR)]

    async def test_blocked_keys_keep_to_their_destination_and_lanes(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far, billed = await put(
            harness, sample(key=NEAR), sample(key=FAR), sample(key=SECOND, destination="billing")
        )
        await settle_failures(store, await own(store, LANE, OTHER), retry(near), retry(far))
        await settle_failures(store, await own(store, LANE, destination="billing"), retry(billed))
        assert await _list_blocked(store, LANE) == [(LANE, NEAR)]
        assert await _list_blocked(store, OTHER) == [(OTHER, FAR)]
        assert await _list_blocked(store, LANE, OTHER) == sorted([(LANE, NEAR), (OTHER, FAR)])

    async def test_a_key_is_free_when_its_last_blocked_message_closes(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        queue = await _put_queue(harness, fence)
        for number, message in enumerate(queue, start=1):
            assert await _list_blocked(store) == [(LANE, NEAR)]
            await close(store, fence, message, State.DELIVERED, number=number)
        assert await _list_blocked(store) == []

    async def test_unusual_keys_block_like_others(self, harness: StoreHarness) -> None:
        store = harness.store
        for key in ("", " ", "ä\U0001f4ee", "%", "a'b\"c\\"):
            (message,) = await put(harness, sample(key=key))
            fence = await own(store, message.partition, destination="orders")
            await settle_failures(store, fence, retry(message))
            assert (message.partition, key) in await _list_blocked(store, message.partition)
            found = await read_key(store, key, partition=message.partition)
            assert list_ids(found) == [message.id]
            await store.leave(fence.relay_id)

    async def test_the_messages_of_a_key_come_in_id_order(self, harness: StoreHarness) -> None:
        queue = await _put_queue(harness, await own(harness.store, LANE))
        found = await read_key(harness.store)
        assert list_ids(found) == list_ids(queue)
        assert [message.waits for message in found] == [Waits.RETRY, Waits.PARKED, Waits.PARKED, Waits.HELD]

    async def test_a_key_is_read_up_to_its_limit(self, harness: StoreHarness) -> None:
        queue = await _put_queue(harness, await own(harness.store, LANE))
        for limit in (1, 2, 3):
            assert list_ids(await read_key(harness.store, limit=limit)) == list_ids(queue[:limit])

    async def test_many_keys_are_read_at_once_in_their_order(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE, OTHER)
        messages = await put(harness, *(sample(key=key) for key in (NEAR, FAR, SECOND, NEAR, FAR, THIRD)))
        await park(store, fence, *messages)
        keys = [(LANE, SECOND), (OTHER, FAR), (LANE, "nobody"), (LANE, NEAR)]
        found = await store.read_keys("orders", keys, key_limit=MANY, limit=MANY)
        assert [[message.key for message in one.messages] for one in found] == [[SECOND], [FAR, FAR], [], [NEAR, NEAR]]
        assert [one.complete for one in found] == [True] * 4

    async def test_a_key_that_the_limits_cut_is_not_complete(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(
            harness, *(sample(key=key, payload=bytes(100)) for key in (NEAR, SECOND, NEAR, SECOND, NEAR, THIRD))
        )
        await park(store, await own(store, LANE), *messages)
        keys = [(LANE, key) for key in (NEAR, SECOND, THIRD)]

        async def read(**limits: int) -> list[tuple[int, bool]]:
            found = await store.read_keys("orders", keys, **{"key_limit": MANY, "limit": MANY, **limits})
            return [(len(one.messages), one.complete) for one in found]

        assert await read() == [(3, True), (2, True), (1, True)]
        assert await read(key_limit=2) == [(2, False), (2, False), (1, True)]
        assert await read(limit=4) == [(3, True), (1, False)]
        assert await read(max_bytes=301) == [(3, True), (1, False)]

    async def test_a_key_shows_neither_fresh_nor_deferred_messages(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR), sample(key=NEAR, available_at=harness.clock.now()))
        assert list(await read_key(harness.store)) == []

    async def test_a_key_shows_no_other_key_of_its_lane(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settle_failures(store, await own(store, LANE), retry(mine), retry(other))
        found = await read_key(store)
        assert list_ids(found) == [mine.id]

    async def test_a_key_keeps_to_its_destination(self, harness: StoreHarness) -> None:
        await _put_queue(harness, await own(harness.store, LANE))
        assert list(await read_key(harness.store, destination="billing")) == []

    async def test_a_message_of_a_key_is_whole(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}, subject="s"))
        await settle_failures(store, fence, retry(message))
        found = await read_key(store)
        assert list(found) == [await reload(store, message)]

    async def test_the_rest_goes_on_when_the_head_closes(self, harness: StoreHarness) -> None:
        """Nothing is rewritten: the parked ones are read from their key, as they were."""
        store = harness.store
        fence = await own(store, LANE)
        head, first, second, held = await _put_queue(harness, fence)
        before = await read_key(store)
        await close(store, fence, head, State.DELIVERED)
        after = await read_key(store)
        assert list(after) == list(before)[1:]
        await store.settle(fence, Settlement(delivered=list_ids([first, second, held])))
        assert list(await read_key(store)) == []
