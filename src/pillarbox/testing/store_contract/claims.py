"""Claiming and settling: batches in a relay's hands, parked messages, and outcomes."""

from __future__ import annotations

from uuid import uuid4

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Claim, FailedOutcome, Selection, Settlement
from pillarbox.errors import IllegalTransition
from pillarbox.message import State, Waits
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
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
    pair_ids,
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

__all__ = ["ClaimContract", "ForwardContract", "SettleContract"]


class ClaimContract:
    """`Store.claim`."""

    async def test_a_claimed_message_is_sending_and_otherwise_unchanged(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        harness.clock.advance(HOUR)
        await store.claim(await own(store, LANE), Claim(1, [mine.id]))
        assert await reload(store, mine) == replace(mine, state=State.SENDING)
        assert await reload(store, other) == other

    async def test_a_claim_survives_a_restart(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [message.id]))
        assert await read_state(await harness.restart(), message) is State.SENDING

    async def test_a_relay_may_have_several_claims(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [first.id]))
        await store.claim(fence, Claim(2, [second.id]))
        await store.settle(fence, Settlement(returned=[first.id], finished=[1]))
        assert await read_state(store, first) is State.PENDING
        assert await read_state(store, second) is State.SENDING

    async def test_two_relays_may_use_the_same_number(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        mine, theirs = await own(store, LANE), await own(store, far.partition)
        await store.claim(mine, Claim(1, [near.id]))
        await store.claim(theirs, Claim(1, [far.id]))
        await store.settle(mine, Settlement(returned=[near.id], finished=[1]))
        assert await read_state(store, near) is State.PENDING
        assert await read_state(store, far) is State.SENDING

    async def test_repeating_a_claim_changes_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        mine, waiting, other = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, SECOND)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [mine.id]), park=pair_ids(waiting))
        before = await read_everything(store)
        harness.clock.advance(LEASE / 2)
        await store.claim(fence, Claim(1, [mine.id]), park=pair_ids(waiting))
        await store.claim(fence, Claim(1, [other.id]))
        assert (await read_everything(store))[0] == before[0]

    async def test_a_repeated_claim_is_let_go_by_one_settle(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for _ in range(2):
            await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        assert await read_state(store, message) is State.PENDING

    async def test_parking_sets_a_fresh_message_aside(self, harness: StoreHarness) -> None:
        store = harness.store
        head, waiting = await put(harness, sample(key=NEAR), sample(key=NEAR))
        now = harness.clock.advance(HOUR)
        await store.claim(await own(store, LANE), Claim(1, [head.id]), park=pair_ids(waiting))
        assert await reload(store, waiting) == replace(waiting, waits=Waits.PARKED, status_at=now)
        assert await read_state(store, head) is State.SENDING

    async def test_parking_alone_claims_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(await own(store, LANE), Claim(1, []), park=pair_ids(message))
        parked = await reload(store, message)
        assert (parked.state, parked.waits) == (State.PENDING, Waits.PARKED)

    async def test_a_message_that_was_not_read_is_not_parked(self, harness: StoreHarness) -> None:
        """After a failover that lost commits, an id can stand for another message than the one that was read."""
        store = harness.store
        first, keyless, second = await put(harness, sample(key=NEAR), sample(key=None), sample(key=SECOND))
        fence = await own(store, *{LANE, keyless.partition})
        read = {second.id: second.message_id, keyless.id: uuid4(), first.id: uuid4()}
        await store.claim(fence, Claim(1, []), park=read)
        waits = [(await reload(store, message)).waits for message in (first, keyless, second)]
        assert waits == [None, None, Waits.PARKED]

    async def test_a_message_is_parked_once(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await park(store, fence, message)
        parked = await reload(store, message)
        harness.clock.advance(LEASE / 2)
        await park(store, fence, message, number=3)
        assert await reload(store, message) == parked

    async def test_a_deferred_message_is_parked_too(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now()))
        now = harness.clock.advance(HOUR)
        await park(store, await own(store, LANE), message)
        assert await reload(store, message) == replace(message, waits=Waits.PARKED, available_at=None, status_at=now)
        assert list(await read_due(store)) == []

    async def test_what_retries_or_is_held_is_not_parked(self, harness: StoreHarness) -> None:
        store = harness.store
        retrying, held = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(retrying), hold(held))
        before = await store.find(Selection(), limit=MANY)
        await park(store, fence, retrying, held)
        assert list(await store.find(Selection(), limit=MANY)) == list(before)

    async def test_an_empty_claim_leaves_its_number_free(self, harness: StoreHarness) -> None:
        """It only parks, so there is nothing to record; the number can still be used."""
        store = harness.store
        message, parked = await put(harness, sample(key=NEAR), sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, []), park=pair_ids(parked))
        await store.claim(fence, Claim(1, [message.id]))
        assert await read_state(store, message) is State.SENDING

    async def test_parking_leaves_no_line_in_the_journal(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await park(harness.store, await own(harness.store, LANE), message)
        assert list(await harness.store.journal()) == []

    async def test_a_parked_message_is_still_there(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        await park(harness.store, await own(harness.store, LANE), *messages)
        found = await read_key(harness.store)
        assert list_ids(found) == list_ids(messages)

    async def test_a_claim_on_what_does_not_exist_invents_nothing(self, harness: StoreHarness) -> None:
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [4711]), park={4712: uuid4()})
        assert list(await harness.store.find(Selection(), limit=MANY)) == []

    async def test_a_claim_parks_nothing_outside_its_lanes(self, harness: StoreHarness) -> None:
        store = harness.store
        far, billed = await put(harness, sample(key=FAR), sample(key=NEAR, destination="billing"))
        await park(store, await own(store, LANE), far, billed)
        assert [await reload(store, far), await reload(store, billed)] == [far, billed]


