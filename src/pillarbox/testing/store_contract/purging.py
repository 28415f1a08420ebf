"""Retention: what is closed and old goes, oldest first; nothing else does."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.durations import FOREVER
from pillarbox.message import Message, State
from pillarbox.protocols import Claim, Selection
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    MANY,
    NEAR,
    SECOND,
    THIRD,
    close,
    everything,
    fail,
    hold,
    ids,
    own,
    park,
    put,
    retry,
    settled,
)

__all__ = ["PurgingContract"]

_CLOSED = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)


async def _closed_an_hour_apart(harness: StoreHarness, count: int, state: State) -> list[Message]:
    """Closed in the reverse order of their ids, so that oldest first is not id order."""
    store = harness.store
    messages = await put(harness, *(sample(key=NEAR) for _ in range(count)))
    fence = await own(store, LANE)
    for message in reversed(messages):
        await close(store, fence, message, state)
        harness.clock.advance(HOUR)
    return messages


async def _left(harness: StoreHarness) -> list[int]:
    return ids(await harness.store.find(Selection(), limit=MANY))


class PurgingContract:
    """`Store.purge`, `Store.purge_ids` and `Store.purge_inbox`."""

    async def test_only_what_is_old_enough_goes(self, harness: StoreHarness) -> None:
        messages = await _closed_an_hour_apart(harness, 3, State.DELIVERED)
        purge = harness.store.purge
        assert await purge(State.DELIVERED, older_than=3 * HOUR + timedelta(microseconds=1), limit=MANY) == 0
        assert await purge(State.DELIVERED, older_than=2 * HOUR, limit=MANY) == 2
        assert await _left(harness) == [messages[0].id]

    async def test_the_oldest_goes_first_in_batches(self, harness: StoreHarness) -> None:
        first, second, third = await _closed_an_hour_apart(harness, 3, State.FAILED)
        for left in ([first, second], [first], []):
            assert await harness.store.purge(State.FAILED, older_than=HOUR, limit=1) == 1
            assert await _left(harness) == ids(left)
        assert third.id
        assert await harness.store.purge(State.FAILED, older_than=HOUR, limit=1) == 0

    async def test_nothing_is_at_once(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        assert await harness.store.purge(State.DELIVERED, older_than=timedelta(0), limit=MANY) == 1
        assert await _left(harness) == []

    async def test_forever_is_never(self, harness: StoreHarness) -> None:
        messages = await _closed_an_hour_apart(harness, 2, State.FAILED)
        assert await harness.store.purge(State.FAILED, older_than=FOREVER, limit=MANY) == 0
        assert await _left(harness) == ids(messages)

    async def test_each_state_goes_by_itself(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in _CLOSED))
        for message, state in zip(messages, _CLOSED, strict=True):
            await close(store, fence, message, state)
        harness.clock.advance(HOUR)
        for place, state in enumerate(_CLOSED, start=1):
            assert await store.purge(state, older_than=HOUR, limit=MANY) == 1
            assert await _left(harness) == ids(messages[place:])

    async def test_what_is_open_never_goes(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(
            harness,
            *(sample(key=key) for key in (NEAR, SECOND, SECOND, THIRD, NEAR)),
            sample(key=NEAR, available_at=harness.clock.now() + HOUR),
        )
        _, retrying, parked, held, sending, _ = messages
        await settled(store, fence, retry(retrying), hold(held))
        await park(store, fence, parked)
        await store.claim(fence, Claim(1, [sending.id]))
        harness.clock.advance(timedelta(days=1_000))
        for state in State:
            assert await store.purge(state, older_than=HOUR, limit=MANY) == 0
        assert await store.purge_ids(ids(messages)) == 0
        assert await _left(harness) == ids(messages)

    async def test_the_journal_goes_with_its_message_and_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        first = sample(key=NEAR)
        gone, kept = await put(harness, first, sample(key=NEAR, destination="billing", message_id=first.message_id))
        await settled(store, await own(store, LANE), fail(gone))
        await settled(store, await own(store, LANE, destination="billing"), retry(kept))
        await store.pause("orders", by="ann", reason="r")
        assert await store.purge(State.FAILED, older_than=timedelta(0), limit=MANY) == 1
        lines = [(line.destination, line.action) for line in await store.journal()]
        assert lines == [("billing", "attempt_failed"), ("orders", "paused")]

    async def test_named_ones_go_with_their_journal(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        first, second, third = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settled(store, fence, fail(first), fail(second))
        assert await store.purge_ids([first.id, third.id, 987654]) == 1
        assert await _left(harness) == ids([second, third])
        assert [line.message_id for line in await store.journal()] == [second.message_id]
        assert await store.purge_ids([]) == 0

    async def test_the_inbox_forgets_what_is_outside_the_window(self, harness: StoreHarness) -> None:
        store = harness.store
        for message_id in ("1", "2", "3"):
            assert await harness.accept("mailer", "/shop", message_id)
        assert await store.purge_inbox(older_than=HOUR, limit=MANY) == 0
        assert not await harness.accept("mailer", "/shop", "1")
        harness.clock.advance(2 * HOUR)
        assert await store.purge_inbox(older_than=3 * HOUR, limit=MANY) == 0
        assert await store.purge_inbox(older_than=HOUR, limit=2) == 2
        assert await store.purge_inbox(older_than=HOUR, limit=2) == 1
        assert await store.purge_inbox(older_than=HOUR, limit=2) == 0
        assert await harness.accept("mailer", "/shop", "1")

    async def test_the_inbox_tells_consumers_and_sources_apart(self, harness: StoreHarness) -> None:
        assert await harness.accept("mailer", "/shop", "1")
        assert await harness.accept("biller", "/shop", "1")
        assert await harness.accept("mailer", "/bank", "1")
        assert not await harness.accept("mailer", "/shop", "1")

    async def test_the_inbox_keeps_what_is_not_done(self, harness: StoreHarness) -> None:
        await harness.leave_started("mailer", "/shop", "1")
        harness.clock.advance(2 * HOUR)
        assert await harness.store.purge_inbox(older_than=HOUR, limit=MANY) == 0

    async def test_purging_the_inbox_touches_no_message(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        await harness.accept("mailer", "/shop", str(message.message_id))
        before = await everything(harness.store)
        harness.clock.advance(2 * HOUR)
        assert await harness.store.purge_inbox(older_than=HOUR, limit=MANY) == 1
        assert (await everything(harness.store))[:2] == before[:2]
