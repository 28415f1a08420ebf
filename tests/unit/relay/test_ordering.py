"""Who may go: of each key one at a time, in id order."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.contracts.store import Cursor, ReadResult, Settlement
from pillarbox.message import Message, Waits
from pillarbox.relay.ordering import LaneOrdering
from tests.support.lanes.lane_bench import Bench, failed, non_empty, retry
from tests.support.lanes.lane_table import row


def test_one_message_of_a_key_is_under_way_at_a_time() -> None:
    bench = Bench()
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"))
    assert bench.send() == [1, 3]
    assert bench.send() == []


def test_messages_without_a_key_go_together() -> None:
    bench = Bench()
    bench.take(row(1), row(2), row(3))
    assert bench.send() == [1, 2, 3]


def test_a_batch_is_no_longer_than_asked() -> None:
    bench = Bench()
    bench.take(row(1), row(2), row(3))
    assert bench.send(2) == [1, 2]
    assert bench.send(2) == [3]


def test_after_an_acknowledgement_the_next_goes_at_once() -> None:
    first, second = row(1, "a"), row(2, "a")
    bench = Bench()
    bench.take(first, second)
    bench.send()
    bench.ordering.mark_delivered([first])
    assert bench.send() == [2]


def test_after_a_failure_the_next_goes_only_when_that_is_recorded() -> None:
    first, second = row(1, "a"), row(2, "a")
    bench = Bench()
    bench.take(first, second)
    bench.send()
    bench.ordering.mark_failed(first, failed(first))
    assert bench.send() == []
    bench.take(row(3, "a"))  # what is claimed meanwhile lets nothing go
    assert bench.send() == []
    bench.settle()
    assert bench.send() == [2]


def test_a_failure_that_could_not_be_recorded_stops_the_key_still() -> None:
    first, second = row(1, "a"), row(2, "a")
    bench = Bench()
    bench.take(first, second)
    bench.send()
    bench.ordering.mark_failed(first, failed(first))
    settlement, _ = bench.ordering.next_settlement(10)
    bench.ordering.abort_settlement(settlement)
    assert bench.send() == []
    assert bench.settle() == settlement
    assert bench.send() == [2]


def test_another_key_does_not_wait_for_a_failure() -> None:
    bad, other = row(1, "a"), row(2, "b")
    bench = Bench()
    bench.take(bad)
    bench.send()
    bench.ordering.mark_failed(bad, failed(bad))
    bench.take(other)
    assert bench.send() == [2]


def test_nothing_goes_before_its_claim_is_committed() -> None:
    bench = Bench()
    offer = bench.read(row(1, "a"), row(2))
    assert bench.send() == []
    bench.claim(offer)
    assert bench.send() == [1, 2]


def test_a_later_claim_that_commits_first_does_not_overtake() -> None:
    bench = Bench()
    earlier, later = bench.read(row(1, "a")), bench.read(row(2, "a"))
    bench.ordering.confirm_claim(2, later.take)
    assert bench.send() == []
    bench.ordering.confirm_claim(1, earlier.take)
    assert bench.send() == [1]


def test_a_late_row_goes_before_a_later_one_that_waits_in_hand() -> None:
    """Id 1 of the key became visible when 2 was already claimed, and 3 stands behind it."""
    under_way, waiting, late = row(2, "a"), row(3, "a"), row(1, "a")
    bench = Bench()
    bench.take(under_way, waiting)
    bench.send()
    bench.take(late)
    bench.ordering.mark_delivered([under_way])
    assert bench.send() == [1]


def test_rows_in_hand_are_not_taken_twice() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    assert bench.read(first).take == []
    bench.send()
    assert bench.read(first).take == []
    bench.ordering.mark_delivered([first])
    assert bench.read(first).take == []


def test_a_row_closed_while_a_read_was_under_way_is_not_taken_again() -> None:
    """The read saw it open; by the time it answers, it is delivered and out of the hand."""
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    partitions, _ = bench.ordering.begin_read()
    bench.ordering.mark_delivered([first])
    bench.settle()
    answer = ReadResult([first], Cursor({0: 1}), frozenset(partitions))
    assert bench.ordering.accept_read(answer, partitions).take == []


def test_another_message_under_the_id_of_one_in_hand_is_noticed() -> None:
    """A database that lost commits gives ids again. What is in hand exists no more, whichever lane it was in."""
    first, other = row(1, "a", lane=0), replace(row(1, "b", lane=1), message_id=UUID(int=7))
    bench = Bench(lanes=(0, 1))
    bench.take(first)
    assert bench.read(first).take == []
    assert bench.ordering.reused_lanes == set()
    assert bench.read(other).take == []
    assert bench.ordering.reused_lanes == {0, 1}


@pytest.mark.parametrize("how", ["recovered", "waiting"])
def test_another_message_under_the_id_of_one_in_hand_is_noticed_however_it_comes(how: str) -> None:
    """It would take the place of the one in hand, or stay in its claim."""
    first, other = row(1, "a", lane=0), replace(row(1, "b", lane=1, waits=Waits.PARKED), message_id=UUID(int=7))
    bench = Bench(lanes=(0, 1))
    bench.take(first)
    if how == "recovered":
        bench.ordering.recover_claim(7, [other], strikes=1)
    else:
        bench.ordering.block(1, "b", front=Waits.PARKED)
        assert bench.accept_key(bench.key_read(), [other]).take == []
    assert bench.ordering.reused_lanes == {0, 1}
    assert bench.send() == [1]


def reuse_id() -> tuple[Bench, Message, Message]:
    """A lane that was dropped while a message was being sent, and taken anew with another message of that id."""
    first, other = row(1, "a"), replace(row(1, "b"), message_id=UUID(int=7))
    bench = Bench()
    bench.take(first)
    assert bench.send() == [1]
    bench.ordering.drop([0])
    bench.ordering.grant(0)
    bench.take(other)
    assert bench.send() == [1]
    return bench, first, other


def test_a_late_answer_is_not_that_of_another_message_with_its_id() -> None:
    """It would be recorded as delivered, and its destination never got it."""
    bench, first, other = reuse_id()
    bench.ordering.mark_delivered([first])
    bench.ordering.mark_failed(first, retry(first))
    bench.ordering.mark_unsent(first)
    bench.ordering.mark_returned([first])
    bench.ordering.add_strikes([first])
    assert not bench.ordering.has_outcomes
    assert not bench.ordering.has_strikes
    bench.ordering.mark_delivered([other])
    assert bench.settle().message_ids == {1: other.message_id}


def test_a_late_claim_is_not_that_of_another_message_with_its_id() -> None:
    first, other = row(1, "a"), replace(row(1, "b"), message_id=UUID(int=7))
    bench = Bench()
    early = bench.read(first)
    bench.ordering.drop([0])
    bench.ordering.grant(0)
    bench.read(other)
    bench.claim(early)
    assert bench.send() == []


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_late_settlement_is_not_that_of_another_message_with_its_id(is_recorded: bool) -> None:
    first, other = row(1, "a"), replace(row(1, "b"), message_id=UUID(int=7))
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.mark_delivered([first])
    settlement, _ = bench.ordering.next_settlement(100)
    bench.ordering.drop([0])
    bench.ordering.grant(0)
    bench.take(other)
    bench.send()
    if is_recorded:
        bench.ordering.confirm_settlement(settlement)
    else:
        bench.ordering.abort_settlement(settlement)
    assert bench.ordering.is_in_flight(other)
    assert not bench.ordering.has_outcomes


def come_back_during_settlement() -> tuple[Bench, Settlement]:
    """A message whose delivery was being recorded when its lane was dropped, and taken again with a claim of it."""
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.mark_delivered([first])
    settlement, _ = bench.ordering.next_settlement(100)
    bench.ordering.drop([0])
    bench.ordering.grant(0)
    bench.ordering.recover_claim(7, [row(1, "a")], strikes=1)
    return bench, settlement


@pytest.mark.parametrize("end", ["confirm_settlement", "abort_settlement", "confirm_close"])
def test_a_late_settlement_is_not_that_of_a_message_that_came_back(end: str) -> None:
    """It came back with another claim, and with an outcome that is to be recorded: it returns to the table."""
    bench, settlement = come_back_during_settlement()
    part = Settlement(delivered=[1])  # as of a settlement that was refused and halved: without the ids of messages
    getattr(bench.ordering, end)(settlement if end == "abort_settlement" else part)
    settlement, lanes = bench.ordering.next_settlement(100)
    assert (non_empty(settlement), lanes) == ({"returned": [1], "finished": [7]}, {0})


def test_a_part_of_a_late_settlement_has_nothing_of_a_message_that_came_back() -> None:
    bench, _ = come_back_during_settlement()
    part, lanes = bench.ordering.rebuild_settlement(Settlement(delivered=[1]))
    assert (non_empty(part), lanes) == ({}, set())


@pytest.mark.parametrize("outcome", [Settlement(delivered=[1]), Settlement()])
def test_a_message_that_came_back_is_not_set_aside_for_what_was_refused_before(outcome: Settlement) -> None:
    bench, _ = come_back_during_settlement()
    bench.ordering.set_aside(1, outcome)
    assert not bench.ordering.has_aside
    bench.settle()
    assert bench.ordering.in_flight == 0


def test_a_message_that_is_read_again_is_not_set_aside_for_the_outcome_of_another_under_its_id() -> None:
    bench, _, other = reuse_id()
    bench.ordering.set_aside(1, Settlement(delivered=[1]))
    assert not bench.ordering.has_aside
    bench.ordering.mark_delivered([other])
    assert list(bench.settle().delivered) == [1]


def test_another_message_under_an_id_released_meanwhile_is_taken() -> None:
    first, other = row(1, "a"), replace(row(1, "a"), message_id=UUID(int=7))
    bench = Bench()
    bench.take(first)
    bench.send()
    partitions, _ = bench.ordering.begin_read()
    bench.ordering.mark_delivered([first])
    bench.settle()
    answer = ReadResult([other], Cursor({0: 1}), frozenset(partitions))
    assert bench.ordering.accept_read(answer, partitions).take == [other]


def test_a_message_that_comes_back_later_is_taken() -> None:
    """A redrive brings the same id again, with a reason to wait."""
    first, again = row(1, "a"), row(1, "a", waits=Waits.RETRY)
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.mark_delivered([first])
    bench.settle()
    bench.due(again)
    bench.claim(bench.accept_key(bench.key_read(), [again]))
    assert bench.send() == [1]


def test_rows_of_lanes_that_are_not_ours_are_left_alone() -> None:
    bench = Bench(lanes=[0])
    assert bench.read(row(1, "a", lane=1), row(2, lane=0)).take == [row(2, lane=0)]


def test_what_does_not_fit_the_window_is_told() -> None:
    bench = Bench(window=3)
    assert bench.ordering.room == 3
    bench.take(row(1), row(2))
    assert (bench.ordering.in_flight, bench.ordering.room) == (2, 1)


@pytest.mark.parametrize("answer", ["delivered", "troubled", "returned"])
def test_answers_for_what_is_not_under_way_are_ignored(answer: str) -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    match answer:
        case "delivered":
            bench.ordering.mark_delivered([first])
        case "troubled":
            bench.ordering.mark_failed(first, retry(first))
        case _:
            bench.ordering.mark_returned([first])
    assert not bench.ordering.has_outcomes
    assert bench.send() == [1]


def test_what_is_set_aside_takes_no_room_but_is_bounded() -> None:
    """A store that refuses everything brings no more than the window again into memory."""
    ordering = LaneOrdering(window=2, key_share=2)
    ordering.grant(0)
    for first in (1, 3):
        ordering.begin_read()
        messages = [row(number, key=None) for number in (first, first + 1)]
        decision = ordering.accept_read(ReadResult(messages, Cursor()), [0])
        assert [message.id for message in decision.take] == [first, first + 1]
        assert ordering.room == 0
        for message in decision.take:
            ordering.set_aside(message.id, Settlement())
        assert ordering.room == (2 if first == 1 else 0)


def test_keys_astray_are_read_and_block_nothing() -> None:
    ordering = LaneOrdering(window=9, key_share=3)
    ordering.grant(0)
    ordering.note_astray(0, "odd")
    ordering.note_astray(5, "of a lane that is not ours")
    assert [(read.partition, read.key) for read in ordering.next_astray(9)] == [(0, "odd")]
    assert ordering.next_astray(9) == []
    ordering.begin_read()
    decision = ordering.accept_read(ReadResult([row(1, key="odd")], Cursor()), [0])
    assert (len(decision.take), decision.park) == (1, [])


def test_a_message_that_was_never_tried_goes_before_all_that_were() -> None:
    for dice in (0.0, 0.3, 0.6, 0.99):
        bench = Bench()
        bench.take(*[replace(row(id), last_error="500") for id in range(1, 9)], row(9))
        assert [message.id for message in bench.ordering.next_probe(dice, new_first=True)] == [9]
        assert len(bench.ordering.next_probe(dice, new_first=True)) == 1, "then those that were tried"


def test_every_other_probe_is_a_message_that_was_not_tried_before() -> None:
    """Those of throttled tenants may be many, and one of another must not be drawn among all of them."""
    chosen = []
    for dice in (0.0, 0.2, 0.49, 0.5, 0.7, 0.9):
        bench = Bench()
        refused = [replace(row(id), last_error="429") for id in range(1, 31)]
        bench.take(*refused, row(31))
        chosen += [message.id for message in bench.ordering.next_probe(dice)]
    assert chosen[:3] == [31, 31, 31]
    assert len({*chosen[3:]} - {31}) == 3
