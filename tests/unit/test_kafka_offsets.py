"""How far a partition is handled: what is committed of it, and what may have been handed out before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.kafka.offsets import Commit, PartitionProgress, parse_mark


def progress(mark: int = 0) -> PartitionProgress:
    return PartitionProgress("orders", 0, mark=mark)


def test_nothing_is_committed_before_something_came() -> None:
    assert progress(mark=7).pending_commit() is None


def test_the_lowest_that_is_open_is_committed_with_a_mark_ahead() -> None:
    one = progress()
    one.add(5)
    one.add(6)
    assert one.pending_commit() == Commit(5, 1005)
    one.settle(6)
    assert one.pending_commit() == Commit(5, 1005)
    one.settle(5)
    assert one.pending_commit() == Commit(7, 1005)


def test_what_the_cluster_has_is_not_committed_again() -> None:
    one = progress()
    one.add(5)
    one.confirm(Commit(5, 1005))
    assert one.pending_commit() is None
    one.settle(5)
    assert one.pending_commit() == Commit(6, 1005)


def test_nothing_is_handed_out_before_the_cluster_knows() -> None:
    one = progress()
    one.add(5)
    assert not one.can_hand_out(5)
    one.confirm(Commit(5, 1005))
    assert one.can_hand_out(5)
    assert not one.can_hand_out(1005)
    one.add(1005)
    assert one.pending_commit() == Commit(5, 2005)


def test_below_the_mark_it_may_have_come_before() -> None:
    one = progress(mark=10)
    assert one.can_hand_out(9)
    assert [one.add(offset) for offset in (8, 9, 10, 11)] == [True, True, False, False]


def test_who_waits_for_a_commit_waits_for_its_own() -> None:
    one = progress()
    for offset in (1, 2, 3):
        one.add(offset)
    one.settle(2)
    assert one.is_final(2)  # 1 is to be done first
    one.settle(1)
    assert not one.is_final(1)
    assert not one.is_final(2)
    one.confirm(Commit(3, 1001))
    assert one.is_final(1)
    assert one.is_final(2)


def test_nobody_waits_for_what_is_another_s() -> None:
    one = progress()
    one.add(1)
    one.settle(1)
    one.is_assigned = False
    assert one.is_final(1)


@pytest.mark.parametrize(
    ("metadata", "mark"),
    [("pillarbox:12", 12), (None, 0), ("", 0), ("other", 0), ("pillarbox:x", 0), ("pillarbox:1 ", 0)],
)  # fmt: skip
def test_a_mark_is_read_from_ours_alone(metadata: str | None, mark: int) -> None:
    assert parse_mark(metadata) == mark
    assert parse_mark(Commit(3, 77).metadata) == 77


def test_a_partition_that_counts_on_below_holds_its_place_there() -> None:
    one = progress()
    for offset in (7, 8, 3):
        one.add(offset)
    assert one.pending_commit() == Commit(3, 1007)
    one.settle(7)
    one.settle(3)
    assert one.pending_commit() == Commit(8, 1007)


@given(st.lists(st.integers(0, 30), unique=True), st.randoms(use_true_random=False))
def test_no_unsettled_message_is_ever_below_what_is_committed(offsets: list[int], dice: object) -> None:
    """In whatever order they are done, and with the gaps that transactions and compaction leave."""
    one, taken = progress(), sorted(offsets)
    for offset in taken:
        one.add(offset)
    left = set(taken)
    dice.shuffle(offsets)  # type: ignore[attr-defined]
    for offset in offsets:
        one.settle(offset)
        left.discard(offset)
        commit = one.pending_commit()
        assert commit is not None
        assert commit.offset == min(left, default=taken[-1] + 1)
