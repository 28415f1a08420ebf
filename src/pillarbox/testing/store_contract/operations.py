"""People's actions: redrive, replay, discard, defer, their refusals, and failed messages of inboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import product
from uuid import uuid4

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import (
    Action,
    BulkResult,
    Claim,
    Fence,
    InboxCount,
    InboxSelection,
    Selection,
    Settlement,
    Store,
)
from pillarbox.errors import IllegalTransition, NoSuchMessage
from pillarbox.message import Kind, Message, State, Waits
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample, sample_relay
from pillarbox.testing.store_contract.arrange import (
    FAR,
    HOUR,
    LANE,
    LEASE,
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
    read_state,
    reload,
    retry,
    settle_failures,
)

__all__ = [
    "DeferContract",
    "DiscardContract",
    "GoneRelayContract",
    "InboxContract",
    "RedriveContract",
    "RefusalContract",
    "RevisionContract",
]


async def _put_failed(harness: StoreHarness, *messages: Message) -> list[Message]:
    """Commit the messages, fail them, and return them as stored."""
    found = await put(harness, *messages)
    fence = await own(harness.store, *{message.partition for message in messages})
    await settle_failures(harness.store, fence, *(fail(message) for message in found))
    await harness.store.leave(fence.relay_id)
    return [await reload(harness.store, message) for message in found]


class RedriveContract:
    """`Store.redrive` and `Store.replay`."""

    async def test_a_failed_message_goes_again(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _put_failed(harness, sample(key=NEAR))
        now = harness.clock.advance(HOUR)
        assert await store.redrive(Selection(ids=[failed.id]), by="ann", limit=MANY) == BulkResult(1, failed.id)
        expected = replace(failed, state=State.PENDING, waits=Waits.RETRY, available_at=now, attempts=0, status_at=now)
        assert await reload(store, failed) == expected
        assert expected.last_error == "HTTP 400"
        assert list(await read_due(store)) == [expected]

    async def test_it_comes_back_as_due_and_never_as_fresh(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _put_failed(harness, sample(key=NEAR))
        reading = await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)
        await store.redrive(Selection(), by="ann", limit=MANY)
        for cursor in (None, reading.cursor):
            assert list((await store.read("orders", partitions=[LANE], cursor=cursor, limit=MANY)).messages) == []
        blocked = await store.blocked_keys("orders", partitions=[LANE])
        assert [(key.partition, key.key) for key in blocked] == [(LANE, NEAR)]
        assert list_ids(await read_key(store)) == [failed.id]

    async def test_a_held_message_goes_again(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await settle_failures(store, await own(store, LANE), hold(message))
        held = await reload(store, message)
        now = harness.clock.advance(HOUR)
        assert await store.redrive(Selection(ids=[held.id]), by="ann", limit=MANY) == BulkResult(1, held.id)
        assert await reload(store, message) == replace(
            held, state=State.PENDING, waits=Waits.RETRY, available_at=now, attempts=0, status_at=now
        )

    async def test_a_discarded_message_goes_again(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.discard(Selection(ids=[message.id]), by="ann", reason="no", limit=1)
        assert await store.redrive(Selection(ids=[message.id]), by="ann", limit=1) == BulkResult(1, message.id)
        assert await read_state(store, message) is State.PENDING

    async def test_filters_alone_leave_what_was_closed_on_purpose(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await _put_one_of_each(harness)
        for to in (None, "spare"):
            await store.redrive(Selection(topic=messages[State.FAILED].topic), by="ann", limit=MANY, to=to)
            assert await read_state(store, messages[State.FAILED]) is State.PENDING
            for state in (State.DISCARDED, State.SKIPPED, State.DELIVERED):
                assert await read_state(store, messages[state]) is state
        named = Selection(topic=messages[State.FAILED].topic, states=[State.DISCARDED])
        assert (await store.redrive(named, by="ann", limit=MANY)).count == 1

    async def test_a_skipped_message_needs_a_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, destination="_skipped"))
        fence = await own(store, LANE, destination="_skipped")
        await close(store, fence, message, State.SKIPPED)
        skipped = Selection(states=[State.SKIPPED])
        assert await store.redrive(skipped, by="ann", limit=MANY) == BulkResult(0, 0)
        assert await store.redrive(skipped, by="ann", limit=MANY, to="orders") == BulkResult(1, message.id)
        assert list_ids(await read_due(store)) == [message.id]

    async def test_a_skipped_message_is_discarded_only_when_it_is_named(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second = await put(harness, *(sample(key=NEAR, destination="_skipped", topic="typo") for _ in range(2)))
        fence = await own(store, LANE, destination="_skipped")
        await close(store, fence, first, State.SKIPPED)
        await close(store, fence, second, State.SKIPPED)
        assert await store.discard(Selection(topic="typo"), by="ann", reason="no", limit=MANY) == BulkResult(0, 0)
        named = await store.discard(Selection(ids=[first.id]), by="ann", reason="a typo", limit=MANY)
        assert named == BulkResult(1, first.id)
        (line,) = [line for line in await store.journal(message_id=first.message_id) if line.action == "discarded"]
        assert line.reason == "a typo"
        states = [await read_state(store, one) for one in (first, second)]
        assert states == [State.DISCARDED, State.SKIPPED]
        by_state = Selection(states=[State.SKIPPED])
        assert (await store.discard(by_state, by="ann", reason="no", limit=MANY)).count == 1
        counts = {(one.state, one.count) for one in await store.counts()}
        assert counts == {(State.DISCARDED, 2)}

    async def test_to_another_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _put_failed(harness, sample(key=NEAR))
        (message,) = await put(harness, sample(key=SECOND))
        await settle_failures(store, await own(store, LANE), hold(message))
        held = await reload(store, message)
        assert (await store.redrive(Selection(), by="ann", limit=MANY, to="spare")).count == 2
        for before in (failed, held):
            after = await reload(store, before)
            assert (after.destination, after.partition, after.id) == ("spare", before.partition, before.id)
        assert list(await read_due(store)) == []
        assert list_ids(await read_due(store, destination="spare")) == list_ids([failed, held])

    async def test_other_states_are_not_touched(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        pending, sending, delivered, failed = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        await close(store, fence, delivered, State.DELIVERED)
        await settle_failures(store, fence, fail(failed))
        await store.claim(fence, Claim(1, [sending.id]))
        before = [await reload(store, message) for message in (pending, sending, delivered)]
        assert await store.redrive(Selection(), by="ann", limit=1) == BulkResult(1, failed.id)
        assert (await store.redrive(Selection(), by="ann", limit=MANY)).count == 0
        assert [await reload(store, message) for message in (pending, sending, delivered)] == before

    async def test_redrives_go_in_id_order_in_batches(self, harness: StoreHarness) -> None:
        store = harness.store
        failed = await _put_failed(harness, *(sample(key=key) for key in (NEAR, FAR, SECOND, FAR, THIRD)))
        after, moved_ids = 0, []
        for expected in ([0, 1], [2, 3], [4]):
            moved = await store.redrive(Selection(after=after), by="ann", limit=2)
            assert moved == BulkResult(len(expected), failed[expected[-1]].id)
            after = moved.last_id
            moved_ids += [failed[place].id for place in expected]
            assert list_ids(await store.find(Selection(states=[State.PENDING]), limit=MANY)) == moved_ids
        assert await store.redrive(Selection(after=after), by="ann", limit=2) == BulkResult(0, after)

    async def test_open_and_closed_ones_go_in_one_order(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, third, fourth = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, fail(first), hold(second), fail(third), hold(fourth))
        assert await store.redrive(Selection(), by="ann", limit=3) == BulkResult(3, third.id)
        states = [await read_state(store, message) for message in (first, second, third, fourth)]
        assert states == [State.PENDING, State.PENDING, State.PENDING, State.FAILED]

    async def test_pages_over_named_messages_end_without_an_error(self, harness: StoreHarness) -> None:
        failed = await _put_failed(harness, *(sample(key=NEAR) for _ in range(3)))
        named = Selection(ids=list_ids(failed))
        moved = await harness.store.redrive(named, by="ann", limit=2)
        moved = await harness.store.redrive(replace(named, after=moved.last_id), by="ann", limit=2)
        assert moved == BulkResult(1, failed[2].id)
        last = await harness.store.redrive(replace(named, after=moved.last_id), by="ann", limit=2)
        assert last == BulkResult(0, failed[2].id)

    async def test_a_selection_chooses(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, *others = await _put_failed(harness, sample(key=NEAR, topic="mine"), sample(key=NEAR), sample(key=FAR))
        moved = await store.redrive(Selection(topic="mine", states=[State.FAILED]), by="ann", limit=MANY)
        assert moved == BulkResult(1, mine.id)
        assert [await reload(store, other) for other in others] == others
        assert await store.redrive(Selection(states=[State.DISCARDED]), by="ann", limit=MANY) == BulkResult(0, 0)

    async def test_nothing_selected_is_nothing_done(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        before = await read_everything(harness.store)
        assert await harness.store.redrive(Selection(topic="none"), by="ann", limit=MANY) == BulkResult(0, 0)
        assert await harness.store.replay(Selection(after=17), by="ann", limit=MANY) == BulkResult(0, 17)
        assert await read_everything(harness.store) == before

    async def test_by_message_id_it_reaches_every_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        first = sample(key=NEAR)
        copies = await put(harness, first, sample(key=NEAR, destination="billing", message_id=first.message_id))
        for copy in copies:
            await settle_failures(store, await own(store, LANE, destination=copy.destination), fail(copy))
        moved = await store.redrive(Selection(message_ids=[first.message_id]), by="ann", limit=MANY)
        assert moved == BulkResult(2, copies[1].id)

    async def test_a_redriven_message_can_be_delivered(self, harness: StoreHarness) -> None:
        store = harness.store
        (failed,) = await _put_failed(harness, sample(key=NEAR))
        await store.redrive(Selection(), by="ann", limit=MANY)
        closed = await close(store, await own(store, LANE), failed, State.DELIVERED)
        assert (closed.state, closed.attempts, closed.payload) == (State.DELIVERED, 0, failed.payload)
        assert len(await store.find(Selection(), limit=MANY)) == 1

    async def test_when_it_happened_and_was_written_never_changes(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence, one = await own(store, LANE), Selection(ids=[message.id])
        times = []

        async def look() -> None:
            found = await reload(store, message)
            assert (found.event_time, found.created_at) == (message.event_time, message.created_at)
            times.append(found.status_at)
            harness.clock.advance(HOUR)

        await settle_failures(store, fence, retry(message, delay=HOUR))
        await look()
        await settle_failures(store, fence, fail(message))
        await look()
        await store.redrive(one, by="ann", limit=1)
        await look()
        await store.discard(one, by="ann", reason="no", limit=1)
        await look()
        assert sorted(set(times), key=str) == sorted(times, key=str)
        assert len(times) == 4

    async def test_a_delivered_message_is_replayed(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed = await put(harness, sample(key=NEAR), sample(key=FAR))
        fence = await own(store, LANE, OTHER)
        delivered = await close(store, fence, delivered, State.DELIVERED)
        failed = await close(store, fence, failed, State.FAILED)
        now = harness.clock.advance(HOUR)
        assert await store.replay(Selection(), by="ann", limit=MANY) == BulkResult(1, delivered.id)
        assert await reload(store, delivered) == replace(
            delivered, state=State.PENDING, waits=Waits.RETRY, available_at=now, attempts=0, status_at=now
        )
        assert await reload(store, failed) == failed

    async def test_a_delivered_message_is_shown_and_replayed_as_it_was_written(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        cases = product([Kind.EVENT, Kind.COMMAND], ["application/json", "text/plain"], [0, 2])
        for number, (kind, content_type, attempts) in enumerate(cases, start=1):
            (message,) = await put(harness, replace(sample(key=NEAR), kind=kind, content_type=content_type))
            if attempts:
                await settle_failures(store, fence, retry(message, attempts=attempts, delay=timedelta(0)))
            await store.claim(fence, Claim(number, [message.id]))
            await store.settle(fence, Settlement(delivered=[message.id], finished=[number]))
            for is_open in (False, True):
                (found,) = await store.find(Selection(ids=[message.id]), limit=1)
                assert (found.kind, found.content_type, found.payload) == (kind, content_type, message.payload)
                assert found.attempts == (0 if is_open else attempts)
                if not is_open:
                    await store.replay(Selection(ids=[message.id]), by="ann", limit=1)

    async def test_replays_go_in_id_order_in_batches(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, FAR, SECOND)))
        fence = await own(store, LANE, OTHER)
        for message in reversed(messages):
            await close(store, fence, message, State.DELIVERED)
        assert await store.replay(Selection(), by="ann", limit=2) == BulkResult(2, messages[1].id)
        assert list_ids(await store.find(Selection(states=[State.PENDING]), limit=MANY)) == list_ids(messages[:2])
        assert await store.replay(Selection(after=messages[1].id), by="ann", limit=2) == BulkResult(1, messages[2].id)


class DiscardContract:
    """`Store.discard`."""

    async def test_whatever_waits_can_be_discarded(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        fresh, retrying, parked, held, deferred = await put(
            harness,
            *(sample(key=key) for key in (NEAR, SECOND, SECOND, THIRD)),
            sample(key=NEAR, available_at=harness.clock.now() + HOUR),
        )
        await settle_failures(store, fence, retry(retrying, attempts=3), hold(held))
        await park(store, fence, parked)
        everyone = [fresh, retrying, parked, held, deferred]
        before = [await reload(store, message) for message in everyone]
        now = harness.clock.advance(HOUR)
        moved = await store.discard(Selection(), by="ann", reason="wrong price", limit=MANY)
        assert moved == BulkResult(5, deferred.id)
        assert [await reload(store, message) for message in everyone] == [
            replace(message, state=State.DISCARDED, waits=None, status_at=now) for message in before
        ]
        assert list(await store.blocked_keys("orders", partitions=[LANE])) == []
        assert await store.next_due("orders", partitions=[LANE]) is None

    async def test_a_failed_message_can_be_discarded(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        failed = await close(store, await own(store, LANE), message, State.FAILED)
        now = harness.clock.advance(HOUR)
        assert await store.discard(Selection(ids=[failed.id]), by="ann", reason="no", limit=1) == BulkResult(
            1, failed.id
        )
        assert failed.last_error is not None
        assert await reload(store, failed) == replace(failed, state=State.DISCARDED, status_at=now)
        (line,) = [line for line in await store.journal(message_id=failed.message_id) if line.action == "discarded"]
        assert (line.reason, line.error) == ("no", None)

    async def test_what_a_relay_has_in_hand_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        sending, pending = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, [sending.id]))
        assert await store.discard(Selection(), by="ann", reason="no", limit=MANY) == BulkResult(1, pending.id)
        assert await read_state(store, sending) is State.SENDING

    async def test_what_is_over_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, discarded, skipped = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await close(store, fence, delivered, State.DELIVERED)
        await close(store, fence, skipped, State.SKIPPED)
        await store.discard(Selection(ids=[discarded.id]), by="ann", reason="first", limit=1)
        before = await read_everything(store)
        assert await store.discard(Selection(), by="bob", reason="second", limit=MANY) == BulkResult(0, 0)
        assert await read_everything(store) == before

    async def test_batches_go_in_id_order_open_and_closed_together(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, third = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        await settle_failures(store, await own(store, LANE), fail(second))
        moved = await store.discard(Selection(), by="ann", reason="no", limit=2)
        assert moved == BulkResult(2, second.id)
        assert list_ids(await store.find(Selection(states=[State.DISCARDED]), limit=MANY)) == list_ids([first, second])
        assert await store.discard(Selection(after=second.id), by="ann", reason="no", limit=2) == BulkResult(
            1, third.id
        )

    async def test_a_selection_chooses_by_state(self, harness: StoreHarness) -> None:
        store = harness.store
        pending, failed, held = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settle_failures(store, await own(store, LANE), fail(failed), hold(held))
        moved = await store.discard(Selection(states=[State.FAILED]), by="ann", reason="no", limit=MANY)
        assert moved == BulkResult(2, held.id)
        assert await read_state(store, pending) is State.PENDING

    async def test_no_ids_are_no_messages(self, harness: StoreHarness) -> None:
        """An empty list is a condition that nothing meets, not one that is missing."""
        await put(harness, sample(key=NEAR))
        before = await read_everything(harness.store)
        for selection in (Selection(ids=[]), Selection(message_ids=[]), Selection(states=[])):
            with suppress(NoSuchMessage):
                moved = await harness.store.discard(selection, by="ann", reason="no", limit=MANY)
                assert moved == BulkResult(0, 0)
        assert await read_everything(harness.store) == before


class DeferContract:
    """`Store.defer`."""

    async def test_pending_messages_wait_until_then(self, harness: StoreHarness) -> None:
        store = harness.store
        fresh, retrying, deferred = await put(
            harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD, available_at=harness.clock.now())
        )
        await settle_failures(store, await own(store, LANE), retry(retrying, attempts=3))
        before = [await reload(store, message) for message in (fresh, retrying, deferred)]
        now = harness.clock.advance(LEASE)
        until = now + HOUR
        moved = await store.defer(Selection(), until=until, by="ann", limit=MANY)
        assert moved == BulkResult(3, deferred.id)
        assert [await reload(store, message) for message in (fresh, retrying, deferred)] == [
            replace(message, waits=Waits.RETRY, available_at=until, status_at=now) for message in before
        ]

    async def test_the_key_waits_with_it(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.defer(Selection(ids=[message.id]), until=harness.clock.now() + HOUR, by="ann", limit=1)
        blocked = await store.blocked_keys("orders", partitions=[LANE])
        assert [(key.partition, key.key) for key in blocked] == [(LANE, NEAR)]
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
        assert list(await read_due(store)) == []
        harness.clock.advance(HOUR)
        assert list_ids(await read_due(store)) == [message.id]

    async def test_others_are_left_alone(self, harness: StoreHarness) -> None:
        """Parked ones wait for their head, held ones for a person, claimed ones for an answer."""
        store = harness.store
        fence = await own(store, LANE)
        parked, held, sending, delivered = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR)))
        await settle_failures(store, fence, hold(held))
        await park(store, fence, parked)
        await close(store, fence, delivered, State.DELIVERED)
        await store.claim(fence, Claim(1, [sending.id]))
        before = await read_everything(store)
        moved = await store.defer(Selection(), until=harness.clock.now() + HOUR, by="ann", limit=MANY)
        assert moved == BulkResult(0, 0)
        assert await read_everything(store) == before

    async def test_deferrals_go_in_id_order_in_batches(self, harness: StoreHarness) -> None:
        store, until = harness.store, harness.clock.now() + HOUR
        messages = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        assert await store.defer(Selection(), until=until, by="ann", limit=2) == BulkResult(2, messages[1].id)
        waits = [message.waits for message in await store.find(Selection(), limit=MANY)]
        assert waits == [Waits.RETRY, Waits.RETRY, None]
        after = messages[1].id
        assert await store.defer(Selection(after=after), until=until, by="ann", limit=2) == BulkResult(
            1, messages[2].id
        )

    async def test_a_selection_of_other_states_defers_nothing(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        selection = Selection(states=[State.FAILED, State.SENDING])
        moved = await harness.store.defer(selection, until=harness.clock.now() + HOUR, by="ann", limit=MANY)
        assert moved == BulkResult(0, 0)
        assert await reload(harness.store, message) == message


_RunAction = Callable[[Selection], Awaitable[BulkResult]]


def _build_actions(harness: StoreHarness) -> dict[str, _RunAction]:
    store, until = harness.store, harness.clock.now() + HOUR
    return {
        "redrive": lambda selection: store.redrive(selection, by="ann", limit=MANY),
        "replay": lambda selection: store.replay(selection, by="ann", limit=MANY),
        "discard": lambda selection: store.discard(selection, by="ann", reason="no", limit=MANY),
        "defer": lambda selection: store.defer(selection, until=until, by="ann", limit=MANY),
    }


_TARGET_STATES = {"redrive": State.PENDING, "replay": State.PENDING, "discard": State.DISCARDED, "defer": State.PENDING}
_REFUSED_STATES = {
    "redrive": (State.PENDING, State.SENDING, State.DELIVERED, State.SKIPPED),
    "replay": (State.PENDING, State.SENDING, State.FAILED, State.SKIPPED, State.DISCARDED),
    "discard": (State.SENDING, State.DELIVERED, State.DISCARDED),
    "defer": (State.SENDING, State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED),
}


async def _put_one_of_each(harness: StoreHarness) -> dict[State, Message]:
    store = harness.store
    messages = dict(zip(State, await put(harness, *(sample(key=NEAR) for _ in State)), strict=True))
    fence = await own(store, LANE)
    for state, message in messages.items():
        if state.is_closed:
            await close(store, fence, message, state)
    await store.claim(fence, Claim(1, [messages[State.SENDING].id]))
    return {state: message for state, message in messages.items() if await _assert_state(store, message, state)}


async def _assert_state(store: Store, message: Message, state: State) -> bool:
    assert await read_state(store, message) is state
    return True


class RefusalContract:
    """`IllegalTransition` and `NoSuchMessage` for messages that an action does not apply to."""

    async def test_a_wrong_state_is_refused_by_id(self, harness: StoreHarness) -> None:
        messages = await _put_one_of_each(harness)
        before = await read_everything(harness.store)
        for name, act in _build_actions(harness).items():
            for state in _REFUSED_STATES[name]:
                message = messages[state]
                for selection in (Selection(ids=[message.id]), Selection(message_ids=[message.message_id])):
                    with pytest.raises(IllegalTransition) as refused:
                        await act(selection)
                    text = str(refused.value)
                    assert str(message.id) in text or str(message.message_id) in text, (name, state)
                    assert state in text, (name, state)
                    assert _TARGET_STATES[name] in text, (name, state)
        assert await read_everything(harness.store) == before

    async def test_what_does_not_exist_is_said_so(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        before = await read_everything(harness.store)
        for act in _build_actions(harness).values():
            for selection in (Selection(ids=[987654]), Selection(message_ids=[uuid4()])):
                with pytest.raises(NoSuchMessage):
                    await act(selection)
        assert await read_everything(harness.store) == before

    async def test_without_names_nothing_is_an_error(self, harness: StoreHarness) -> None:
        (sending,) = await put(harness, sample(key=NEAR, topic="sending"))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [sending.id]))
        for act in _build_actions(harness).values():
            assert await act(Selection(topic="sending")) == BulkResult(0, 0)
            assert await act(Selection(topic="none", after=5)) == BulkResult(0, 5)

    async def test_a_parked_message_cannot_be_deferred(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await park(harness.store, await own(harness.store, LANE), message)
        with pytest.raises(IllegalTransition):
            await _build_actions(harness)["defer"](Selection(ids=[message.id]))

    async def test_among_several_names_the_able_ones_move(self, harness: StoreHarness) -> None:
        store = harness.store
        failed, pending = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settle_failures(store, await own(store, LANE), fail(failed))
        moved = await store.redrive(Selection(ids=[failed.id, pending.id, 987654]), by="ann", limit=MANY)
        assert moved == BulkResult(1, failed.id)


_ANY_FAILURE = InboxSelection()


async def _list_inbox_failures(
    store: Store, selection: InboxSelection = _ANY_FAILURE, *, limit: int = 100
) -> list[tuple[str, str]]:
    return [(one.consumer, one.message_id) for one in await store.inbox_failures(selection, limit=limit)]


class RevisionContract:
    """What a relay that has read a message learns of an operator's change when it claims."""

    async def test_a_claim_tells_that_an_operator_changed_the_lane(self, harness: StoreHarness) -> None:
        store = harness.store
        near, second, third, far = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, FAR)))
        fence = await own(store, LANE, OTHER)
        first = await store.claim(fence, Claim(1, [far.id]))
        assert first == await store.claim(fence, Claim(2, []))
        await store.discard(Selection(ids=[near.id]), by="ann", reason="wrong", limit=1)
        discarded = await store.claim(fence, Claim(3, [near.id]))
        assert (discarded[LANE] != first[LANE], discarded[OTHER]) == (True, first[OTHER])
        await store.defer(Selection(ids=[second.id]), until=harness.clock.now() + HOUR, by="ann", limit=1)
        deferred = await store.claim(fence, Claim(4, [second.id, third.id]))
        assert (deferred[LANE] not in (first[LANE], discarded[LANE]), deferred[OTHER]) == (True, first[OTHER])
        assert deferred == await store.claim(fence, Claim(5, []))

    async def test_whoever_takes_a_lane_knows_what_was_changed_before(self, harness: StoreHarness) -> None:
        """Also in a lane that no relay has ever owned."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.discard(Selection(ids=[message.id]), by="ann", reason="wrong", limit=1)
        for _ in range(2):
            relay = sample_relay()
            await store.register(relay, lease=LEASE)
            (lane,), _ = await store.take(relay.relay_id, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
            fence = Fence(relay.relay_id, "orders", {LANE: lane.epoch})
            assert await store.claim(fence, Claim(1, [])) == {LANE: lane.revision}
            await store.release(fence)

    async def test_the_revision_survives_owners(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        old = await own(store, LANE)
        before = await store.claim(old, Claim(1, []))
        await store.discard(Selection(ids=[message.id]), by="ann", reason="wrong", limit=1)
        await store.release(old)
        assert await store.claim(await own(store, LANE), Claim(1, [])) != before


class GoneRelayContract:
    """Operations on what relays had in hand that are gone: nobody may serve their destination any more."""

    async def test_what_a_relay_had_in_hand_that_is_gone_is_pending(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        assert await read_state(store, message) is State.SENDING
        harness.clock.advance(LEASE)
        for stale_after in (HOUR, timedelta(0)):
            assert await read_state(store, message) is State.PENDING
            assert [await store.count(Selection(states=[state])) for state in (State.PENDING, State.SENDING)] == [1, 0]
            assert [(one.state, one.count) for one in await store.counts()] == [(State.PENDING, 1)]
            await store.forget(stale_after=stale_after)

    async def test_it_can_be_discarded_and_redriven_elsewhere(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, [message.id]))
        harness.clock.advance(LEASE)
        named = Selection(ids=[message.id])
        assert (await store.discard(named, by="ann", reason="nobody serves it", limit=1)).count == 1
        assert (await store.redrive(named, by="ann", limit=1, to="billing")).count == 1
        assert (await reload(store, message)).destination == "billing"
        assert await read_state(store, message) is State.PENDING
        heir = sample_relay()
        await store.register(heir, lease=LEASE)
        for destination in ("orders", "billing"):
            _, inherited = await store.take(heir.relay_id, destination, partitions=[LANE], lease=LEASE, claim_number=1)
            assert not inherited

    async def test_it_can_be_deferred_and_no_heir_sends_it_before_its_time(self, harness: StoreHarness) -> None:
        store = harness.store
        near, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(await own(store, LANE), Claim(1, [near.id, second.id]))
        now = harness.clock.advance(LEASE)
        assert (await store.defer(Selection(ids=[near.id]), until=now + HOUR, by="ann", limit=1)).count == 1
        heir = sample_relay()
        await store.register(heir, lease=LEASE)
        _, inherited = await store.take(heir.relay_id, "orders", partitions=[LANE], lease=LEASE, claim_number=1)
        assert [list_ids(one.messages) for one in inherited] == [[second.id]]
        assert await read_state(store, near) is State.PENDING
        assert not await read_due(store)


class InboxContract:
    """`Store.inbox_failures`, `redrive_inbox` and `discard_inbox`."""

    async def test_a_failed_message_of_an_inbox_is_seen_whole(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", error="ValueError: no such account", content=b"\x00all that came")
        (one,) = await harness.store.inbox_failures(_ANY_FAILURE, limit=10)
        assert (one.consumer, one.source, one.message_id) == ("mailer", "/shop", "m1")
        assert (one.attempts, one.error, one.content) == (3, "ValueError: no such account", b"\x00all that came")

    async def test_failures_of_an_inbox_are_chosen_by_consumer_id_and_error(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", error="Timeout", content=b"1")
        await harness.fail_inbox("mailer", "m2", error="ValueError: NO", content=b"2")
        await harness.fail_inbox("biller", "m1", error="timeout again", content=b"3")
        store = harness.store
        assert sorted(await _list_inbox_failures(store, InboxSelection(consumer="mailer"))) == [
            ("mailer", "m1"),
            ("mailer", "m2"),
        ]
        assert sorted(await _list_inbox_failures(store, InboxSelection(message_ids=["m1"]))) == [
            ("biller", "m1"),
            ("mailer", "m1"),
        ]
        assert sorted(await _list_inbox_failures(store, InboxSelection(error="TIMEOUT"))) == [
            ("biller", "m1"),
            ("mailer", "m1"),
        ]
        assert await _list_inbox_failures(store, InboxSelection(consumer="mailer", error="no")) == [("mailer", "m2")]
        assert len(await _list_inbox_failures(store, limit=2)) == 2

    async def test_a_redriven_one_is_no_longer_failed_and_is_journalled(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", content=b"1")
        await harness.fail_inbox("mailer", "m2", content=b"2")
        redriven = await harness.store.redrive_inbox(InboxSelection(message_ids=["m1"]), by="ann", limit=10)
        assert redriven == 1
        assert await _list_inbox_failures(harness.store) == [("mailer", "m2")]
        (line,) = await harness.store.journal()
        assert (line.action, line.by, line.destination) == (Action.REDRIVEN, "ann", "inbox:mailer")
        assert "m1" in (line.detail or "")
        assert await harness.accept("mailer", "/shop", "m1")

    async def test_the_starts_of_a_redriven_one_are_counted_afresh(self, harness: StoreHarness) -> None:
        """Else a consumer would take its failed attempts for its own deaths."""
        await harness.fail_inbox("mailer", "m1", content=b"1")
        await harness.store.redrive_inbox(_ANY_FAILURE, by="ann", limit=10)
        assert [await harness.start_inbox("mailer", "m1") for _ in range(2)] == [1, 2]

    async def test_no_more_than_asked_for_are_redriven(self, harness: StoreHarness) -> None:
        for number in range(3):
            await harness.fail_inbox("mailer", f"m{number}", content=b"x")
        assert await harness.store.redrive_inbox(_ANY_FAILURE, by="ann", limit=2) == 2
        assert len(await _list_inbox_failures(harness.store)) == 1

    async def test_a_discarded_one_is_done(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", content=b"1")
        assert await harness.store.discard_inbox(_ANY_FAILURE, by="ann", reason="by hand", limit=10) == 1
        assert await _list_inbox_failures(harness.store) == []
        assert not await harness.accept("mailer", "/shop", "m1")
        (line,) = await harness.store.journal()
        assert (line.action, line.by, line.reason) == (Action.DISCARDED, "ann", "by hand")

    async def test_one_whose_content_was_not_kept_is_seen_and_discarded_and_not_redriven(
        self, harness: StoreHarness
    ) -> None:
        await harness.fail_inbox("mailer", "m1", content=None)
        (one,) = await harness.store.inbox_failures(_ANY_FAILURE, limit=10)
        assert one.content == b""
        assert await harness.store.redrive_inbox(_ANY_FAILURE, by="ann", limit=10) == 0
        assert await _list_inbox_failures(harness.store) == [("mailer", "m1")]
        assert await harness.store.discard_inbox(_ANY_FAILURE, by="ann", reason="sent again", limit=10) == 1

    async def test_failures_of_inboxes_are_counted_by_consumer(self, harness: StoreHarness) -> None:
        store = harness.store
        assert await store.inbox_counts() == []
        for consumer, message_id in (("mailer", "m1"), ("biller", "m1"), ("mailer", "m2"), ("mailer", "m3")):
            await harness.fail_inbox(consumer, message_id, content=b"x")
        assert await harness.accept("shipper", "/shop", "m1")
        await store.redrive_inbox(InboxSelection(message_ids=["m3"]), by="ann", limit=10)
        oldest: dict[str, datetime] = {}
        for one in await store.inbox_failures(_ANY_FAILURE, limit=10):
            oldest.setdefault(one.consumer, one.failed_at)
        assert await store.inbox_counts() == [
            InboxCount(consumer="biller", failed=1, oldest_at=oldest["biller"]),
            InboxCount(consumer="mailer", failed=2, oldest_at=oldest["mailer"]),
        ]
        counts = await store.inbox_counts(limit=2)
        assert sum(one.failed for one in counts) == 2
        assert all(one.more for one in counts)

    async def test_retention_leaves_failed_ones_alone(self, harness: StoreHarness) -> None:
        await harness.fail_inbox("mailer", "m1", content=b"1")
        harness.clock.advance(timedelta(days=400))
        assert await harness.store.purge_inbox(older_than=timedelta(days=1), limit=10) == 0
        assert await _list_inbox_failures(harness.store) == [("mailer", "m1")]
