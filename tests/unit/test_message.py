"""Ids, partitions and the life of a message."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import message as message_module
from pillarbox.errors import IllegalTransition
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION, State, compute_partition, new_message_id

ALLOWED = {
    "pending": {"pending", "sending", "failed", "skipped", "discarded"},
    "sending": {"delivered", "pending", "failed"},
    "delivered": {"pending"},
    "failed": {"pending", "discarded"},
    "skipped": {"pending", "discarded"},
    "discarded": {"pending"},
}


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_the_life_of_a_message_has_exactly_these_steps(before: State, after: State) -> None:
    if after.value in ALLOWED[before.value]:
        before.check(after, message=7)
        return
    with pytest.raises(IllegalTransition) as caught:
        before.check(after, message="018f-7")
    said = str(caught.value)
    assert "018f-7" in said
    assert f"is {before.value} and" in said
    assert f"become {after.value};" in said


def test_the_refusal_says_what_would_be_possible() -> None:
    with pytest.raises(IllegalTransition, match="it can become pending or discarded"):
        State.FAILED.check(State.DELIVERED, message=1)


def test_closed_states_are_those_that_need_someone_to_change_them() -> None:
    assert {state for state in State if not state.is_closed} == {State.PENDING, State.SENDING}


@pytest.mark.parametrize("make", [new_message_id, message_module._fallback_uuid7])
def test_ids_are_uuids_of_version_7_with_the_time_in_front(make: Callable[[], UUID]) -> None:
    before = time.time_ns() // 1_000_000
    made = [make() for _ in range(2_000)]
    after = time.time_ns() // 1_000_000
    assert {(one.version, one.variant) for one in made} == {(7, RFC_4122)}
    stamps = [one.int >> 80 for one in made]
    assert before <= stamps[0]
    assert stamps[-1] <= after + 1
    assert stamps == sorted(stamps)
    assert all(UUID(str(one)) == one for one in made)


def test_ids_do_not_repeat_and_their_random_part_varies_in_every_bit() -> None:
    made = [message_module._fallback_uuid7() for _ in range(5_000)]
    assert len(set(made)) == len(made)
    ones = zeros = 0
    for one in made:
        ones |= one.int
        zeros |= ~one.int
    free = (1 << 80) - 1 & ~(0xF << 76) & ~(0b11 << 62)
    assert ones & free == free
    assert zeros & free == free


@given(key=st.text(alphabet=st.characters(exclude_categories=["Cs"])), message_id=st.uuids())
def test_a_key_decides_its_partition_alone(key: str, message_id: UUID) -> None:
    expected = int(hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()[:2], 16) % PARTITIONS
    assert compute_partition(key, message_id) == expected


@given(message_id=st.uuids())
def test_without_a_key_the_id_decides(message_id: UUID) -> None:
    assert compute_partition(None, message_id) == compute_partition(str(message_id), UUID(int=0))


def test_known_partitions_stay_what_they_were() -> None:
    """Rows written by another release or another language must fall into the same lanes."""
    ids = UUID("018f5f6e-7c6a-7000-8000-000000000001")
    assert [compute_partition(key, ids) for key in ("", "a", "order-1", "ключ")] == [20, 12, 46, 3]


def test_every_partition_is_used() -> None:
    assert {compute_partition(str(number), UUID(int=0)) for number in range(2_000)} == set(range(PARTITIONS))


def test_the_reserved_destination_is_none_that_a_user_can_name() -> None:
    assert SKIPPED_DESTINATION.startswith("_")


def _draw_ids(count: int) -> list[UUID]:
    return [new_message_id() for _ in range(count)]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ids_of_several_processes_never_meet(method: str) -> None:
    """A process that was forked has its parent's memory, and must not draw what the parent draws."""
    _draw_ids(100)  # so that whatever is drawn in advance is there before the fork
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context(method)) as pool:
        drawn = [one for ids in pool.map(_draw_ids, [2_000] * 6) for one in ids]
    drawn += _draw_ids(2_000)
    assert len(set(drawn)) == len(drawn)
