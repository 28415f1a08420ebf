"""Counts that are put together from what an index tells and what had to be looked up."""

from __future__ import annotations

from pillarbox.contracts.store import Count
from pillarbox.message import State
from pillarbox.stores.statistics import complete_counts, mark_truncated, merge_counts


def count(number: int, *, topic: str | None = "orders", state: State = State.PENDING, **given: bool) -> Count:
    destination = "billing" if given.pop("billing", True) else "mail"
    due, more = given.pop("due", True), given.pop("more", False)
    return Count(
        destination=destination, topic=topic, state=state, due=due, count=number, oldest_at=None, more=more
    )  # fmt: skip


def test_what_was_not_looked_up_counts_without_a_topic() -> None:
    told = [count(600), count(400, topic="returns")]
    assert complete_counts([count(1_500, topic=None)], told, sending=[]) == [*told, count(500, topic=None)]


def test_nothing_is_left_of_what_was_told_whole() -> None:
    assert complete_counts([count(2, topic=None)], [count(2)], sending=[]) == [count(2)]


def test_what_is_in_hand_is_counted_there_alone() -> None:
    sending = [count(30, state=State.SENDING), count(7, state=State.SENDING, billing=False)]
    assert complete_counts([count(1_500, topic=None)], [count(990)], sending=sending) == [
        count(990),
        count(480, topic=None),
    ]


def test_due_and_later_are_told_apart() -> None:
    totals = [count(10, topic=None), count(20, topic=None, due=False)]
    told = [count(10), count(5, due=False)]
    assert complete_counts(totals, told, sending=[]) == [*told, count(15, topic=None, due=False)]


def test_of_so_many_or_more_those_in_hand_are_among_the_more() -> None:
    total = count(100_000, topic=None, more=True)
    told, rest = complete_counts([total], [count(900)], sending=[count(500, state=State.SENDING)])
    assert (told.count, told.more) == (900, True)
    assert (rest.count, rest.more) == (99_100, True)


def test_a_look_that_ended_at_its_limit_says_so_of_all_it_saw() -> None:
    counts = [count(6), count(4, topic="returns"), count(9, billing=False)]
    assert [one.more for one in mark_truncated(counts, limit=10)] == [True, True, False]


def test_closed_ones_are_looked_at_by_state_and_not_by_destination() -> None:
    closed = [count(6, state=State.FAILED), count(4, state=State.FAILED, billing=False), count(3, state=State.SKIPPED)]
    assert [one.more for one in mark_truncated(closed, limit=10)] == [True, True, False]


def test_the_same_group_from_two_places_is_one() -> None:
    assert list(merge_counts([count(2), count(3, more=True), count(1, topic=None)])) == [
        count(1, topic=None),
        count(5, more=True),
    ]
