"""Retention: purging closed messages and inbox records, and what history keeps of a delivered message."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from pillarbox.contracts.store import BulkResult, Claim, InboxSelection, Selection, Settlement
from pillarbox.durations import FOREVER
from pillarbox.message import Message, State
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    MANY,
    NEAR,
    SECOND,
    THIRD,
    close,
    fail,
    hold,
    list_ids,
    own,
    park,
    put,
    read_everything,
    read_key,
    read_state,
    reload,
    retry,
    settle_failures,
)

__all__ = ["KeepContract", "PurgeContract", "RestoreContract"]

_CLOSED = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)


async def _close_an_hour_apart(harness: StoreHarness, count: int, state: State) -> list[Message]:
    """Commit messages and close them in the reverse order of their ids, so that oldest first is not id order."""
    store = harness.store
    messages = await put(harness, *(sample(key=NEAR) for _ in range(count)))
    fence = await own(store, LANE)
    for message in reversed(messages):
        await close(store, fence, message, state)
        harness.clock.advance(HOUR)
    return messages


async def _list_remaining(harness: StoreHarness) -> list[int]:
    return list_ids(await harness.store.find(Selection(), limit=MANY))


class PurgeContract:
    """`Store.purge`, `Store.purge_archived` and `Store.purge_inbox`."""

    async def test_only_what_is_old_enough_goes(self, harness: StoreHarness) -> None:
        messages = await _close_an_hour_apart(harness, 3, State.DELIVERED)
        purge = harness.store.purge
        assert await purge(State.DELIVERED, older_than=3 * HOUR + timedelta(microseconds=1), limit=MANY) == 0
        assert await purge(State.DELIVERED, older_than=2 * HOUR, limit=MANY) == 2
        assert await _list_remaining(harness) == [messages[0].id]

    async def test_the_oldest_goes_first_in_batches(self, harness: StoreHarness) -> None:
        first, second, third = await _close_an_hour_apart(harness, 3, State.FAILED)
        for left in ([first, second], [first], []):
            assert await harness.store.purge(State.FAILED, older_than=HOUR, limit=1) == 1
            assert await _list_remaining(harness) == list_ids(left)
        assert third.id
        assert await harness.store.purge(State.FAILED, older_than=HOUR, limit=1) == 0

    async def test_nothing_is_at_once(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        assert await harness.store.purge(State.DELIVERED, older_than=timedelta(0), limit=MANY) == 1
        assert await _list_remaining(harness) == []

    async def test_forever_is_never(self, harness: StoreHarness) -> None:
        messages = await _close_an_hour_apart(harness, 2, State.FAILED)
        assert await harness.store.purge(State.FAILED, older_than=FOREVER, limit=MANY) == 0
        assert await _list_remaining(harness) == list_ids(messages)

    async def test_each_state_goes_by_itself(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in _CLOSED))
        for message, state in zip(messages, _CLOSED, strict=True):
            await close(store, fence, message, state)
        harness.clock.advance(HOUR)
        for place, state in enumerate(_CLOSED, start=1):
            assert await store.purge(state, older_than=HOUR, limit=MANY) == 1
            assert await _list_remaining(harness) == list_ids(messages[place:])

    async def test_what_is_open_never_goes(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(
            harness,
            *(sample(key=key) for key in (NEAR, SECOND, SECOND, THIRD, NEAR)),
            sample(key=NEAR, available_at=harness.clock.now() + HOUR),
        )
        _, retrying, parked, held, sending, _ = messages
        await settle_failures(store, fence, retry(retrying), hold(held))
        await park(store, fence, parked)
        await store.claim(fence, Claim(1, [sending.id]))
        harness.clock.advance(timedelta(days=1_000))
        for state in State:
            assert await store.purge(state, older_than=HOUR, limit=MANY) == 0
        assert await store.purge_archived(messages) == 0
        assert await _list_remaining(harness) == list_ids(messages)

    async def test_the_journal_goes_with_its_message_and_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        first = sample(key=NEAR)
        gone, kept = await put(harness, first, sample(key=NEAR, destination="billing", message_id=first.message_id))
        await settle_failures(store, await own(store, LANE), fail(gone))
        await settle_failures(store, await own(store, LANE, destination="billing"), retry(kept))
        await store.pause("orders", by="ann", reason="r")
        assert await store.purge(State.FAILED, older_than=timedelta(0), limit=MANY) == 1
        lines = [(line.destination, line.action) for line in await store.journal()]
        assert lines == [("billing", "attempt_failed"), ("orders", "paused")]

    async def test_archived_messages_go_with_their_journal(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        first, second, third = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settle_failures(store, fence, fail(first), fail(second))
        archived = await reload(store, first)
        assert await store.purge_archived([archived, third, replace(archived, id=987654)]) == 1
        assert await _list_remaining(harness) == list_ids([second, third])
        assert [line.message_id for line in await store.journal()] == [second.message_id]
        assert await store.purge_archived([]) == 0

    async def test_a_message_that_failed_again_after_it_was_archived_stays(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        archived = [await close(store, fence, one, State.FAILED, number=one.id) for one in messages]
        again, waiting, _ = archived
        harness.clock.advance(HOUR)
        await store.redrive(Selection(ids=[again.id, waiting.id]), by="ann", limit=MANY)
        await settle_failures(store, fence, fail(again))
        lines = [line for line in await store.journal() if line.message_id == again.message_id]
        assert await store.purge_archived(archived) == 1
        assert await _list_remaining(harness) == list_ids([again, waiting])
        assert await read_state(store, again) is State.FAILED
        assert await read_state(store, waiting) is State.PENDING
        assert [line for line in await store.journal() if line.message_id == again.message_id] == lines

    async def test_a_message_that_ended_otherwise_at_the_same_time_stays(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        archived = await close(store, await own(store, LANE), message, State.FAILED)
        await store.discard(Selection(ids=[message.id]), by="ann", reason="no", limit=MANY)
        discarded = await reload(store, message)
        assert await store.purge_archived([archived, replace(archived, status_at=discarded.status_at)]) == 0
        assert await store.purge_archived([discarded]) == 1

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

    async def test_the_inbox_forgets_starts_that_never_ended(self, harness: StoreHarness) -> None:
        for message_id in ("1", "2", "3"):
            await harness.leave_started("mailer", "/shop", message_id)
        harness.clock.advance(2 * HOUR)
        await harness.leave_started("mailer", "/shop", "4")
        assert await harness.store.purge_inbox(older_than=HOUR, limit=MANY, failed=True) == 0
        assert await harness.store.purge_inbox(older_than=HOUR, limit=2) == 2
        assert await harness.store.purge_inbox(older_than=HOUR, limit=2) == 1
        assert await harness.store.purge_inbox(older_than=HOUR, limit=2) == 0

    async def test_failed_and_redriven_messages_of_an_inbox_have_a_retention_of_their_own(
        self, harness: StoreHarness
    ) -> None:
        store = harness.store
        for message_id in ("1", "2", "3"):
            await harness.fail_inbox("mailer", message_id, content=b"x")
        assert await store.redrive_inbox(InboxSelection(message_ids=["1"]), by="ann", limit=MANY) == 1
        assert await harness.accept("mailer", "/shop", "4")
        harness.clock.advance(2 * HOUR)
        assert await store.purge_inbox(older_than=3 * HOUR, limit=MANY, failed=True) == 0
        assert await store.purge_inbox(older_than=HOUR, limit=2, failed=True) == 2
        assert await store.purge_inbox(older_than=HOUR, limit=2, failed=True) == 1
        assert await store.purge_inbox(older_than=HOUR, limit=2, failed=True) == 0
        assert not await harness.accept("mailer", "/shop", "4"), "what is done is another matter"
        assert await harness.accept("mailer", "/shop", "1")

    async def test_purging_the_inbox_touches_no_message(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        await harness.accept("mailer", "/shop", str(message.message_id))
        before = await read_everything(harness.store)
        harness.clock.advance(2 * HOUR)
        assert await harness.store.purge_inbox(older_than=HOUR, limit=MANY) == 1
        assert (await read_everything(harness.store))[:2] == before[:2]


class RestoreContract:
    """`Store.restore`."""

    async def test_restored_messages_are_as_they_were_and_closed_now(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        at = harness.clock.now() + HOUR
        messages = await put(
            harness,
            sample(key=NEAR, headers={"a": "b"}, subject="s", causation_id="c", payload=b"\x00\xff"),
            sample(key=None),
            *(sample(key=NEAR, available_at=at) for _ in _CLOSED[2:]),
        )
        fences = [fence, *[await own(store, one.partition) for one in messages if one.partition != LANE]]
        closed = [
            await close(store, next(f for f in fences if one.partition in f.epochs), one, state)
            for one, state in zip(messages, _CLOSED, strict=True)
        ]
        assert await store.purge_archived(closed) == len(closed)
        await put(harness, sample(key=FAR))  # so that the counter is past their ids, whatever the store remembers of it
        harness.clock.advance(HOUR)
        now = harness.clock.now()
        assert await store.restore(closed[:3], by="ann") == 3
        assert await store.restore(closed, by="ann") == 1
        assert await store.restore(closed, by="ann") == 0
        restored = await store.find(Selection(states=_CLOSED), limit=MANY)
        assert list(restored) == [replace(one, status_at=now) for one in closed]
        lines = [(line.message_id, line.action, line.by, line.at) for line in await store.journal()]
        assert lines == [(one.message_id, "restored", "ann", now) for one in closed]
        (line,) = await store.journal(message_id=closed[0].message_id)
        assert line.detail == f"delivered at {closed[0].status_at:%Y-%m-%dT%H:%M:%S}Z"

    async def test_their_retention_begins_anew(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await _close_an_hour_apart(harness, 1, State.DELIVERED)
        closed = await reload(store, message)
        assert await store.purge(State.DELIVERED, older_than=HOUR, limit=MANY) == 1
        assert await store.restore([closed], by="ann") == 1
        assert await store.purge(State.DELIVERED, older_than=HOUR, limit=MANY) == 0
        harness.clock.advance(HOUR)
        assert await store.purge(State.DELIVERED, older_than=HOUR, limit=MANY) == 1

    async def test_what_is_there_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        failed, delivered = await put(harness, sample(key=NEAR), sample(key=SECOND))
        failed = await close(store, fence, failed, State.FAILED)
        delivered = await close(store, fence, delivered, State.DELIVERED)
        await store.redrive(Selection(ids=[failed.id]), by="ann", limit=MANY)
        before = await read_everything(store)
        harness.clock.advance(timedelta(seconds=1))
        assert await store.restore([failed, delivered], by="ann") == 0
        assert (await read_everything(store))[:2] == before[:2]
        other = replace(failed, destination="billing")
        assert await store.restore([other, other], by="ann") == 1
        assert await store.count(Selection(message_ids=[failed.message_id])) == 2

    async def test_restored_messages_are_sent_again_in_their_order(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        closed = [await close(store, fence, one, State.DELIVERED) for one in messages]
        assert await store.purge_archived(closed) == 3
        await put(harness, sample(key=FAR))
        assert await store.restore(list(reversed(closed)), by="ann") == 3
        assert (await store.replay(Selection(), by="ann", limit=MANY)).count == 3
        waiting = await read_key(store)
        assert [one.message_id for one in waiting] == [one.message_id for one in closed]
        assert [one.payload for one in waiting] == [one.payload for one in closed]

    async def test_ids_of_another_database_never_meet_its_own(self, harness: StoreHarness) -> None:
        """A redriven message would have the id that the counter gives to a new one some day."""
        store = harness.store
        (mine,) = await put(harness, sample(key=NEAR))
        foreign = [
            replace(
                sample(key=NEAR), id=number, state=State.FAILED, created_at=harness.clock.now(), last_error="HTTP 400",
                status_at=harness.clock.now(),
            )
            for number in (mine.id + 4, mine.id + 2, mine.id + 3)
        ]  # fmt: skip
        assert await store.restore(foreign, by="ann") == 3
        taken = replace(foreign[0], id=mine.id, message_id=sample().message_id)
        assert await store.restore([taken], by="ann") == 1
        assert (await store.redrive(Selection(), by="ann", limit=MANY)).count == 4
        written = await put(harness, *(sample(key=FAR) for _ in range(12)))
        assert len({one.id for one in written}) == 12
        waiting = await read_key(store)
        names = [one.message_id for one in waiting if one.message_id != taken.message_id]
        assert names == [one.message_id for one in sorted(foreign, key=lambda one: one.id)]
        assert await store.count(Selection()) == 17

    async def test_what_was_archived_without_payload_is_restored_without(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        closed = await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        assert await harness.store.purge_archived([closed]) == 1
        await put(harness, sample(key=FAR))
        bare = replace(closed, payload=b"", payload_kept=False)
        assert await harness.store.restore([bare], by="ann") == 1
        assert replace(await reload(harness.store, bare), status_at=None) == replace(bare, status_at=None)


class KeepContract:
    """The settings `keep` of history. Skipped for stores whose harness has no `open_with_keep`."""

    async def test_no_payload_keeps_everything_else(self, harness: StoreHarness) -> None:
        store = await harness.open_with_keep("no-payload")
        (message,) = await put(harness, sample(key=NEAR, headers={"a": "b"}))
        closed = await close(store, await own(store, LANE), message, State.DELIVERED)
        assert closed == replace(
            message, state=State.DELIVERED, payload=b"", payload_kept=False, status_at=closed.status_at
        )

    async def test_no_payload_keeps_the_payload_of_the_failed(self, harness: StoreHarness) -> None:
        store = await harness.open_with_keep("no-payload")
        (message,) = await put(harness, sample(key=NEAR))
        closed = await close(store, await own(store, LANE), message, State.FAILED)
        assert (closed.payload, closed.payload_kept) == (message.payload, True)

    async def test_off_forgets_the_delivered_and_keeps_the_failed(self, harness: StoreHarness) -> None:
        store = await harness.open_with_keep("off")
        delivered, failed = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        failed = await close(store, fence, failed, State.FAILED)
        await store.settle(fence, Settlement(delivered=[delivered.id]))
        assert list(await store.find(Selection(), limit=MANY)) == [failed]

    async def test_off_forgets_the_journal_of_the_delivered_alone(self, harness: StoreHarness) -> None:
        store = await harness.open_with_keep("off")
        message = sample(key=NEAR)
        both = await put(harness, message, replace(message, destination="billing"))
        fences = {one.destination: await own(store, LANE, destination=one.destination) for one in both}
        for one in both:
            await settle_failures(store, fences[one.destination], retry(one))
        (delivered,) = (one for one in both if one.destination == "orders")
        await store.settle(fences["orders"], Settlement(delivered=[delivered.id]))
        assert [line.destination for line in await store.journal(limit=MANY)] == ["billing"]

    async def test_a_replay_leaves_alone_what_has_no_payload(self, harness: StoreHarness) -> None:
        bare, whole = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(harness.store, LANE)
        await close(harness.store, fence, whole, State.DELIVERED)
        bare = await close(await harness.open_with_keep("no-payload"), fence, bare, State.DELIVERED)
        moved = await harness.store.replay(Selection(), by="ann", limit=MANY)
        assert moved == BulkResult(1, whole.id, 1)
        assert await reload(harness.store, bare) == bare
        assert await read_state(harness.store, whole) is State.PENDING
