"""Runs: several messages of a key in one send, in their order, and what follows when one is not acknowledged."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pillarbox.message import Message, Waits
from pillarbox.relay import ordering as ordering_module
from tests.support.lanes.lane_bench import Bench, failed, held, ids, non_empty, retry
from tests.support.lanes.lane_table import row

A1, A2, A3, A4 = (row(number, "a") for number in (1, 2, 3, 4))


def send_runs(bench: Bench, limit: int = 100, *, heads: int = 100) -> list[int]:
    return ids(bench.ordering.extend_runs(bench.ordering.next_batch(min(limit, heads)), limit))


# --- what a run has ---


def test_the_next_of_a_key_go_with_the_first_in_id_order() -> None:
    bench = Bench()
    bench.take(A1, row(2, "b"), row(3, "a"), row(4, "b"), row(5))
    assert send_runs(bench) == [1, 3, 2, 4, 5]
    assert send_runs(bench) == []


def test_one_run_of_a_key_is_under_way_at_a_time() -> None:
    bench = Bench()
    bench.take(A1, A2)
    assert send_runs(bench) == [1, 2]
    bench.take(A3, A4)
    assert send_runs(bench) == []
    bench.ordering.mark_delivered([A1])
    assert send_runs(bench) == []
    bench.ordering.mark_delivered([A2])
    assert send_runs(bench) == [3, 4]


def test_runs_fill_only_what_the_first_of_all_keys_leave() -> None:
    bench = Bench()
    bench.take(A1, A2, A3, row(4, "b"), row(5, "b"))
    assert send_runs(bench, 3) == [1, 2, 4]
    bench.ordering.mark_delivered([A1, A2])
    assert send_runs(bench, 100) == [3]


def test_a_key_with_fewer_messages_than_are_worth_a_run_has_none() -> None:
    bench = Bench()
    bench.take(A1, A2, A3, row(4, "b"), row(5, "b"))
    assert ids(bench.ordering.extend_runs(bench.ordering.next_batch(9), 9, least=2)) == [1, 2, 3, 4]


def test_a_batch_of_one_key_has_its_run_alone() -> None:
    bench = Bench()
    bench.take(A1, A2, row(3, "b"), row(4, "b"))
    assert send_runs(bench, heads=1) == [1, 2]
    assert send_runs(bench, heads=1) == [3, 4]


def test_a_run_has_nothing_whose_claim_is_not_committed() -> None:
    bench = Bench()
    first, later = bench.read(A1, A2), bench.read(A3)
    bench.claim(first)
    assert send_runs(bench) == [1, 2]
    bench.claim(later)
    assert send_runs(bench) == []


@pytest.mark.parametrize(
    "unfit",
    [
        replace(A2, attempts=1),
        replace(A2, last_error="it was refused before"),
        replace(A2, unreadable="no such column"),
    ],
    ids=["attempts", "tried", "unreadable"],
)
def test_a_message_that_was_tried_or_cannot_be_read_goes_alone(unfit: Message) -> None:
    bench = Bench()
    bench.take(A1, unfit, A3)
    assert send_runs(bench) == [1]
    bench.ordering.mark_delivered([A1])
    assert send_runs(bench) == [2]
    bench.ordering.mark_delivered([unfit])
    assert send_runs(bench) == [3]


def test_a_message_with_a_strike_goes_alone() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    bench.ordering.add_strikes([A2])
    assert send_runs(bench) == [1]
    bench.ordering.mark_delivered([A1])
    assert send_runs(bench) == [2]
    bench.ordering.mark_delivered([A2])
    assert send_runs(bench) == [3]


def test_a_run_ends_where_the_address_changes() -> None:
    asked: list[int] = []

    def get_address(message: Message) -> str | None:
        asked.append(message.id)
        return {1: "x", 2: "x", 3: "y", 4: "y"}.get(message.id)

    bench = Bench()
    bench.take(A1, A2, A3, row(5, "b"))
    batch = bench.ordering.extend_runs(bench.ordering.next_batch(100), 100, get_address=get_address)
    assert ids(batch) == [1, 2, 5]
    assert 5 not in asked


def test_a_message_without_a_valid_address_is_in_no_run() -> None:
    bench = Bench()
    bench.take(A1, A2)
    assert ids(bench.ordering.extend_runs(bench.ordering.next_batch(9), 9, get_address=lambda _: None)) == [1]


def test_a_run_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering_module, "_RUN_BYTES", 10)
    bench = Bench()
    bench.take(*(replace(one, payload=b"12345") for one in (A1, A2, A3)))
    assert send_runs(bench) == [1, 2]


def test_a_late_row_before_the_first_goes_by_itself() -> None:
    bench = Bench()
    bench.take(A2, A3)
    bench.take(A1)  # it became visible only now
    assert send_runs(bench) == [2]
    bench.ordering.mark_delivered([A2])
    assert send_runs(bench) == [1, 3]


def test_a_probe_is_one_message() -> None:
    bench = Bench()
    bench.take(A1, A2)
    assert ids(bench.ordering.next_probe(0.7)) == [1]
    assert send_runs(bench) == []


# --- a message of it is not acknowledged ---


def test_what_follows_a_failed_message_waits_until_that_is_recorded_and_then_goes_one_by_one() -> None:
    bench = Bench()
    bench.take(A1, A2, A3, A4)
    assert send_runs(bench) == [1, 2, 3, 4]
    bench.ordering.mark_delivered([A1])
    bench.ordering.mark_failed(A2, failed(A2))
    assert send_runs(bench) == []
    assert non_empty(bench.settle()) == {"delivered": [1], "failures": [failed(A2)], "touched": [1]}
    assert send_runs(bench) == [3]
    bench.ordering.mark_delivered([A3])
    assert send_runs(bench) == [4]


def test_what_follows_a_message_that_waits_is_parked_behind_it_untried() -> None:
    for outcome in (retry, held):
        bench = Bench()
        bench.take(A1, A2, A3)
        send_runs(bench)
        bench.ordering.mark_delivered([A1])
        bench.ordering.mark_failed(A2, outcome(A2))
        failures = bench.settle().failures
        assert [(one.message_id, one.waits, one.attempts) for one in failures] == [
            (2, outcome(A2).waits, 1),
            (3, Waits.PARKED, 0),
        ]
        assert send_runs(bench) == []


def test_what_follows_a_message_that_returns_goes_back_with_it() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.mark_delivered([A1])
    bench.ordering.mark_returned([A2])
    assert non_empty(bench.settle()) == {"delivered": [1], "returned": [2, 3], "finished": [1]}
    bench.take(A2, A3)
    assert send_runs(bench) == [2, 3]


def test_what_follows_a_message_is_in_no_run_again_while_its_key_is_known() -> None:
    bench = Bench()
    bench.take(A1, A2, A3, A4, row(5, "a"))
    assert send_runs(bench, 4) == [1, 2, 3, 4]
    bench.ordering.mark_failed(A1, failed(A1))
    bench.settle()
    for message in (A2, A3, A4):
        assert send_runs(bench) == [message.id]
        bench.ordering.mark_delivered([message])
    assert send_runs(bench) == [5]


def test_what_the_transport_left_unsent_goes_on_at_once_in_a_run() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.mark_unsent(A2)
    assert send_runs(bench) == []
    bench.ordering.mark_delivered([A1])
    assert send_runs(bench) == [2, 3]


def test_a_late_row_goes_before_what_a_run_left() -> None:
    bench = Bench()
    bench.take(A1, A3, A4)
    send_runs(bench)
    bench.take(A2)
    bench.ordering.mark_delivered([A1])
    bench.ordering.mark_unsent(A3)
    assert send_runs(bench) == [2, 3, 4]


# --- the end of the lane, of the destination, of the relay ---


def test_the_rest_of_a_run_returns_when_its_lane_was_handed_over_meanwhile() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.revoke(0)
    bench.ordering.mark_delivered([A1])
    bench.ordering.mark_unsent(A2)
    assert non_empty(bench.settle()) == {"delivered": [1], "returned": [2, 3], "finished": [1]}
    assert bench.ordering.is_drained(0)


def test_the_rest_of_a_run_returns_when_the_destination_was_closed_meanwhile() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.close()
    bench.ordering.mark_failed(A1, failed(A1))
    settlement = bench.settle()
    assert (settlement.returned, [one.message_id for one in settlement.failures]) == ([2, 3], [1])
    assert bench.ordering.in_flight == 0


def test_nothing_of_a_run_goes_on_when_its_lane_is_lost() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.drop([0])
    bench.ordering.mark_delivered([A1])
    bench.ordering.mark_failed(A2, failed(A2))
    bench.ordering.mark_unsent(A3)
    assert send_runs(bench) == []
    assert not bench.ordering.has_outcomes


def test_a_run_that_nobody_waits_for_any_more_is_forgotten() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.close()
    bench.ordering.mark_delivered([A1])
    bench.ordering.drop_unanswered()
    assert non_empty(bench.settle())["delivered"] == [1]
    assert bench.ordering.in_flight == 0


def test_an_acknowledged_run_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.take(A1, A2, A3)
    send_runs(bench)
    bench.ordering.mark_delivered([A1, A2, A3])
    assert non_empty(bench.settle()) == {"delivered": [1, 2, 3], "finished": [1]}
    assert (bench.ordering.in_flight, bench.ordering._keys) == (0, {})
