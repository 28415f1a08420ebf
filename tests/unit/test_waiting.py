"""The choice of waiting messages: the longest due of many lanes, and the first of many keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.contracts.store import NO_BYTE_LIMIT, DueMark
from pillarbox.stores.waiting import DueSearch, split_by_key
from pillarbox.testing.samples import sample

_START = datetime(2026, 1, 1, tzinfo=UTC)


def _rows(lanes: list[list[int]]) -> dict[int, list[tuple[Any, ...]]]:
    """Rows of each lane, in the order of the index: minutes are given, ids follow from the place."""
    return {
        lane: sorted(
            (
                (number * 8 + lane, lane, None, "retry", _START + timedelta(minutes=minute), 10)
                for number, minute in enumerate(minutes, start=1)
            ),
            key=lambda row: (row[4], row[0]),
        )
        for lane, minutes in enumerate(lanes)
    }


def _search(rows: dict[int, list[tuple[Any, ...]]], *, limit: int, after: DueMark | None) -> tuple[list[int], int]:
    """Run a search over these lanes; return the ids that it chose, and how many rows it read."""
    search, read = DueSearch(rows, limit=limit, after=after), 0
    while lanes := dict(search.next_lanes()):
        found = []
        for lane, mark in lanes.items():
            beyond = [row for row in rows[lane] if mark is None or (row[4], row[0]) > mark]
            found += beyond[: search.share]
        read += len(found)
        search.add(lanes, found)
    return [due.id for due in search.choose(NO_BYTE_LIMIT)], read


@given(
    lanes=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=8),
    limit=st.integers(1, 50),
    after=st.none() | st.integers(0, 30),
)
def test_the_longest_due_of_all_lanes_are_chosen(lanes: list[list[int]], limit: int, after: int | None) -> None:
    rows = _rows(lanes)
    mark = None if after is None else DueMark(_START + timedelta(minutes=after), 100)
    expected = sorted((row[4], row[0]) for lane in rows.values() for row in lane)
    beyond = [id_ for at, id_ in expected if mark is None or (at, id_) > mark]
    assert _search(rows, limit=limit, after=mark)[0] == beyond[:limit]


def test_a_search_reads_little_more_than_it_is_asked_for() -> None:
    rows = _rows([list(range(1_000)) for _ in range(8)])
    chosen, read = _search(rows, limit=100, after=None)
    assert (len(chosen), read) == (100, 200)


def test_a_search_ends_with_the_message_that_reaches_the_bytes() -> None:
    search = DueSearch([0], limit=5, after=None)
    search.add(search.next_lanes(), _rows([[1, 2, 3]])[0])
    assert [len(search.choose(size)) for size in (1, 10, 11, 30, 31)] == [1, 1, 2, 3, 3]


def test_a_time_that_python_cannot_hold_is_the_longest_due() -> None:
    search = DueSearch([0], limit=5, after=None)
    search.add(search.next_lanes(), [(1, 0, None, "retry", _START, 0), (2, 0, None, "retry", None, 0)])
    assert [due.id for due in search.choose(NO_BYTE_LIMIT)] == [2, 1]


def test_a_key_that_is_none_of_its_lane_orders_nothing() -> None:
    search = DueSearch([0], limit=5, after=None)
    search.add(search.next_lanes(), [(1, 0, b"\xff", "retry", _START, 0), (2, 0, "", "retry", _START, 0)])
    assert [due.key for due in search.choose(NO_BYTE_LIMIT)] == [None, None]


def test_the_key_at_which_a_read_ended_may_have_more() -> None:
    keys = [(0, "a"), (0, "b"), (0, "c")]
    found = [((0, "a"), sample()), ((0, "b"), sample())]
    assert [one.complete for one in split_by_key(keys, found, key_limit=9, limit=2)] == [True, False]
    assert [one.complete for one in split_by_key(keys, found, key_limit=9, limit=3)] == [True, True, True]
    assert [one.complete for one in split_by_key(keys, found, key_limit=1, limit=3)] == [False, False, True]
