"""Counts that are put together from what an index tells and what had to be looked up."""

from __future__ import annotations

from datetime import UTC, datetime

from pillarbox.contracts.store import LATENCY_BOUNDS, Count, Rollup
from pillarbox.message import State
from pillarbox.stores.statistics import (
    ROLLUP_COLUMNS,
    build_rollup,
    complete_counts,
    count_deliveries,
    mark_truncated,
    merge_counts,
)


def count(number: int, *, topic: str | None = "orders", state: State = State.PENDING, **given: bool) -> Count:
    destination = "billing" if given.pop("billing", True) else "mail"
    due, more = given.pop("due", True), given.pop("more", False)
    return Count(
        destination=destination, topic=topic, state=state, due=due, count=number, oldest_at=None, more=more
    )  # fmt: skip


def test_what_was_not_looked_up_counts_without_a_topic() -> None:
    told = [count(600), count(400, topic="returns")]
    assert complete_counts([count(1_500, topic=None), *told], sending=[]) == [*told, count(500, topic=None)]


def test_nothing_is_left_of_what_was_told_whole() -> None:
    assert complete_counts([count(2, topic=None), count(2)], sending=[]) == [count(2)]


def test_what_is_in_hand_is_counted_there_alone() -> None:
    sending = [count(30, state=State.SENDING), count(7, state=State.SENDING, billing=False)]
    assert complete_counts([count(1_500, topic=None), count(990)], sending=sending) == [
        count(990),
        count(480, topic=None),
    ]


def test_due_and_later_are_told_apart() -> None:
    totals = [count(10, topic=None), count(20, topic=None, due=False)]
    told = [count(10), count(5, due=False)]
    assert complete_counts([*totals, *told], sending=[]) == [*told, count(15, topic=None, due=False)]


def test_of_so_many_or_more_those_in_hand_are_among_the_more() -> None:
    total = count(100_000, topic=None, more=True)
    told, rest = complete_counts([total, count(900)], sending=[count(500, state=State.SENDING)])
    assert (told.count, told.more) == (900, True)
    assert (rest.count, rest.more) == (99_100, True)


def test_what_waits_for_several_reasons_is_one_total() -> None:
    totals = [count(10, topic=None), count(20, topic=None)]
    assert complete_counts([*totals, count(12)], sending=[]) == [count(12), count(18, topic=None)]


def test_held_ones_are_never_in_hand() -> None:
    held = count(3, topic=None, state=State.FAILED)
    assert complete_counts([held], sending=[count(2, state=State.SENDING)]) == [held]


def test_a_look_that_ended_at_its_limit_says_so_of_all_it_saw() -> None:
    counts = [count(6), count(4, topic="returns")]
    assert [one.more for one in mark_truncated(counts, limit=10)] == [True, True]
    assert [one.more for one in mark_truncated(counts, limit=11)] == [False, False]


def test_the_same_group_from_two_places_is_one() -> None:
    assert list(merge_counts([count(2), count(3, more=True), count(1, topic=None)])) == [
        count(1, topic=None),
        count(5, more=True),
    ]


def test_deliveries_fall_into_the_bucket_below_its_bound() -> None:
    minute = datetime(2026, 1, 1, tzinfo=UTC)
    before = Rollup(destination="billing", minute=minute, delivered=1, latency_sum=9.0, latency_max=9.0)
    rollup = count_deliveries(before, [(0.0, 1.0), (0.005, 2.0), (1_800.0, -5.0), (float("inf"), 1e300)])
    assert (rollup.delivered, rollup.latency_max, rollup.end_to_end_max) == (5, 1e10, 1e10)
    assert rollup.end_to_end_sum == 3.0 + 1e10
    assert list(rollup.latencies) == [1, 1, *[0] * 13, 2]


def test_a_rollup_has_a_column_for_each_bucket() -> None:
    rollup = build_rollup("billing", datetime(2026, 1, 1, tzinfo=UTC), range(len(ROLLUP_COLUMNS)))
    assert (rollup.delivered, rollup.discarded, rollup.returned, rollup.backlog) == (0, 3, 4, 5)
    assert (rollup.latency_sum, rollup.end_to_end_max) == (6.0, 9.0)
    assert list(rollup.latencies) == list(range(10, 26))
    assert len(rollup.latencies) == len(LATENCY_BOUNDS) + 1
