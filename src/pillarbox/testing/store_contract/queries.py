"""Queries: finding and counting messages, rollups and ages, the journal and pauses."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from uuid import uuid4

from msgspec.structs import replace

from pillarbox.contracts.store import (
    LATENCY_BOUNDS,
    Claim,
    FailedOutcome,
    JournalEntry,
    Order,
    Pause,
    Rollup,
    Selection,
    Settlement,
    Store,
    Tries,
)
from pillarbox.durations import FOREVER
from pillarbox.errors import Fenced
from pillarbox.message import Message, State, Waits
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import find_key, sample
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
    reload,
    retry,
    settle_failures,
)

__all__ = ["CountsContract", "FindContract", "JournalContract", "RollupContract"]


async def _find_ids(harness: StoreHarness, selection: Selection) -> list[int]:
    found = list_ids(await harness.store.find(selection, limit=MANY))
    assert await harness.store.count(selection) == len(found)
    return found


async def _assert_finds_only(harness: StoreHarness, message: Message, *selections: Selection) -> None:
    """Assert that each of the selections finds this message and no other."""
    for selection in selections:
        assert await _find_ids(harness, selection) == [message.id], selection


class FindContract:
    """`Store.find`."""

    async def test_everything_is_found_by_id(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR)))
        fence = await own(store, LANE)
        await close(store, fence, messages[2], State.DELIVERED)
        await close(store, fence, messages[0], State.FAILED)
        assert await _find_ids(harness, Selection()) == list_ids(messages)

    async def test_finds_page_by_page(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, *(sample(key=NEAR) for _ in range(5)))
        fence = await own(store, LANE)
        for place in (0, 3):
            await close(store, fence, messages[place], State.DELIVERED)
        pages, after = [], 0
        while page := list_ids(await store.find(Selection(after=after), limit=2)):
            pages.append(page)
            after = page[-1]
        every = list_ids(messages)
        assert pages == [every[:2], every[2:4], every[4:]]

    async def test_finds_by_what_the_writer_said(self, harness: StoreHarness) -> None:
        mine = sample(key=NEAR, destination="billing", topic="bills", type="bill.sent", correlation_id="request-1")
        mine, _ = await put(harness, mine, sample(key=SECOND))
        selections = (
            Selection(ids=[mine.id]),
            Selection(ids=[mine.id, 987654]),
            Selection(message_ids=[mine.message_id, uuid4()]),
            Selection(destination="billing"),
            Selection(topic="bills"),
            Selection(type="bill.sent"),
            Selection(key=NEAR),
            Selection(correlation_id="request-1"),
        )
        await _assert_finds_only(harness, mine, *selections)
        await close(harness.store, await own(harness.store, LANE, destination="billing"), mine, State.DELIVERED)
        await _assert_finds_only(harness, mine, *selections)

    async def test_every_condition_must_hold(self, harness: StoreHarness) -> None:
        mine, other = await put(harness, sample(key=NEAR, topic="a"), sample(key=NEAR, topic="b"))
        await _assert_finds_only(harness, mine, Selection(key=NEAR, topic="a"))
        assert await _find_ids(harness, Selection(ids=[other.id], topic="a")) == []
        assert await _find_ids(harness, Selection(topic="A")) == []

    async def test_empty_lists_find_nothing(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        for selection in (Selection(ids=[]), Selection(message_ids=[]), Selection(states=[])):
            assert await _find_ids(harness, selection) == []

    async def test_an_empty_key_is_a_key(self, harness: StoreHarness) -> None:
        empty, _ = await put(harness, sample(key=""), sample(key=None))
        await _assert_finds_only(harness, empty, Selection(key=""))

    async def test_finds_by_state(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in range(9)))
        fresh, sending, delivered, failed, skipped, discarded, held, retrying, parked = messages
        await close(store, fence, delivered, State.DELIVERED)
        await close(store, fence, failed, State.FAILED)
        await close(store, fence, skipped, State.SKIPPED)
        await close(store, fence, discarded, State.DISCARDED)
        await settle_failures(store, fence, hold(held), retry(retrying))
        await park(store, fence, parked)
        await store.claim(fence, Claim(1, [sending.id]))
        expected = {
            State.PENDING: [fresh, retrying, parked],
            State.SENDING: [sending],
            State.DELIVERED: [delivered],
            State.FAILED: [failed, held],
            State.SKIPPED: [skipped],
            State.DISCARDED: [discarded],
        }
        for state, those in expected.items():
            found = await store.find(Selection(states=[state]), limit=MANY)
            assert list_ids(found) == list_ids(those)
            assert all(message.state is state for message in found)
        both = Selection(states=[State.SENDING, State.FAILED])
        assert await _find_ids(harness, both) == list_ids([sending, failed, held])

    async def test_a_retrying_message_in_hand_is_sending(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(message))
        await store.claim(fence, Claim(1, [message.id]))
        await _assert_finds_only(harness, message, Selection(states=[State.SENDING]))

    async def test_finds_by_a_part_of_the_last_error(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        odd, plain, _ = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD))
        await settle_failures(
            store, fence, retry(odd, error="Disk 50%_full (a\\b)"), fail(plain, error="Disk 50 percent full (ab)")
        )
        assert await _find_ids(harness, Selection(error="dISK 50")) == list_ids([odd, plain])
        await _assert_finds_only(harness, odd, *(Selection(error=part) for part in ("50%", "%_FULL", "_f", "a\\b")))
        await _assert_finds_only(harness, plain, Selection(error="percent"))
        assert await _find_ids(harness, Selection(error="50%full")) == []

    async def test_finds_by_attempts(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        none, two, three = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await settle_failures(store, fence, retry(two, attempts=2), fail(three, attempts=3))
        assert await _find_ids(harness, Selection(min_attempts=0)) == list_ids([none, two, three])
        assert await _find_ids(harness, Selection(min_attempts=2)) == list_ids([two, three])
        assert await _find_ids(harness, Selection(min_attempts=3)) == list_ids([three])

    async def test_finds_what_was_tried_whether_or_not_an_attempt_was_spent(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        _, spent, unspent = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        tried = replace(retry(unspent, attempts=0), spends=False)
        await settle_failures(store, fence, retry(spent, attempts=1), tried)
        assert await _find_ids(harness, Selection(states=[State.PENDING], tried=True)) == list_ids([spent, unspent])

    async def test_finds_by_the_time_of_creation(self, harness: StoreHarness) -> None:
        (first,) = await put(harness, sample(key=NEAR))
        harness.clock.advance(LEASE)
        (second,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), first, State.DELIVERED)
        assert first.created_at is not None
        assert second.created_at is not None
        assert first.created_at < second.created_at
        instant = timedelta(microseconds=1)
        assert await _find_ids(harness, Selection(since=first.created_at)) == list_ids([first, second])
        await _assert_finds_only(
            harness, second, Selection(since=first.created_at + instant), Selection(since=second.created_at)
        )
        await _assert_finds_only(harness, first, Selection(until=second.created_at))
        assert await _find_ids(harness, Selection(until=second.created_at + instant)) == list_ids([first, second])
        assert await _find_ids(harness, Selection(until=first.created_at)) == []
        await _assert_finds_only(harness, first, Selection(since=first.created_at, until=second.created_at))

    async def test_finds_by_the_time_of_the_last_change(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        closed, waiting = await put(harness, sample(key=NEAR), sample(key=SECOND))
        harness.clock.advance(HOUR)
        closed = await close(store, fence, closed, State.DELIVERED)
        harness.clock.advance(HOUR)
        await settle_failures(store, fence, retry(waiting))
        waiting = await reload(store, waiting)
        assert closed.status_at is not None
        assert waiting.status_at == closed.status_at + HOUR
        assert await _find_ids(harness, Selection(changed_before=closed.status_at)) == []
        await _assert_finds_only(harness, closed, Selection(changed_before=waiting.status_at))
        later = waiting.status_at + timedelta(microseconds=1)
        assert await _find_ids(harness, Selection(changed_before=later)) == list_ids([closed, waiting])

    async def test_those_with_most_attempts_come_first_if_asked(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        one, two, three, four = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR)))
        await settle_failures(store, fence, retry(one, attempts=1), retry(two, attempts=4), retry(three, attempts=4))
        await settle_failures(store, fence, fail(four, attempts=9), number=1_001)
        found = await store.find(Selection(), limit=3, order=Order.ATTEMPTS)
        assert list_ids(found) == list_ids([four, two, three])
        pending = Selection(states=[State.PENDING], min_attempts=1)
        assert list_ids(await store.find(pending, limit=2, order=Order.ATTEMPTS)) == list_ids([two, three])

    async def test_those_that_changed_last_come_first_if_asked(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE, lease=HOUR)
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        for message in (messages[1], messages[0], messages[2]):
            harness.clock.advance(LEASE)
            await close(store, fence, message, State.FAILED)
        failed = Selection(states=[State.FAILED])
        found = await store.find(failed, limit=2, order=Order.NEWEST)
        assert list_ids(found) == list_ids([messages[2], messages[0]])

    async def test_payloads_can_be_left_out(self, harness: StoreHarness) -> None:
        store = harness.store
        messages = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await close(store, await own(store, LANE), messages[0], State.DELIVERED)
        whole = await store.find(Selection(), limit=MANY)
        bare = await store.find(Selection(), limit=MANY, payloads=False)
        assert [message.payload for message in bare] == [b"", b""]
        assert list(bare) == [replace(message, payload=b"") for message in whole]


_Counts = dict[tuple[str, str | None, State, bool], tuple[int, datetime | None]]


async def _read_counts(store: Store, *, limit: int = 100_000) -> _Counts:
    counts = await store.counts(limit=limit)
    counted = {(one.destination, one.topic, one.state, one.due): (one.count, one.oldest_at) for one in counts}
    assert len(counted) == len(counts)
    return counted


class CountsContract:
    """`Store.counts`."""

    async def test_nothing_is_counted_where_nothing_is(self, harness: StoreHarness) -> None:
        assert await _read_counts(harness.store) == {}

    async def test_counts_by_destination_and_topic(self, harness: StoreHarness) -> None:
        first, _, billed, other = await put(
            harness,
            sample(key=NEAR),
            sample(key=SECOND),
            sample(key=NEAR, destination="billing"),
            sample(key=NEAR, topic="returns"),
        )
        assert await _read_counts(harness.store) == {
            ("orders", "orders", State.PENDING, True): (2, first.created_at),
            ("billing", "orders", State.PENDING, True): (1, billed.created_at),
            ("orders", "returns", State.PENDING, True): (1, other.created_at),
        }

    async def test_counts_by_state(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        states = (State.FAILED, State.SKIPPED, State.DISCARDED)
        assert await store.renew(fence.relay_id, lease=3 * HOUR, reachable=["orders"])
        closing = await put(harness, *(sample(key=NEAR) for _ in states))
        sending, _ = await put(harness, sample(key=NEAR), sample(key=NEAR))
        closed_at = harness.clock.advance(HOUR)
        for message, state in zip(closing, states, strict=True):
            await close(store, fence, message, state)
        (delivered,) = await put(harness, sample(key=SECOND))
        await close(store, fence, delivered, State.DELIVERED)
        await store.claim(fence, Claim(1, [sending.id]))
        harness.clock.advance(HOUR)
        assert await _read_counts(store) == {
            ("orders", "orders", State.PENDING, True): (1, sending.created_at),
            ("orders", "orders", State.SENDING, True): (1, sending.created_at),
        } | {("orders", "orders", state, True): (1, closed_at) for state in states}

    async def test_what_is_not_yet_due_is_counted_apart(self, harness: StoreHarness) -> None:
        store, now = harness.store, harness.clock.now()
        fence = await own(store, LANE, lease=HOUR)
        retried, postponed, *_ = await put(
            harness,
            sample(key=NEAR),
            sample(key=SECOND),
            sample(key=THIRD, available_at=now + 2 * HOUR),
            sample(key=THIRD, available_at=now - HOUR),
        )
        harness.clock.advance(LEASE)  # a database may write the time of its own clock into new rows
        # It could have gone before its first attempt, so it is due, whenever it is tried again.
        await settle_failures(store, fence, retry(retried, delay=3 * HOUR))
        await store.defer(Selection(ids=[postponed.id]), until=now + HOUR, by="ann", limit=1)
        group = ("orders", "orders", State.PENDING)
        assert await _read_counts(store) == {(*group, True): (2, now - HOUR), (*group, False): (2, now + HOUR)}
        harness.clock.advance(HOUR)
        assert await _read_counts(store) == {(*group, True): (3, now - HOUR), (*group, False): (1, now + 2 * HOUR)}

    async def test_a_destination_is_counted_by_itself_however_many_another_has(self, harness: StoreHarness) -> None:
        store = harness.store
        few = await put(harness, *(sample(key=NEAR, destination="billing") for _ in range(2)))
        fence = await own(store, LANE, destination="billing")
        await settle_failures(store, fence, *(fail(message) for message in few))
        harness.clock.advance(LEASE / 10)
        many = await put(harness, *(sample(key=NEAR) for _ in range(5)))
        await settle_failures(store, await own(store, LANE), *(fail(message) for message in many))
        counts = {one.destination: (one.count, one.more) for one in await store.counts(limit=4)}
        assert counts["billing"] == (2, False)
        assert (counts["orders"][0] <= 4, counts["orders"][1]) == (True, True)

    async def test_what_is_parked_was_due_when_it_was_written(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        harness.clock.advance(HOUR)
        await park(store, await own(store, LANE), message)
        assert await _read_counts(store) == {("orders", "orders", State.PENDING, True): (1, message.created_at)}

    async def test_held_ones_count_as_failed(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        held, failed = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settle_failures(store, fence, hold(held))
        await close(store, fence, failed, State.FAILED)
        counted = await _read_counts(store)
        assert list(counted) == [("orders", "orders", State.FAILED, True)]
        assert counted["orders", "orders", State.FAILED, True][0] == 2

    async def test_no_count_looks_at_more_than_the_limit(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in range(10)))
        for message in messages[:5]:
            await close(store, fence, message, State.FAILED)
        counted = await _read_counts(store, limit=3)
        assert {state for _, _, state, _ in counted} == {State.PENDING, State.FAILED}
        assert all(1 <= count <= 3 for count, _ in counted.values())
        assert {count for count, _ in (await _read_counts(store, limit=5)).values()} == {5}


_MINUTE = timedelta(minutes=1)


async def _sum_rollups(store: Store, destination: str = "orders", *, window: timedelta = HOUR) -> Rollup:
    """Return the counters of one destination, which all lie in one minute."""
    rollups = [one for one in await store.rollups(window=window) if one.destination == destination]
    assert len(rollups) == 1
    return rollups[0]


def _is_near(seconds: float, expected: timedelta) -> bool:
    # A store may compute with doubles of seconds since 1970.
    return abs(seconds - expected.total_seconds()) < 1e-5


class RollupContract:
    """`Store.oldest_due`, `rollups` and `claims`."""

    async def test_nothing_is_due_where_nothing_waits(self, harness: StoreHarness) -> None:
        assert dict(await harness.store.oldest_due()) == {}

    async def test_the_oldest_of_each_destination_is_told_from_any_lane(self, harness: StoreHarness) -> None:
        (first,) = await put(harness, sample(key=FAR))
        harness.clock.advance(_MINUTE)
        _, billed = await put(harness, sample(key=NEAR), sample(key=NEAR, destination="billing"))
        assert dict(await harness.store.oldest_due()) == {"orders": first.created_at, "billing": billed.created_at}

    async def test_what_is_deferred_is_old_from_its_due_time_on(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        assert dict(await harness.store.oldest_due()) == {}
        harness.clock.advance(2 * HOUR)
        assert dict(await harness.store.oldest_due()) == {"orders": message.available_at}

    async def test_what_waits_for_another_attempt_is_as_old_as_before_the_first(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE, lease=9 * HOUR)
        for attempts in (1, 2, 3):
            harness.clock.advance(HOUR)
            await settle_failures(store, fence, retry(message, attempts=attempts, delay=9 * HOUR))
            assert dict(await store.oldest_due()) == {"orders": message.created_at}

    async def test_what_waits_unsent_for_a_blocked_address_is_as_old_as_before(self, harness: StoreHarness) -> None:
        store = harness.store
        first, second = await put(harness, sample(key=NEAR), sample(key=SECOND))
        harness.clock.advance(_MINUTE)
        (fresh,) = await put(harness, sample(key=THIRD))
        fence = await own(store, LANE, lease=9 * HOUR)
        held = [replace(retry(one, attempts=0, delay=9 * HOUR), spends=False, tried=False) for one in (first, second)]
        await settle_failures(store, fence, *held)
        harness.clock.advance(HOUR)
        assert dict(await store.oldest_due()) == {"orders": first.created_at}
        due = {one.state: one for one in await store.counts() if one.due}
        assert (due[State.PENDING].count, due[State.PENDING].oldest_at) == (3, first.created_at)
        assert list(await store.journal()) == [], "nothing was tried"
        await store.discard(Selection(ids=[first.id]), by="ann", reason="no", limit=1)
        await close(store, fence, fresh, State.DELIVERED)
        assert dict(await store.oldest_due()) == {"orders": second.created_at}

    async def test_a_deferred_one_is_old_from_its_due_time_on_after_attempts_too(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        fence = await own(store, LANE, lease=9 * HOUR)
        harness.clock.advance(2 * HOUR)
        await settle_failures(store, fence, retry(message, delay=HOUR))
        assert dict(await store.oldest_due()) == {"orders": message.available_at}

    async def test_what_is_parked_is_as_old_as_before(self, harness: StoreHarness) -> None:
        store = harness.store
        head, behind, later = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        (deferred,) = await put(harness, sample(key=NEAR), delay=_MINUTE)
        fence = await own(store, LANE, lease=9 * HOUR)
        await settle_failures(store, fence, hold(head))
        harness.clock.advance(HOUR)
        await park(store, fence, behind, later)
        assert dict(await store.oldest_due()) == {"orders": behind.created_at}
        await store.discard(Selection(ids=list_ids([behind, later])), by="ann", reason="no", limit=2)
        await park(store, fence, deferred)
        assert dict(await store.oldest_due()) == {"orders": deferred.available_at}

    async def test_what_is_held_waits_for_a_person(self, harness: StoreHarness) -> None:
        (head,) = await put(harness, sample(key=NEAR))
        await settle_failures(harness.store, await own(harness.store, LANE), hold(head))
        assert dict(await harness.store.oldest_due()) == {}

    async def test_a_redriven_one_is_as_old_as_its_redrive(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE, lease=9 * HOUR)
        await settle_failures(store, fence, fail(message))
        redriven_at = harness.clock.advance(HOUR)
        await store.redrive(Selection(), by="ann", limit=1)
        harness.clock.advance(HOUR)
        assert dict(await store.oldest_due()) == {"orders": redriven_at}
        await settle_failures(store, fence, retry(message))
        assert dict(await store.oldest_due()) == {"orders": redriven_at}

    async def test_a_postponed_one_is_not_old_until_then(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        until = harness.clock.now() + HOUR
        await store.defer(Selection(ids=[message.id]), until=until, by="ann", limit=1)
        assert dict(await store.oldest_due()) == {}
        harness.clock.advance(HOUR)
        assert dict(await store.oldest_due()) == {"orders": until}

    async def test_nothing_is_counted_before_the_first_settlement(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        assert list(await harness.store.rollups(window=HOUR)) == []

    async def test_deliveries_are_counted_with_their_times(self, harness: StoreHarness) -> None:
        store = harness.store
        happened = harness.clock.now() - HOUR
        fence = await own(store, LANE, lease=HOUR)
        messages = await put(harness, *(sample(key=key, event_time=happened) for key in (NEAR, SECOND)))
        messages += await put(harness, sample(key=THIRD, event_time=happened), delay=timedelta(0))
        now = harness.clock.advance(4 * LEASE)
        await store.settle(fence, Settlement(delivered=list_ids(messages)))
        latencies = [now - (one.available_at or one.created_at or now) for one in messages]
        rollup = await _sum_rollups(store)
        assert (rollup.delivered, rollup.failed, rollup.retried, rollup.discarded) == (3, 0, 0, 0)
        assert rollup.minute == now.replace(second=0, microsecond=0)
        assert _is_near(rollup.latency_sum, sum(latencies, timedelta(0)))
        assert _is_near(rollup.latency_max, max(latencies))
        assert _is_near(rollup.end_to_end_sum, 3 * (HOUR + 4 * LEASE))
        assert _is_near(rollup.end_to_end_max, HOUR + 4 * LEASE)
        counted = dict(zip((*LATENCY_BOUNDS, None), rollup.latencies, strict=True))
        assert {bound: count for bound, count in counted.items() if count} == {60.0: 3}

    async def test_each_latency_is_in_its_bucket(self, harness: StoreHarness) -> None:
        store, began = harness.store, harness.clock.now()
        fence = await own(store, LANE, lease=9 * HOUR)
        for seconds in (0.0, 0.004, *(1.1 * bound for bound in LATENCY_BOUNDS)):
            now = harness.clock.now()
            (message,) = await put(harness, sample(key=NEAR, available_at=now - timedelta(seconds=seconds)))
            await store.settle(fence, Settlement(delivered=[message.id]))
        (rollup,) = await store.rollups(window=harness.clock.now() - began)
        assert list(rollup.latencies) == [2, *[1] * len(LATENCY_BOUNDS)]

    async def test_a_deferred_ones_latency_begins_when_it_was_due(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        fence = await own(harness.store, LANE, lease=3 * HOUR)
        now = harness.clock.advance(HOUR + _MINUTE)
        await close(harness.store, fence, message, State.DELIVERED)
        latency = now - (message.available_at or now)
        assert _is_near((await _sum_rollups(harness.store)).latency_max, latency)

    async def test_a_retried_ones_latency_begins_when_it_was_due(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR), delay=HOUR)
        fence = await own(harness.store, LANE, lease=9 * HOUR)
        harness.clock.advance(HOUR + _MINUTE)
        await settle_failures(harness.store, fence, retry(message))
        now = harness.clock.advance(2 * _MINUTE)
        await close(harness.store, fence, message, State.DELIVERED)
        latencies = [one.latency_max for one in await harness.store.rollups(window=HOUR) if one.delivered]
        assert [_is_near(latency, now - (message.available_at or now)) for latency in latencies] == [True]

    async def test_what_waits_unsent_is_recorded_and_was_not_retried(self, harness: StoreHarness) -> None:
        """Very many wait for one address alike; with other delays, errors and attempts they stay apart."""
        store = harness.store
        fence = await own(store, LANE)
        first, second, third, other = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        full = FailedOutcome(
            message_id=first.id, state=State.PENDING, waits=Waits.RETRY, error="full", delay=HOUR, spends=False,
            tried=False,
        )  # fmt: skip
        alike = [replace(full, message_id=one.id) for one in (first, second)]
        later, spent = (
            replace(full, message_id=third.id, delay=2 * HOUR),
            replace(full, message_id=other.id, attempts=2),
        )
        await store.settle(fence, Settlement(failures=[*alike, later, spent]))
        found = {one.id: one for one in await store.find(Selection(), limit=10)}
        assert [(found[one.id].attempts, found[one.id].last_error) for one in (first, second, third, other)] == [
            (0, "full"), (0, "full"), (0, "full"), (2, "full")
        ]  # fmt: skip
        due_at = [found[one.id].available_at for one in (first, second, third)]
        assert due_at[0] == due_at[1]
        assert due_at[2] is not None
        assert due_at[0] is not None
        assert due_at[2] - due_at[0] == HOUR
        assert [one.retried for one in await store.rollups(window=HOUR)] in ([], [0])

    async def test_each_outcome_has_its_counter(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        messages = await put(harness, *(sample(key=NEAR) for _ in range(7)))
        tried, held, failed, forwarded, skipped, discarded, by_hand = messages
        await settle_failures(
            store,
            fence,
            retry(tried),
            hold(held),
            fail(failed),
            replace(fail(forwarded), forward_to="spare"),
            FailedOutcome(message_id=skipped.id, state=State.SKIPPED),
            FailedOutcome(message_id=discarded.id, state=State.DISCARDED),
        )
        await store.discard(Selection(ids=[by_hand.id, failed.id]), by="ann", reason="no", limit=2)
        await park(store, fence, by_hand)
        rollup = await _sum_rollups(store)
        assert (rollup.delivered, rollup.failed, rollup.retried, rollup.discarded) == (0, 3, 1, 3)

    async def test_a_repeated_settlement_is_counted_once(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        one, two, three = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        settlement = Settlement(delivered=[one.id], failures=[retry(two), fail(three)])
        for _ in range(3):
            await store.settle(fence, settlement)
        rollup = await _sum_rollups(store)
        assert (rollup.delivered, rollup.retried, rollup.failed) == (1, 1, 1)
        assert len(await store.journal()) == 2

    async def test_what_the_fence_refuses_is_not_counted(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        harness.clock.advance(2 * LEASE)
        await own(store, LANE)
        with suppress(Fenced):
            await store.settle(fence, Settlement(delivered=[message.id], failures=[retry(message)]))
        assert list(await store.rollups(window=HOUR)) == []

    async def test_relays_add_up(self, harness: StoreHarness) -> None:
        store = harness.store
        fences = [await own(store, LANE), await own(store, OTHER)]
        near, far = await put(harness, sample(key=NEAR), sample(key=FAR))
        for fence, message in zip(fences, (near, far), strict=True):
            await store.settle(fence, Settlement(delivered=[message.id]))
        assert (await _sum_rollups(store)).delivered == 2

    async def test_settlements_of_a_minute_add_up(self, harness: StoreHarness) -> None:
        store, now = harness.store, harness.clock.now()
        now = harness.clock.advance(_MINUTE - timedelta(seconds=now.second, microseconds=now.microsecond))
        fence = await own(store, LANE)
        keys = [find_key(LANE, nth=nth) for nth in range(6)]
        messages = await put(harness, *(sample(key=key, available_at=now, event_time=now) for key in keys))
        harness.clock.advance(timedelta(seconds=6))
        ids = list_ids(messages)
        await store.settle(fence, Settlement(delivered=[ids[0]], failures=[retry(messages[1]), fail(messages[2])]))
        (late,) = await put(harness, sample(key=NEAR, available_at=harness.clock.now(), event_time=harness.clock.now()))
        await store.settle(fence, Settlement(delivered=[late.id], failures=[retry(messages[3]), fail(messages[4])]))
        for message in (messages[5], messages[1]):
            await store.discard(Selection(ids=[message.id]), by="ann", reason="no", limit=1)
        rollup = await _sum_rollups(store)
        assert (rollup.delivered, rollup.retried, rollup.failed, rollup.discarded) == (2, 2, 2, 2)
        assert (round(rollup.latency_sum, 3), round(rollup.latency_max, 3)) == (6.0, 6.0)
        assert (round(rollup.end_to_end_sum, 3), round(rollup.end_to_end_max, 3)) == (6.0, 6.0)

    async def test_each_destination_and_minute_has_its_counters(self, harness: StoreHarness) -> None:
        store = harness.store
        orders = await own(store, LANE, lease=HOUR)
        billing = await own(store, LANE, destination="billing", lease=HOUR)
        times = []
        for _ in range(2):
            times.append(harness.clock.advance(_MINUTE).replace(second=0, microsecond=0))
            one, other = await put(harness, sample(key=NEAR), sample(key=NEAR, destination="billing"))
            await store.settle(orders, Settlement(delivered=[one.id]))
            await store.settle(billing, Settlement(failures=[fail(other)]))
        found = [(one.minute, one.destination, one.delivered, one.failed) for one in await store.rollups(window=HOUR)]
        assert sorted(found) == sorted([(at, "orders", 1, 0) for at in times] + [(at, "billing", 0, 1) for at in times])

    async def test_only_the_window_is_told_and_old_minutes_can_be_deleted(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE, lease=9 * HOUR)
        for _ in range(3):
            (message,) = await put(harness, sample(key=NEAR))
            await store.settle(fence, Settlement(delivered=[message.id]))
            harness.clock.advance(HOUR)
        assert [one.delivered for one in await store.rollups(window=HOUR)] == [1]
        assert len(await store.rollups(window=3 * HOUR)) == 3
        assert await store.purge_rollups(older_than=HOUR + _MINUTE, limit=1) == 1
        assert await store.purge_rollups(older_than=HOUR + _MINUTE, limit=MANY) == 1
        assert await store.purge_rollups(older_than=HOUR + _MINUTE, limit=MANY) == 0
        assert len(await store.rollups(window=9 * HOUR)) == 1

    async def test_what_is_in_hand_for_long_is_told_oldest_first(self, harness: StoreHarness) -> None:
        first, second, third = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=FAR))
        fence = await own(harness.store, LANE, OTHER, lease=HOUR)
        began = harness.clock.now()
        await harness.store.claim(fence, Claim(1, [first.id, second.id], 2))
        harness.clock.advance(_MINUTE)
        await harness.store.claim(fence, Claim(2, [third.id]))
        harness.clock.advance(_MINUTE)
        both = await harness.store.claims(older_than=_MINUTE)
        assert [list(claim.message_ids) for claim in both] == [[first.id, second.id], [third.id]]
        (one,) = await harness.store.claims(older_than=2 * _MINUTE)
        assert (one.relay_id, one.claimed_at, one.strikes) == (fence.relay_id, began, 2)
        assert list(await harness.store.claims(older_than=LEASE * 100)) == []
        assert list(await harness.store.claims(older_than=FOREVER)) == []
        assert len(await harness.store.claims(older_than=_MINUTE, limit=1)) == 1
        assert list(await harness.store.claims(older_than=_MINUTE, relay_id=fence.relay_id)) == list(both)
        assert list(await harness.store.claims(older_than=_MINUTE, relay_id=uuid4())) == []


class JournalContract:
    """`Store.journal`, `Store.note`, `Store.pause`, `Store.resume` and `Store.pauses`."""

    async def test_what_is_done_to_the_whole_store_leaves_a_line(self, harness: StoreHarness) -> None:
        now = harness.clock.advance(HOUR)
        await harness.store.note("purged", by="ann", detail="3 delivered ü")
        (line,) = await harness.store.journal()
        assert replace(line, id=0) == JournalEntry(
            message_id=None, destination="*", action="purged", at=now, by="ann", detail="3 delivered ü"
        )

    async def test_the_happy_path_leaves_no_line(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), message, State.DELIVERED)
        assert list(await harness.store.journal()) == []

    async def test_for_how_long_a_message_was_tried_survives_its_relays(self, harness: StoreHarness) -> None:
        """Tries that spent no attempt, since a person last had the message sent again."""
        store = harness.store
        first = sample(key=NEAR)
        tried, spent, fresh, other = await put(
            harness, first, sample(key=SECOND), sample(key=THIRD),
            sample(key=NEAR, destination="billing", message_id=first.message_id),
        )  # fmt: skip
        names = [one.message_id for one in (tried, spent, fresh)]
        billing = await own(store, LANE, destination="billing", lease=10 * HOUR)
        await settle_failures(store, billing, replace(retry(other, attempts=0), spends=False))
        harness.clock.advance(HOUR)
        for number in range(3):
            fence = await own(store, LANE)
            outcome = replace(retry(tried, attempts=0, error=f"HTTP {number}"), spends=False)
            await settle_failures(store, fence, outcome, retry(spent, attempts=number + 1))
            await store.leave(fence.relay_id)
            harness.clock.advance(HOUR)
        assert dict(await store.tried_for("orders", message_ids=names)) == {tried.message_id: 3 * HOUR}
        assert dict(await store.tried_for("billing", message_ids=names)) == {tried.message_id: 4 * HOUR}
        assert dict(await store.tried_for("orders", message_ids=[])) == {}
        fence = await own(store, LANE)
        await close(store, fence, tried, State.FAILED)
        await store.redrive(Selection(ids=[tried.id]), by="ann", limit=MANY)
        assert dict(await store.tried_for("orders", message_ids=names)) == {}
        await settle_failures(store, fence, replace(retry(tried, attempts=0), spends=False))
        harness.clock.advance(HOUR)
        assert dict(await store.tried_for("orders", message_ids=names)) == {tried.message_id: HOUR}

    async def test_every_try_is_counted_until_the_message_is_sent_again(self, harness: StoreHarness) -> None:
        """Tries that spent an attempt and tries that did not, of one message, at one destination."""
        store = harness.store
        twin = sample(key=NEAR)
        tried, fresh, other = await put(
            harness, twin, sample(key=SECOND), sample(key=NEAR, destination="billing", message_id=twin.message_id)
        )
        billing = await own(store, LANE, destination="billing", lease=10 * HOUR)
        fence = await own(store, LANE, lease=90 * HOUR)
        began = harness.clock.advance(HOUR)
        await settle_failures(store, billing, retry(other, attempts=1, delay=LEASE))
        first_at = harness.clock.advance(HOUR)
        for attempts, spends in ((0, False), (0, False), (1, True)):
            await settle_failures(store, fence, replace(retry(tried, attempts=attempts, delay=LEASE), spends=spends))
            harness.clock.advance(HOUR)
        every = [tried, fresh, other]
        expected = {tried.id: Tries(3, first_at), other.id: Tries(1, began)}
        assert dict(await store.count_tries(every)) == expected
        assert dict(await store.count_tries([])) == {}
        assert dict(await store.count_tries([other])) == {other.id: Tries(1, began)}
        await store.defer(Selection(ids=[tried.id]), until=harness.clock.now(), by="ann", limit=MANY)
        unsent = replace(retry(tried, attempts=1, delay=LEASE), spends=False, tried=False)
        await settle_failures(store, fence, unsent)
        assert (await store.count_tries(every))[tried.id] == Tries(3, first_at)
        await settle_failures(store, fence, fail(tried, attempts=2))
        assert (await store.count_tries([await reload(store, tried)])) == {tried.id: Tries(4, first_at)}
        (group,) = await store.failure_groups()
        assert group.tries == Tries(4, first_at)
        await store.redrive(Selection(ids=[tried.id]), by="ann", limit=MANY)
        assert dict(await store.count_tries(every)) == {other.id: Tries(1, began)}
        again_at = harness.clock.advance(HOUR)
        await settle_failures(store, fence, replace(retry(tried, attempts=0), spends=False))
        assert (await store.count_tries(every))[tried.id] == Tries(1, again_at)

    async def test_a_message_that_is_given_up_unsent_was_not_tried(self, harness: StoreHarness) -> None:
        store = harness.store
        unsent, tried, held = await put(harness, sample(key=NEAR), sample(key=SECOND), sample(key=THIRD))
        fence = await own(store, LANE, lease=9 * HOUR)
        at = harness.clock.advance(HOUR)
        await settle_failures(
            store, fence, replace(fail(unsent), attempts=0), replace(retry(tried, attempts=0), spends=False),
            hold(held, attempts=1),
        )  # fmt: skip
        await settle_failures(store, fence, replace(fail(tried), attempts=0))
        assert dict(await store.count_tries([unsent, tried, held])) == {tried.id: Tries(2, at), held.id: Tries(1, at)}

    async def test_every_trouble_leaves_a_line(self, harness: StoreHarness) -> None:
        store = harness.store
        fence = await own(store, LANE)
        now = harness.clock.advance(HOUR)
        for action, state, waits in (
            ("attempt_failed", State.PENDING, Waits.RETRY),
            ("held", State.PENDING, Waits.HELD),
            ("deferred", State.PENDING, Waits.DEFERRED),
            ("failed", State.FAILED, None),
            ("skipped", State.SKIPPED, None),
            ("discarded", State.DISCARDED, None),
        ):
            (message,) = await put(harness, sample(key=NEAR))
            outcome = FailedOutcome(
                message_id=message.id, state=state, waits=waits, attempts=3, error="HTTP 500 ü",
                detail="Traceback:\n  line 1", delay=LEASE if waits in (Waits.RETRY, Waits.DEFERRED) else None,
            )  # fmt: skip
            await settle_failures(store, fence, outcome)
            lines = await store.journal(message_id=message.message_id)
            assert [replace(line, id=0) for line in lines] == [
                JournalEntry(
                    message_id=message.message_id, destination="orders", action=action, at=now,
                    by=str(fence.relay_id), attempt=3, error="HTTP 500 ü", detail="Traceback:\n  line 1",
                )
            ]  # fmt: skip

    async def test_a_try_that_spends_nothing_leaves_a_line_and_its_error(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for _ in range(3):
            await settle_failures(store, fence, replace(retry(message, attempts=0), spends=False))
            harness.clock.advance(HOUR)
        lines = await store.journal(message_id=message.message_id)
        assert [(line.action, line.attempt, line.error) for line in lines] == [("tried", 0, lines[0].error)] * 3
        found = await reload(store, message)
        assert (found.state, found.attempts, found.last_error) == (State.PENDING, 0, lines[0].error)

    async def test_waiting_unsent_leaves_the_reason_and_no_line(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        unsent = replace(retry(message, attempts=0), spends=False, tried=False)
        await settle_failures(store, await own(store, LANE), unsent)
        assert list(await store.journal(message_id=message.message_id)) == []
        assert (await reload(store, message)).last_error == unsent.error

    async def test_operators_are_named_with_the_time(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        one = Selection(ids=[message.id])
        expected = []

        def expect(action: str, by: str) -> None:
            expected.append((message.message_id, "orders", action, by, harness.clock.now()))
            harness.clock.advance(HOUR)

        await store.defer(one, until=harness.clock.now(), by="ann", limit=1)
        expect("deferred", "ann")
        await settle_failures(store, fence, fail(message))
        expect("failed", str(fence.relay_id))
        await store.redrive(one, by="bob", limit=1)
        expect("redriven", "bob")
        await close(store, fence, message, State.DELIVERED)
        await store.replay(one, by="cleo", limit=1)
        expect("replayed", "cleo")
        await store.discard(one, by="dörte", reason="enough", limit=1)
        expect("discarded", "dörte")
        lines = await store.journal(message_id=message.message_id)
        assert [(line.message_id, line.destination, line.action, line.by, line.at) for line in lines] == expected
        assert lines[-1].reason == "enough"

    async def test_a_redrive_to_elsewhere_is_written_down_too(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        await settle_failures(store, await own(store, LANE), fail(message))
        await store.redrive(Selection(), by="ann", limit=MANY, to="spare")
        lines = await store.journal(message_id=message.message_id)
        assert [(line.action, line.by) for line in lines][1:] == [("redriven", "ann")]

    async def test_each_message_of_a_batch_has_its_line(self, harness: StoreHarness) -> None:
        messages = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        await harness.store.discard(Selection(), by="ann", reason="no", limit=MANY)
        lines = await harness.store.journal()
        assert sorted(str(line.message_id) for line in lines) == sorted(str(one.message_id) for one in messages)

    async def test_lines_come_oldest_first_and_the_latest_of_them(self, harness: StoreHarness) -> None:
        store = harness.store
        (message,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for attempt in range(1, 6):
            await settle_failures(store, fence, retry(message, attempts=attempt, delay=None))
            harness.clock.advance(LEASE)
        assert [line.attempt for line in await store.journal()] == [1, 2, 3, 4, 5]
        assert [line.attempt for line in await store.journal(limit=2)] == [4, 5]

    async def test_the_journal_of_one_message_is_its_own(self, harness: StoreHarness) -> None:
        store = harness.store
        one, other = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settle_failures(store, await own(store, LANE), retry(one), fail(other))
        lines = await store.journal(message_id=one.message_id)
        assert [(line.message_id, line.action) for line in lines] == [(one.message_id, "attempt_failed")]

    async def test_one_message_has_a_journal_over_all_its_destinations(self, harness: StoreHarness) -> None:
        store = harness.store
        first = sample(key=NEAR)
        for message in await put(harness, first, sample(key=NEAR, destination="billing", message_id=first.message_id)):
            await settle_failures(store, await own(store, LANE, destination=message.destination), fail(message))
        lines = await store.journal(message_id=first.message_id)
        assert [line.destination for line in lines] == ["orders", "billing"]

    async def test_a_destination_is_paused_and_resumed(self, harness: StoreHarness) -> None:
        store, paused_at = harness.store, harness.clock.now()
        await store.pause("orders", by="ann", reason="müll")
        await store.pause("billing", by="bob", reason="too")
        pauses = sorted(await store.pauses(), key=lambda pause: pause.destination)
        assert pauses == [
            Pause(destination="billing", by="bob", at=paused_at, reason="too"),
            Pause(destination="orders", by="ann", at=paused_at, reason="müll"),
        ]
        resumed_at = harness.clock.advance(HOUR)
        assert await store.resume("orders", by="cleo")
        assert [pause.destination for pause in await store.pauses()] == ["billing"]
        lines = [line for line in await store.journal() if line.destination == "orders"]
        assert [(line.message_id, line.action, line.by, line.at) for line in lines] == [
            (None, "paused", "ann", paused_at),
            (None, "resumed", "cleo", resumed_at),
        ]
        assert lines[0].reason == "müll"

    async def test_a_second_pause_keeps_the_first_ones_word(self, harness: StoreHarness) -> None:
        store = harness.store
        await store.pause("orders", by="ann", reason="first")
        before = await store.pauses(), await store.journal()
        harness.clock.advance(HOUR)
        await store.pause("orders", by="bob", reason="second")
        assert (await store.pauses(), await store.journal()) == before

    async def test_resuming_what_is_not_paused_is_false(self, harness: StoreHarness) -> None:
        store = harness.store
        assert not await store.resume("orders", by="ann")
        await store.pause("orders", by="ann", reason="r")
        assert await store.resume("orders", by="ann")
        assert not await store.resume("orders", by="ann")
        assert [line.action for line in await store.journal()] == ["paused", "resumed"]

    async def test_a_pause_survives_a_restart_and_touches_no_message(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await harness.store.pause("orders", by="ann", reason="r")
        store = await harness.restart()
        assert [pause.destination for pause in await store.pauses()] == ["orders"]
        assert list((await store.read("orders", partitions=[LANE], cursor=None, limit=MANY)).messages) == [message]
