"""Questions of a dashboard: failures by reason, blocked keys, the journal page by page, backlogs, inboxes, tables."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from msgspec.structs import replace

from pillarbox.contracts.store import Action, Claim, FailedOutcome, Order, Phase, Selection, Settlement, Store
from pillarbox.fingerprint import fingerprint
from pillarbox.message import Message, State, Waits
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import find_key, sample, sample_relay
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

__all__ = [
    "BacklogContract",
    "BlockedCountContract",
    "FailureGroupContract",
    "InboxActivityContract",
    "InboxRecordContract",
    "LaneBacklogContract",
    "PhaseContract",
    "ReasonContract",
]

_MINUTE = timedelta(minutes=1)


async def _count_groups(store: Store) -> list[tuple[str, str, int]]:
    return [(group.destination, group.fingerprint, group.count) for group in await store.failure_groups()]


class FailureGroupContract:
    """`Store.failure_groups`, and `Selection.fingerprint`."""

    async def test_failures_of_one_reason_are_one_group(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, SECOND, THIRD, NEAR)))
        fence = await own(store, LANE)
        began = harness.clock.advance(HOUR)
        for row, error in zip(rows, ["order 1 ü", "order 22 ü", "order 3 ü", "HTTP 400", "order 5 ü"], strict=True):
            await settle_failures(store, fence, fail(row, error=error))
            harness.clock.advance(timedelta(seconds=1))
        large, small = await store.failure_groups()
        assert (large.destination, large.fingerprint) == ("orders", "order # ü")
        assert (large.count, large.more, large.keys) == (4, False, 2)
        assert (large.first_at, large.last_at) == (began, began + timedelta(seconds=4))
        assert large.example == replace(await reload(store, rows[4]), payload=b"")
        assert (small.fingerprint, small.count, small.keys, small.example.id) == ("HTTP 400", 1, 1, rows[3].id)
        assert [group.count for group in await store.failure_groups(limit=1)] == [4]

    async def test_destinations_are_grouped_apart(self, harness: StoreHarness) -> None:
        store = harness.store
        (one,) = await put(harness, sample(key=NEAR))
        others = await put(harness, *(sample(key=key, destination="billing") for key in (NEAR, SECOND)))
        await close(store, await own(store, LANE), one, State.FAILED)
        billing = await own(store, LANE, destination="billing")
        await settle_failures(store, billing, *map(fail, others))
        assert await _count_groups(store) == [("billing", "HTTP 400", 2), ("orders", "HTTP 400", 1)]
        (group,) = await store.failure_groups(destination="orders", limit=1)
        assert (group.destination, group.count) == ("orders", 1)
        assert list(await store.failure_groups(destination="mail")) == []

    async def test_held_messages_are_failures(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, hold(rows[0], error="no 1"))
        harness.clock.advance(HOUR)
        await settle_failures(store, fence, fail(rows[1], error="no 2"))
        harness.clock.advance(HOUR)
        await settle_failures(store, fence, hold(rows[2], error="no 3"))
        (group,) = await store.failure_groups()
        assert (group.fingerprint, group.count, group.keys, group.example.id) == ("no #", 3, 3, rows[2].id)
        assert (group.example.waits, group.example.state, group.example.payload) == (Waits.HELD, State.FAILED, b"")
        assert group.last_at - group.first_at == 2 * HOUR

    async def test_a_key_that_is_held_and_failed_counts_once(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, NEAR, SECOND)), sample(key=None))
        fence = await own(store, LANE, *({rows[3].partition} - {LANE}))
        await settle_failures(store, fence, *(fail(rows[place], error="no 1") for place in (0, 2, 3)))
        await settle_failures(store, fence, hold(rows[1], error="no 2"))
        (group,) = await store.failure_groups()
        assert (group.count, group.keys) == (4, 2)

    async def test_a_failure_without_an_error_belongs_to_the_group_of_the_last_one(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, *(retry(row, delay=None, error="no 1") for row in rows[:2]))
        harness.clock.advance(HOUR)
        fence = await own(store, LANE, relay_id=fence.relay_id)
        outcomes = [replace(fail(rows[0]), error=None), replace(hold(rows[1]), error=None), fail(rows[2], error="no 3")]
        await settle_failures(store, fence, *outcomes)
        assert await _count_groups(store) == [("orders", "no #", 3)]
        assert (await reload(store, rows[0])).last_error == "no 1"
        assert (await reload(store, rows[1])).last_error == "no 1"

    async def test_only_failures_are_grouped(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=None) for _ in range(4)), sample(key=NEAR))
        fence = await own(store, *{row.partition for row in rows[:4]})
        for row, state in zip(rows, (State.DELIVERED, State.SKIPPED, State.DISCARDED), strict=False):
            await close(store, fence, row, state)
        await settle_failures(store, fence, retry(rows[3]))
        assert list(await store.failure_groups()) == []

    async def test_counting_a_group_ends(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        await settle_failures(store, await own(store, LANE), *map(fail, rows))
        (group,) = await store.failure_groups(counted_to=3)
        assert (group.count, group.more) == (3, True)
        (group,) = await store.failure_groups(counted_to=10)
        assert (group.count, group.more) == (4, False)

    async def test_a_selection_names_a_group(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD, NEAR)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, fail(rows[0], error="no 1"), hold(rows[1], error="no 2"), fail(rows[2]))
        selection = Selection(fingerprint="no #")
        assert list_ids(await store.find(selection, limit=MANY)) == [rows[0].id, rows[1].id]
        assert await store.count(selection) == 2
        assert list_ids(await store.find(replace(selection, states=[State.PENDING]), limit=MANY)) == []
        assert await store.count(replace(selection, states=[State.PENDING])) == 0
        assert (await store.redrive(selection, by="ann", limit=MANY)).count == 2
        assert await _count_groups(store) == [("orders", "HTTP 400", 1)]
        assert await store.count(selection) == 0

    async def test_a_discarded_group_is_gone(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, THIRD)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, fail(rows[0], error="no 1"), hold(rows[1], error="no 2"))
        result = await store.discard(Selection(fingerprint="no #"), by="ann", reason="no 3", limit=MANY)
        assert result.count == 2
        assert (await reload(store, rows[2])).state is State.PENDING
        assert list(await store.failure_groups()) == []
        await store.redrive(Selection(states=[State.DISCARDED]), by="ann", limit=MANY)
        assert await store.count(Selection(fingerprint="no #")) == 0

    async def test_what_fails_again_is_in_the_group_of_its_new_reason(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        for outcome in (hold(row, error="first"), hold(row, error="second"), fail(row, error="third")):
            await settle_failures(store, fence, outcome)
            assert await _count_groups(store) == [("orders", str(outcome.error), 1)]
            await store.redrive(Selection(ids=[row.id]), by="ann", limit=MANY)
            assert await _count_groups(store) == []

    async def test_a_forwarded_message_has_not_failed(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        await settle_failures(store, await own(store, LANE), replace(fail(row), forward_to="graveyard"))
        assert list(await store.failure_groups()) == []

    async def test_a_restored_failure_is_in_its_group(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, SECOND)))
        fence = await own(store, LANE)
        closed = [
            await close(store, fence, row, state)
            for row, state in zip(rows, (State.FAILED, State.DELIVERED), strict=True)
        ]
        await store.purge_archived(closed)
        await store.restore(closed, by="ann")
        assert await _count_groups(store) == [("orders", "HTTP 400", 1)]

    async def test_a_failure_without_an_error_has_an_empty_fingerprint(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        await settle_failures(store, await own(store, LANE), FailedOutcome(message_id=row.id, state=State.FAILED))
        assert await _count_groups(store) == [("orders", "", 1)]
        assert list_ids(await store.find(Selection(fingerprint=""), limit=MANY)) == [row.id]

    async def test_a_long_error_is_grouped_by_its_beginning(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        error = "ü word " * 200
        await settle_failures(store, await own(store, LANE), fail(row, error=error))
        assert await _count_groups(store) == [("orders", fingerprint(error), 1)]


class BlockedCountContract:
    """`Store.count_blocked`."""

    async def test_each_blocked_key_comes_with_what_waits_behind_its_head(self, harness: StoreHarness) -> None:
        store = harness.store
        first = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        harness.clock.advance(HOUR)
        second = await put(harness, *(sample(key=FAR) for _ in range(2)), sample(key=SECOND))
        fence = await own(store, LANE, OTHER)
        await settle_failures(store, fence, retry(first[0]), hold(second[0]), retry(second[2]))
        await park(store, fence, *first[1:], second[1])
        held, *rest = sorted(await store.count_blocked("orders"), key=lambda one: one.head.waits is Waits.RETRY)
        assert (held.destination, held.partition, held.key, held.waiting, held.more) == ("orders", OTHER, FAR, 1, False)
        assert held.head == replace(await reload(store, second[0]), payload=b"")
        assert [(one.key, one.waiting) for one in rest] == [(NEAR, 2), (SECOND, 0)]

    async def test_the_longest_waiting_comes_first(self, harness: StoreHarness) -> None:
        store = harness.store
        rows: list[Message] = []
        for key in (NEAR, SECOND, THIRD):
            rows += await put(harness, sample(key=key))
            harness.clock.advance(HOUR)
        fence = await own(store, LANE)
        await settle_failures(store, fence, retry(rows[2]), hold(rows[1]), retry(rows[0]))
        assert [one.head.id for one in await store.count_blocked("orders")] == list_ids(rows)
        assert [one.head.id for one in await store.count_blocked("orders", limit=2)] == list_ids(rows[:2])
        assert list(await store.count_blocked("billing")) == []

    async def test_counting_what_waits_for_a_key_ends(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(5)))
        fence = await own(store, LANE)
        await settle_failures(store, fence, hold(rows[0]))
        await park(store, fence, *rows[1:])
        (one,) = await store.count_blocked("orders", counted_to=3)
        assert (one.waiting, one.more) == (3, True)

    async def test_what_blocks_nothing_is_no_head(self, harness: StoreHarness) -> None:
        store = harness.store
        keyless, fresh, parked = await put(harness, sample(key=None), sample(key=NEAR), sample(key=SECOND))
        fence = await own(store, *{keyless.partition, LANE})
        await settle_failures(store, fence, retry(keyless))
        await park(store, fence, parked)
        assert fresh.key == NEAR
        assert list(await store.count_blocked("orders")) == []


class ReasonContract:
    """Reasons, selections, filters and pages of the journal; `Store.purge_journal`, `Store.probe`, `Store.requests`."""

    async def test_every_action_says_why(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        fence = await own(store, LANE)
        named = Selection(ids=[row.id])
        await store.defer(named, until=harness.clock.now() + HOUR, by="ann", limit=1, reason="later ü")
        await settle_failures(store, fence, fail(row))
        await store.redrive(named, by="ann", limit=1, reason="mended")
        await close(store, fence, row, State.DELIVERED)
        await store.replay(named, by="ann", limit=1, reason="lost there")
        await store.discard(named, by="ann", limit=1, reason="enough")
        lines = [line for line in await store.journal(message_id=row.message_id) if line.by == "ann"]
        assert [(line.action, line.reason, line.error) for line in lines] == [
            (Action.DEFERRED, "later ü", None), (Action.REDRIVEN, "mended", None),
            (Action.REPLAYED, "lost there", None), (Action.DISCARDED, "enough", None),
        ]  # fmt: skip
        await store.pause("orders", by="ann", reason="broken")
        await store.resume("orders", by="ann", reason="works")
        await store.resume("orders", by="ann")
        lines = list(await store.journal(messages=False))
        assert [(line.action, line.reason) for line in lines] == [(Action.PAUSED, "broken"), (Action.RESUMED, "works")]

    async def test_a_redrive_needs_no_reason(self, harness: StoreHarness) -> None:
        (row,) = await put(harness, sample(key=NEAR))
        await close(harness.store, await own(harness.store, LANE), row, State.FAILED)
        await harness.store.redrive(Selection(ids=[row.id]), by="ann", limit=1)
        assert [line.reason for line in await harness.store.journal()] == [None, None]

    async def test_a_note_keeps_all_that_it_says(self, harness: StoreHarness) -> None:
        now = harness.clock.advance(HOUR)
        await harness.store.note(
            Action.REDRIVEN, by="ann", detail="2 messages", destination="orders", reason="mended ü",
            selection='{"topic":"t"}',
        )  # fmt: skip
        (line,) = await harness.store.journal()
        assert (line.message_id, line.destination, line.action, line.at) == (None, "orders", "redriven", now)
        assert (line.by, line.detail, line.reason) == ("ann", "2 messages", "mended ü")
        assert (line.selection, line.error) == ('{"topic":"t"}', None)

    async def test_lines_are_found_by_what_they_say(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        await close(store, await own(store, LANE), row, State.FAILED)
        await store.redrive(Selection(ids=[row.id]), by="bob", limit=1)
        for number, (by, destination) in enumerate([("ann", "orders"), ("ann", "billing"), ("bob", "orders")]):
            await store.note("purged" if number else "probed", by=by, detail=str(number), destination=destination)
        everything = list(await store.journal())
        assert [line.id for line in everything] == sorted(line.id for line in everything)
        assert len(everything) == 5

        async def find(**conditions: object) -> list[str | None]:
            lines = await store.journal(**conditions)  # type: ignore[arg-type]
            return [line.detail or line.action for line in lines]

        assert await find(by="ann") == ["0", "1"]
        assert await find(destination="orders") == ["failed", "redriven", "0", "2"]
        assert await find(destination="orders", by="bob") == ["redriven", "2"]
        assert await find(actions=["purged", "failed"]) == ["failed", "1", "2"]
        assert await find(actions=[]) == []
        assert await find(messages=False) == ["0", "1", "2"]
        assert await find(messages=False, by="bob", actions=["purged"]) == ["2"]
        assert await find(message_id=row.message_id, actions=["redriven"]) == ["redriven"]
        assert await find(message_id=row.message_id, destination="billing") == []
        assert await find(message_id=row.message_id, messages=False) == []

    async def test_the_journal_is_read_page_by_page(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        await close(store, await own(store, LANE), row, State.FAILED)
        for number in range(5):
            await store.note("purged", by="ann", detail=str(number))
        for conditions in ({}, {"by": "ann"}, {"messages": False}):
            seen: list[str | None] = []
            before = None
            while page := await store.journal(before=before, limit=2, **conditions):
                seen = [line.detail for line in page] + seen
                before = page[0].id
            assert seen[-5:] == ["0", "1", "2", "3", "4"]
            assert len(seen) == (5 if conditions else 6)

    async def test_lines_of_no_message_have_a_retention_of_their_own(self, harness: StoreHarness) -> None:
        store = harness.store
        (row,) = await put(harness, sample(key=NEAR))
        await close(store, await own(store, LANE), row, State.FAILED)
        for number in range(3):
            await store.note("purged", by="ann", detail=str(number))
            harness.clock.advance(HOUR)
        assert await store.purge_journal(older_than=4 * HOUR, limit=10) == 0
        assert await store.purge_journal(older_than=2 * HOUR, limit=1) == 1
        assert await store.purge_journal(older_than=2 * HOUR, limit=10) == 1
        assert [line.detail for line in await store.journal(messages=False)] == ["2"]
        assert len(await store.journal(message_id=row.message_id)) == 1
        assert await store.purge_journal(older_than=timedelta.max, limit=10) == 0

    async def test_a_probe_is_asked_of_a_live_relay(self, harness: StoreHarness) -> None:
        store = harness.store
        assert not await store.probe("orders", by="ann")
        assert list(await store.requests()) == []
        await store.register(sample_relay(destination="orders"), lease=LEASE)
        assert not await store.probe("billing", by="ann")
        now = harness.clock.now()
        assert await store.probe("orders", by="ann")
        (request,) = await store.requests()
        assert (request.destination, request.pause, request.probe_at) == ("orders", None, now)
        (line,) = await store.journal()
        assert (line.action, line.by, line.destination, line.message_id) == (Action.PROBED, "ann", "orders", None)
        later = harness.clock.advance(LEASE / 2)
        assert await store.probe("orders", by="bob")
        assert [one.probe_at for one in await store.requests()] == [later]
        harness.clock.advance(LEASE)
        assert not await store.probe("orders", by="ann")

    async def test_pauses_are_requests_too(self, harness: StoreHarness) -> None:
        store = harness.store
        await store.register(sample_relay(destination="orders"), lease=LEASE)
        await store.pause("billing", by="ann", reason="broken")
        await store.pause("orders", by="ann", reason="broken")
        await store.probe("orders", by="ann")
        billing, orders = await store.requests()
        assert [billing.pause, orders.pause] == list(await store.pauses())
        assert (billing.probe_at, orders.probe_at) == (None, harness.clock.now())
        await store.resume("orders", by="ann")
        assert [one.pause for one in await store.requests()] == [billing.pause, None]


class BacklogContract:
    """`Store.record_backlog`, and steps of `Store.rollups`."""

    async def test_a_backlog_is_what_is_due(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(4)), sample(key=FAR), sample(key=SECOND))
        await put(harness, sample(key=THIRD), delay=HOUR)
        harness.clock.advance(_MINUTE)  # a database may write the time of its own clock into new rows
        fence = await own(store, LANE, OTHER)
        await settle_failures(store, fence, retry(rows[0]), hold(rows[5]))
        await park(store, fence, rows[1])
        await close(store, fence, rows[4], State.DELIVERED)
        await store.record_backlog(fence.relay_id, destinations=["orders", "billing"], limit=100)
        (rollup,) = await store.rollups(window=HOUR)
        assert (rollup.destination, rollup.backlog, rollup.delivered) == ("orders", 4, 1)

    async def test_counting_ends_and_the_highest_of_a_minute_stays(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(4)))
        fence = await own(store, LANE)
        for limit, expected in ((2, 2), (100, 4), (3, 4)):
            await store.record_backlog(fence.relay_id, destinations=["orders"], limit=limit)
            assert [one.backlog for one in await store.rollups(window=HOUR)] == [expected]
        other = sample_relay()
        await store.register(other, lease=LEASE)
        await store.record_backlog(other.relay_id, destinations=["orders"], limit=100)
        assert [one.backlog for one in await store.rollups(window=HOUR)] == [4]
        harness.clock.advance(_MINUTE)
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, list_ids(rows)))
        await store.settle(fence, Settlement(delivered=list_ids(rows), finished=[1]))
        await store.record_backlog(fence.relay_id, destinations=["orders"], limit=100)
        assert [one.backlog for one in await store.rollups(window=HOUR)] == [4, 0]

    async def test_what_is_given_back_is_counted_once(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(3)))
        fence = await own(store, LANE)
        await store.claim(fence, Claim(1, list_ids(rows)))
        settlement = Settlement(delivered=[rows[0].id], returned=list_ids(rows[1:]), finished=[1])
        for _ in range(2):
            await store.settle(fence, settlement)
        (rollup,) = await store.rollups(window=HOUR)
        assert (rollup.returned, rollup.delivered) == (2, 1)
        await store.claim(fence, Claim(2, list_ids(rows[1:])))
        await store.settle(fence, Settlement(failures=[retry(rows[1])], returned=[rows[2].id], finished=[2]))
        (rollup,) = await store.rollups(window=HOUR)
        assert (rollup.returned, rollup.delivered, rollup.retried) == (3, 1, 1)
        await store.claim(fence, Claim(3, [rows[2].id]))
        await store.settle(fence, Settlement(returned=[rows[2].id], touched=[3]))
        assert [one.returned for one in await store.rollups(window=HOUR)] == [4]

    async def test_minutes_are_added_up_in_steps(self, harness: StoreHarness) -> None:
        store = harness.store
        now = harness.clock.now()
        harness.clock.advance(HOUR - timedelta(seconds=now.timestamp() % 3600) + 3 * _MINUTE)
        began = harness.clock.now() - 3 * _MINUTE
        for number in range(4):
            rows = await put(harness, *(sample(key=NEAR) for _ in range(number + 1)))
            fence = await own(store, LANE)
            await store.record_backlog(fence.relay_id, destinations=["orders"], limit=100)
            for row in rows:
                await close(store, fence, row, State.DELIVERED)
            await store.leave(fence.relay_id)
            harness.clock.advance(_MINUTE)
        first, second = await store.rollups(window=HOUR, step=5 * _MINUTE)
        assert (first.minute, first.delivered, first.backlog) == (began, 3, 2)
        assert (second.minute, second.delivered, second.backlog) == (began + 5 * _MINUTE, 7, 4)
        assert sum(second.latencies) == 7
        assert [one.delivered for one in await store.rollups(window=HOUR)] == [1, 2, 3, 4]


class InboxRecordContract:
    """`Store.inbox_records` and `Store.tables`, and the relay that a lane was taken from."""

    async def test_inboxes_say_what_they_know_of_messages(self, harness: StoreHarness) -> None:
        store = harness.store
        for consumer, source, message_id in (
            ("mailer", "/shop", "m1"), ("biller", "/shop", "m1"), ("biller", "/bank", "m1"), ("biller", "/shop", "m2"),
        ):  # fmt: skip
            assert await harness.accept(consumer, source, message_id)
        await harness.fail_inbox("mailer", "m3", error="no ü", content=b"x")
        found = await store.inbox_records(["m1", "m3", "m9"])
        assert [(one.consumer, one.source, one.message_id, one.status) for one in found] == [
            ("biller", "/bank", "m1", "done"), ("biller", "/shop", "m1", "done"), ("mailer", "/shop", "m1", "done"),
            ("mailer", "/shop", "m3", "failed"),
        ]  # fmt: skip
        (failure,) = [one for one in found if one.status == "failed"]
        assert (failure.attempts, failure.error) == (3, "no ü")
        assert failure.at.tzinfo is not None
        assert list(await store.inbox_records([])) == []

    async def test_tables_are_listed_with_what_is_known_of_them(self, harness: StoreHarness) -> None:
        tables = await harness.store.tables()
        names = [table.name for table in tables]
        assert names == sorted(names)
        for name in ("outbox", "history", "journal", "rollup", "inbox"):
            assert any(table.endswith(name) for table in names)
        for table in tables:
            assert table.rows is None or table.rows >= 0
            assert table.bytes is None or table.bytes >= 0

    async def test_a_lane_names_the_dead_relay_that_it_was_taken_from(self, harness: StoreHarness) -> None:
        store = harness.store
        dead = await own(store, LANE)
        gone = await own(store, OTHER)
        await store.leave(gone.relay_id)
        harness.clock.advance(2 * LEASE)
        heir = sample_relay(relay_id=uuid4())
        await store.register(heir, lease=LEASE)
        for expected in ({LANE: dead.relay_id, OTHER: None}, {LANE: None, OTHER: None}):
            lanes, _ = await store.take(heir.relay_id, "orders", partitions=[LANE, OTHER], lease=LEASE, claim_number=1)
            assert {lane.partition: lane.taken_from for lane in lanes} == expected


class PhaseContract:
    """`Selection.phase`, `Store.count_phases`, `Order.LATEST` with `Selection.before`, and counts up to a limit."""

    async def test_open_messages_stand_in_phases(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await _put_every_phase(harness)
        now = await store.now()

        async def find(phase: Phase, **more: object) -> list[int]:
            selection = Selection(phase=phase, phase_at=now, **more)  # type: ignore[arg-type]
            found = list_ids(await store.find(selection, limit=MANY, payloads=False))
            assert list_ids(await store.find(selection, limit=MANY)) == found
            assert await store.count(selection) == await store.count(selection, limit=MANY) == len(found)
            return found

        # Its time has come, whatever it waits for: what is tried again, and what stands behind another, too.
        assert await find(Phase.DUE) == list_ids([rows["retried"], rows["waiting"], rows["parked"], rows["fresh"]])
        assert await find(Phase.LATER) == [rows["deferred"].id]
        assert await find(Phase.RETRY) == list_ids([rows["retried"], rows["waiting"]])
        assert await find(Phase.PARKED) == list_ids([rows["parked"]])
        assert await find(Phase.HELD) == list_ids([rows["held"]])
        assert await find(Phase.PARKED, destination="billing") == []
        assert await find(Phase.LATER, destination="orders") == [rows["deferred"].id]
        assert await find(Phase.HELD, states=[State.PENDING]) == []
        assert await find(Phase.PARKED, states=[State.FAILED]) == []
        assert await find(Phase.RETRY, before=rows["waiting"].id) == [rows["retried"].id]

    async def test_phases_are_counted_by_destination(self, harness: StoreHarness) -> None:
        store = harness.store
        await _put_every_phase(harness)
        counts = {(one.destination, one.phase): (one.count, one.more) for one in await store.count_phases()}
        assert counts == {
            ("orders", Phase.LATER): (1, False),
            ("orders", Phase.RETRY): (2, False),
            ("orders", Phase.PARKED): (1, False),
            ("orders", Phase.HELD): (1, False),
        }  # fmt: skip
        cut = {one.phase: (one.count, one.more) for one in await store.count_phases(limit=1)}
        assert cut == {phase: (1, True) for phase in Phase if phase is not Phase.DUE}

    async def test_due_means_the_same_in_every_figure(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await _put_every_phase(harness)
        (put_off,) = await put(harness, sample(key=find_key(LANE, nth=4)))
        until = await store.now() + HOUR
        await store.defer(Selection(ids=[put_off.id]), until=until, by="ann", limit=MANY)

        async def read_figures() -> set[int]:
            at = await store.now()
            due = Selection(phase=Phase.DUE, phase_at=at)
            relay = sample_relay()
            await store.register(relay, lease=HOUR)
            await store.record_backlog(relay.relay_id, destinations=["orders"], limit=MANY)
            (rollup,) = (await store.rollups(window=_MINUTE))[-1:]
            return {
                len(await store.find(due, limit=MANY)),
                await store.count(due),
                await store.count(due, limit=MANY),
                sum(one.count for one in await store.counts() if one.state is State.PENDING and one.due),
                sum(one.due for one in await store.lane_backlogs("orders")),
                rollup.backlog,
            }

        assert await read_figures() == {4}
        later = {one.phase: one.count for one in await store.count_phases()}[Phase.LATER]
        assert (
            later == sum(one.count for one in await store.counts() if one.state is State.PENDING and not one.due) == 2
        )
        assert await store.oldest_due() == {"orders": rows["retried"].created_at}
        harness.clock.advance(2 * HOUR)
        assert await read_figures() == {6}

    async def test_the_open_messages_of_a_key_are_found(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await _put_every_phase(harness)
        (later,) = await put(harness, sample(key=NEAR), delay=HOUR)
        (fresh,) = await put(harness, sample(key=NEAR))
        await put(harness, sample(key=NEAR, destination="billing"), sample(key=SECOND))

        async def find(**more: int) -> list[int]:
            return list(await store.find_key("orders", partition=LANE, key=NEAR, **more))

        assert await find() == [rows["held"].id, rows["parked"].id, later.id, fresh.id]
        assert await find(limit=2) == [rows["held"].id, rows["parked"].id]
        assert await find(after=rows["parked"].id) == [later.id, fresh.id]
        assert list(await store.find_key("orders", partition=LANE, key="nothing")) == []

    async def test_pages_go_down_by_id(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(5)))
        fence = await own(store, LANE)
        await close(store, fence, rows[0], State.DELIVERED)
        await close(store, fence, rows[1], State.FAILED)
        await settle_failures(store, fence, hold(rows[2]))
        first = await store.find(Selection(), limit=2, order=Order.LATEST)
        assert list_ids(first) == [rows[4].id, rows[3].id]
        second = await store.find(Selection(before=rows[3].id), limit=MANY, order=Order.LATEST)
        assert list_ids(second) == [rows[2].id, rows[1].id, rows[0].id]
        between = Selection(after=rows[0].id, before=rows[4].id)
        assert list_ids(await store.find(between, limit=MANY)) == list_ids(rows[1:4])
        assert await store.count(between) == await store.count(between, limit=MANY) == 3

    async def test_counting_ends_at_the_limit(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=NEAR) for _ in range(6)))
        fence = await own(store, LANE)
        for row, state in zip(rows, (State.DELIVERED, State.FAILED, State.DISCARDED), strict=False):
            await close(store, fence, row, state)
        assert [await store.count(Selection(), limit=limit) for limit in (1, 5, 6, 7)] == [1, 5, 6, 6]
        assert await store.count(Selection(states=[State.PENDING]), limit=2) == 2
        assert await store.count(Selection(states=[State.FAILED]), limit=2) == 1
        assert await store.count(Selection(states=[]), limit=2) == 0


async def _put_every_phase(harness: StoreHarness) -> dict[str, Message]:
    """Put a message of each way to stand: retried and due, waiting for a retry, deferred, held, parked, fresh."""
    store = harness.store
    (retried, waiting) = await put(harness, sample(key=SECOND), sample(key=THIRD))
    (deferred,) = await put(harness, sample(key=FAR), delay=HOUR)
    held, parked = await put(harness, sample(key=NEAR), sample(key=NEAR))
    (fresh,) = await put(harness, sample(key=find_key(LANE, nth=3)))
    fence = await own(store, LANE, lease=3 * HOUR)
    await settle_failures(store, fence, retry(retried, delay=None), retry(waiting, delay=HOUR), hold(held))
    await park(store, fence, parked)
    harness.clock.advance(_MINUTE)
    return {
        "retried": retried, "waiting": waiting, "deferred": deferred, "held": held, "parked": parked, "fresh": fresh,
    }  # fmt: skip


class LaneBacklogContract:
    """`Store.lane_backlogs`."""

    async def test_each_lane_has_its_backlog_and_its_age(self, harness: StoreHarness) -> None:
        store = harness.store
        rows = await put(harness, *(sample(key=key) for key in (NEAR, SECOND, SECOND, THIRD)))
        (other,) = await put(harness, sample(key=FAR))
        await put(harness, sample(key=FAR), delay=HOUR)
        await put(harness, sample(key=NEAR, destination="billing"))
        fence = await own(store, LANE, lease=3 * HOUR)
        await settle_failures(store, fence, retry(rows[1], delay=HOUR), hold(rows[3]))
        await park(store, fence, rows[2])
        harness.clock.advance(_MINUTE)
        near, far = await store.lane_backlogs("orders")
        # Fresh, waiting for a retry, parked: three. What is held has failed.
        assert (near.partition, near.due, near.more, near.oldest_at) == (LANE, 3, False, rows[0].created_at)
        assert (far.partition, far.due, far.more, far.oldest_at) == (OTHER, 1, False, other.created_at)
        harness.clock.advance(2 * HOUR)
        assert [(one.partition, one.due) for one in await store.lane_backlogs("orders")] == [(LANE, 3), (OTHER, 2)]
        assert [(one.due, one.more) for one in await store.lane_backlogs("orders", limit=2)] == [(2, True), (2, True)]
        assert list(await store.lane_backlogs("nowhere")) == []


class InboxActivityContract:
    """`Store.inbox_activity`, duplicates in `Store.inbox_records`, and `Store.facts`."""

    async def test_consumers_are_listed_with_what_they_handled(self, harness: StoreHarness) -> None:
        store = harness.store
        for consumer, message_id in [("mailer", "m1"), *(("biller", name) for name in ("b1", "b2", "b3", "b1", "b1"))]:
            await harness.accept(consumer, "/shop", message_id)
        await harness.fail_inbox("idle", "m3", error="no", content=b"x")
        harness.clock.advance(_MINUTE)
        biller, idle, mailer = await store.inbox_activity(window=HOUR)
        assert (biller.consumer, biller.handled, biller.duplicates) == ("biller", 3, 2)
        assert (mailer.consumer, mailer.handled, mailer.duplicates) == ("mailer", 1, 0)
        assert (idle.consumer, idle.handled, idle.last_at) == ("idle", 0, None)
        assert biller.since == await store.now() - HOUR
        assert biller.last_at is not None
        latest = await store.inbox_activity(window=HOUR, limit=2)
        assert sum(one.handled for one in latest) == 2
        assert latest[0].since > biller.since
        harness.clock.advance(2 * HOUR)
        assert [one.handled for one in await store.inbox_activity(window=HOUR)] == [0, 0, 0]
        (record,) = await store.inbox_records(["b1"])
        assert (record.status, record.duplicates) == ("done", 2)

    async def test_a_store_tells_what_it_is(self, harness: StoreHarness) -> None:
        facts = await harness.store.facts()
        assert facts.server
        assert facts.schema_version is None or facts.schema_version >= 9