class ForwardContract:
    """A failed message that goes on to another destination."""

    async def test_a_failed_message_goes_on_at_once_with_all_its_attempts(self, harness: StoreHarness) -> None:
        store = harness.store
        message, neighbour = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id, neighbour.id]))
        now = harness.clock.advance(HOUR)
        failed = replace(fail(message), forward_to="letters")
        for _ in range(2):
            await store.settle(fence, Settlement(failures=[failed], touched=[1]))
        forwarded = await reload(store, message)
        assert (forwarded.destination, forwarded.waits, forwarded.attempts) == ("letters", Waits.RETRY, 0)
        assert (forwarded.available_at, forwarded.last_error) == (now, failed.error)
        assert (forwarded.payload, forwarded.key, forwarded.id) == (message.payload, message.key, message.id)
        assert await read_state(store, message) is State.PENDING
        assert list_ids(await read_due(store, destination="letters")) == [message.id]
        lines = await store.journal(message_id=message.message_id)
        assert [(line.action, line.destination, line.by) for line in lines] == [
            ("failed", "orders", str(fence.relay_id)),
            ("redriven", "orders", str(fence.relay_id)),
        ]

    async def test_its_attempts_are_counted_afresh(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message, attempts=4))
        await settle_failures(store, fence, replace(fail(message), forward_to="letters"))
        assert (await reload(store, message)).attempts == 0

    async def test_it_is_in_nobodys_hands(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(failures=[replace(fail(message), forward_to="letters")], finished=[1]))
        letters = await own(store, LANE, destination="letters")
        await store.claim(letters, Claim(1, [message.id]))
        await store.settle(letters, Settlement(delivered=[message.id], finished=[1]))
        assert (await reload(store, message)).destination == "letters"
        assert await read_state(store, message) is State.DELIVERED

    async def test_only_a_failed_message_goes_on(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(harness.store, LANE)
        with pytest.raises(IllegalTransition, match="only a failed one"):
            await harness.store.settle(fence, Settlement(failures=[replace(retry(message), forward_to="letters")]))


class SettleContract:
    """`Store.settle`."""

    async def test_a_delivered_message_closes(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        closed = await close(store, fence, message, State.DELIVERED)
        assert closed == replace(message, state=State.DELIVERED, status_at=now)
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == []
        assert list(await store.journal()) == []

    async def test_a_delivered_message_keeps_what_was_spent_on_it(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message, attempts=2, error="HTTP 500"))
        waiting = await reload(store, message)
        now = harness.clock.advance(LEASE)
        closed = await close(store, fence, message, State.DELIVERED)
        assert closed == replace(waiting, state=State.DELIVERED, waits=None, status_at=now)
        assert (closed.attempts, closed.last_error, closed.available_at) == (2, "HTTP 500", now)

    async def test_a_parked_message_closes_without_a_time(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, third = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        fence = await own(store, LANE)
        await park(store, fence, first, second, third)
        await close(store, fence, first, State.DELIVERED)
        await close(store, fence, second, State.FAILED)
        await close(store, fence, third, State.DISCARDED)
        for message in (first, second, third):
            closed = await reload(store, message)
            assert (closed.waits, closed.available_at) == (None, None)

    async def test_a_retry_waits_with_its_error(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        await settle_failures(store, fence, retry(message, delay=LEASE, attempts=3, error="HTTP 503 ü"))
        assert await reload(store, message) == replace(
            message, waits=Waits.RETRY, available_at=now + LEASE, attempts=3, last_error="HTTP 503 ü", status_at=now
        )

    async def test_a_deferral_waits_and_spends_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        outcome = FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.DEFERRED, delay=HOUR)
        await settle_failures(store, fence, outcome)
        assert await reload(store, message) == replace(
            message, waits=Waits.DEFERRED, available_at=now + HOUR, status_at=now
        )

    async def test_a_held_message_stays_open_and_is_shown_as_failed(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message))
        now = harness.clock.advance(LEASE)
        await settle_failures(store, fence, hold(message, attempts=5, error="HTTP 400"))
        assert await reload(store, message) == replace(
            message, state=State.FAILED, waits=Waits.HELD, attempts=5, last_error="HTTP 400", status_at=now
        )

    async def test_a_park_keeps_attempts_and_the_last_error(self, harness: StoreHarness) -> None:
        """It says why the message was not delivered before it had to wait for another."""
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message, attempts=2, error="HTTP 503"))
        parked = FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.PARKED, attempts=2)
        await settle_failures(store, fence, parked)
        found = await reload(store, message)
        assert (found.waits, found.attempts, found.last_error) == (Waits.PARKED, 2, "HTTP 503")

    async def test_a_trouble_may_park(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now()))
        fence = await own(store, LANE)
        now = harness.clock.advance(LEASE / 2)
        await settle_failures(
            store, fence, FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.PARKED)
        )
        assert await reload(store, message) == replace(message, waits=Waits.PARKED, available_at=None, status_at=now)
        assert list(await store.journal()) == []

    async def test_a_failed_message_closes_with_its_error_and_attempts(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        await settle_failures(store, fence, fail(message, attempts=4, error="HTTP 422"))
        assert await reload(store, message) == replace(
            message, state=State.FAILED, attempts=4, last_error="HTTP 422", status_at=now
        )

    async def test_skipped_and_discarded_close_too(self, harness: StoreHarness) -> None:
        store = harness.store
        skipped, discarded = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        for message, state in ((skipped, State.SKIPPED), (discarded, State.DISCARDED)):
            await store.settle(
                fence, Settlement(failures=[FailedOutcome(message_id=message.id, state=state, error="why")])
            )
            assert await reload(store, message) == replace(message, state=state, last_error="why", status_at=now)

    async def test_a_message_that_was_not_sent_is_left_alone(self, harness: StoreHarness) -> None:
        """After a failover that lost commits, an id can stand for another message than the one that was sent."""
        store = harness.store
        later, sent, failed = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD))
        other = await put(harness, sample(key=FAR))
        fence = await own(store, LANE, OTHER)
        lost = uuid4()
        await store.settle(fence, Settlement(
            delivered=[later.id, sent.id, other[0].id], failures=[fail(failed)],
            message_ids={later.id: lost, sent.id: sent.message_id, failed.id: lost},
        ))  # fmt: skip
        states = [await read_state(store, message) for message in (later, sent, failed, *other)]
        assert states == [State.PENDING, State.DELIVERED, State.PENDING, State.DELIVERED]
        assert list(await store.journal()) == []

    async def test_a_returned_message_is_as_it_was(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id]))
        harness.clock.advance(HOUR)
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        assert await reload(store, message) == message

    async def test_a_returned_retry_is_still_a_retry(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message))
        waiting = await reload(store, message)
        await store.claim(fence, Claim(1, [message.id]))
        await store.settle(fence, Settlement(returned=[message.id], finished=[1]))
        assert await reload(store, message) == waiting

    async def test_a_touched_claim_keeps_the_rest(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed, returned, kept = await put(
            harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD), sample(key=FAR)
        )
        fence = await own(store, LANE, OTHER)
        await store.claim(fence, Claim(1, [delivered.id, failed.id, returned.id, kept.id]))
        await store.settle(
            fence,
            Settlement(delivered=[delivered.id], failures=[retry(failed)], returned=[returned.id], touched=[1]),
        )
        states = [await read_state(store, message) for message in (delivered, failed, returned, kept)]
        assert states == [State.DELIVERED, State.PENDING, State.PENDING, State.SENDING]

    async def test_several_claims_are_settled_together(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second, kept = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [first.id]))
        await store.claim(fence, Claim(2, [second.id, kept.id]))
        await store.settle(fence, Settlement(delivered=[first.id, second.id], finished=[1], touched=[2]))
        states = [await read_state(store, message) for message in (first, second, kept)]
        assert states == [State.DELIVERED, State.DELIVERED, State.SENDING]

    async def test_settling_leaves_the_claims_of_others_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        mine, theirs = await own(store, LANE), await own(store, OTHER)
        await store.claim(mine, Claim(1, [near.id]))
        await store.claim(theirs, Claim(1, [far.id]))
        await store.settle(mine, Settlement(delivered=[near.id], finished=[1]))
        assert await read_state(store, far) is State.SENDING

    async def test_trouble_is_durable(self, harness: StoreHarness) -> None:
        retrying, failed, held = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settle_failures(harness.store, await own(harness.store, LANE), retry(retrying), fail(failed), hold(held))
        before = await harness.store.find(Selection(), limit=MANY)
        assert list(await (await harness.restart()).find(Selection(), limit=MANY)) == list(before)

    async def test_repeating_a_settlement_that_closed_changes_nothing(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed, returned = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [delivered.id, failed.id, returned.id]))
        settlement = Settlement(delivered=[delivered.id], failures=[fail(failed)], returned=[returned.id], finished=[1])
        await store.settle(fence, settlement)
        before = await read_everything(store)
        await store.settle(fence, settlement)
        assert await read_everything(store) == before
        harness.clock.advance(LEASE / 2)
        await store.settle(fence, settlement)
        assert (await read_everything(store))[:2] == before[:2]

    async def test_repeating_a_settlement_that_waits_changes_no_message(self, harness: StoreHarness) -> None:
        store = harness.store
        retrying, held = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [retrying.id, held.id]))
        settlement = Settlement(failures=[retry(retrying), hold(held)], finished=[1])
        await store.settle(fence, settlement)
        before = await store.find(Selection(), limit=MANY)
        for repeated in (settlement, replace(settlement, finished=())):
            await store.settle(fence, repeated)
            assert list(await store.find(Selection(), limit=MANY)) == list(before)
            harness.clock.advance(LEASE / 2)

    async def test_a_repeat_does_not_undo_what_an_operator_did_since(self, harness: StoreHarness) -> None:
        """The first try was recorded and its answer was lost. Then a person redrove, replayed or put off messages."""
        store = harness.store
        fence = await own(store, LANE)
        failed, delivered, retried = messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await store.claim(fence, Claim(1, list_ids(messages)))
        first = Settlement(
            delivered=[delivered.id], failures=[fail(failed), retry(retried)], finished=[1],
            message_ids={message.id: message.message_id for message in messages},
        )  # fmt: skip
        await store.settle(fence, first)
        assert (await store.redrive(Selection(ids=[failed.id]), by="anna", limit=1)).count == 1
        assert (await store.replay(Selection(ids=[delivered.id]), by="anna", limit=1)).count == 1
        later = harness.clock.now() + 9 * HOUR
        assert (await store.defer(Selection(ids=[retried.id]), until=later, by="anna", limit=1)).count == 1
        before = await read_everything(store)
        await store.settle(fence, first)
        assert await read_everything(store) == before

    async def test_a_repeated_delivery_does_not_undo_a_replay(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        (message,) = await put(harness, sample(key=NEAR))
        await store.claim(fence, Claim(1, [message.id]))
        delivery = Settlement(delivered=[message.id], finished=[1])
        await store.settle(fence, delivery)
        assert (await store.replay(Selection(), by="anna", limit=1)).count == 1
        await store.settle(fence, delivery)
        assert await read_state(store, message) is State.PENDING

    async def test_a_settlement_tells_what_is_in_none_of_its_claims(self, harness: StoreHarness) -> None:
        """A crash of the database lost a claim. What was in it is open, and the relay must learn that."""
        store = harness.store
        fence = await own(store, LANE)
        claimed, lost, failed = messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await store.claim(fence, Claim(1, [claimed.id]))
        delivery = Settlement(delivered=[claimed.id, lost.id], finished=[1], touched=[2])
        mixed = Settlement(delivered=[claimed.id, lost.id], failures=[fail(failed)], finished=[1, 2])
        assert set(await store.settle(fence, delivery)) == {lost.id}
        assert set(await store.settle(fence, mixed)) == set(list_ids(messages))
        assert [await read_state(store, message) for message in messages] == [
            State.DELIVERED, State.PENDING, State.PENDING,
        ]  # fmt: skip
        await store.claim(fence, Claim(3, [lost.id, failed.id]))
        assert not await store.settle(fence, Settlement(delivered=[lost.id], touched=[3]))
        assert not await store.settle(fence, Settlement(failures=[fail(failed)], finished=[3]))

    async def test_what_is_in_the_claims_that_are_named_is_recorded(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        failed, delivered = messages = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await store.claim(fence, Claim(1, list_ids(messages)))
        await store.settle(fence, Settlement(delivered=[delivered.id], failures=[fail(failed)], finished=[1]))
        assert [await read_state(store, message) for message in messages] == [State.FAILED, State.DELIVERED]

    async def test_what_is_no_longer_open_is_left_alone(self, harness: StoreHarness) -> None:
        store = harness.store
        delivered, failed, discarded = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await close(store, fence, delivered, State.DELIVERED)
        await close(store, fence, failed, State.FAILED)
        await store.discard(Selection(ids=[discarded.id]), by="ann", reason="no", limit=1)
        before = await read_everything(store)
        await store.settle(fence, Settlement(delivered=[failed.id, discarded.id], failures=[fail(delivered)]))
        await store.settle(fence, Settlement(failures=[retry(delivered), hold(failed), retry(discarded)]))
        assert await read_everything(store) == before

    async def test_unknown_ids_and_claims_are_no_error(self, harness: StoreHarness) -> None:
        store = harness.store
        await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        before = await read_everything(store)
        unknown = FailedOutcome(message_id=4712, state=State.FAILED, attempts=1, error="x")
        await store.settle(
            fence,
            Settlement(delivered=[4711], failures=[unknown], returned=[4713], finished=[9], touched=[10]),
        )
        assert await read_everything(store) == before

    async def test_a_settlement_reaches_only_the_lanes_it_proves(self, harness: StoreHarness) -> None:
        store = harness.store
        far, billed, retried = await put(
            harness, sample(key=FAR), sample(key=NEAR, destination="billing"), sample(key=FAR)
        )
        fence = await own(store, LANE)
        await store.settle(fence, Settlement(delivered=[far.id, billed.id], failures=[retry(retried)]))
        for message in (far, billed, retried):
            assert await reload(store, message) == message
        assert list(await store.journal()) == []

    async def test_no_outcome_of_an_undelivered_message_is_refused(self, harness: StoreHarness) -> None:
        """Delivered, sending, pending without a reason: refused by name, and nothing of the settlement is written."""
        store = harness.store
        message, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, [message.id, other.id]))
        before = await read_everything(store)
        for state in (State.DELIVERED, State.SENDING, State.PENDING):
            wrong = FailedOutcome(message_id=message.id, state=state)
            with pytest.raises(IllegalTransition) as refused:
                await store.settle(fence, Settlement(delivered=[other.id], failures=[wrong], finished=[1]))
            assert f"{message.id}" in str(refused.value)
            assert State.SENDING in str(refused.value)
            assert state in str(refused.value)
            assert await read_everything(store) == before
