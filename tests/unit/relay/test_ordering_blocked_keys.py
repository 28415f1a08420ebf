"""Keys that wait: behind a retry, a held message, a parked one, or because they are hot."""

from __future__ import annotations

import pytest

from pillarbox.contracts.store import Cursor, KeyMessages, ReadResult, Settlement
from pillarbox.message import Message, Waits
from pillarbox.relay.ordering import ReadDecision
from tests.support.lanes.lane_bench import Bench, build_due, failed, held, ids, retry
from tests.support.lanes.lane_table import row


def waiting(number: int, waits: Waits = Waits.PARKED) -> Message:
    return row(number, "a", waits=waits)


def blocked_by(trouble: str, *, key_share: int = 10) -> Bench:
    """Message 1 of key a was sent, and waits in the table now. The lane is read to its end."""
    first = row(1, "a")
    bench = Bench(key_share=key_share)
    bench.take(first)
    bench.send()
    bench.ordering.mark_failed(first, retry(first) if trouble == "retry" else held(first))
    bench.settle()
    bench.read()
    return bench


@pytest.mark.parametrize("trouble", ["retry", "held"])
def test_later_messages_of_a_blocked_key_are_parked(trouble: str) -> None:
    bench = blocked_by(trouble)
    assert bench.take(row(2, "a"), row(3, "b")) == ReadDecision([row(3, "b")], [row(2, "a")])
    assert bench.send() == [3]


def test_what_stands_behind_a_message_that_has_to_wait_is_parked_with_it() -> None:
    first, second = row(1, "a"), row(2, "a")
    bench = Bench()
    bench.take(first, second)
    bench.send()
    bench.ordering.mark_failed(first, retry(first))
    failures = {trouble.message_id: trouble.waits for trouble in bench.settle().failures}
    assert failures == {1: Waits.RETRY, 2: Waits.PARKED}


def test_a_later_message_whose_claim_comes_after_the_trouble_is_parked_too() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    second = bench.read(row(2, "a"))
    bench.ordering.mark_failed(first, retry(first))
    bench.settle()
    bench.claim(second)
    assert [(trouble.message_id, trouble.waits) for trouble in bench.settle().failures] == [(2, Waits.PARKED)]
    assert bench.send() == []


def test_parking_keeps_the_attempts() -> None:
    first, second = row(1, "a"), row(2, "a", attempts=3)
    bench = Bench()
    bench.take(first, second)
    bench.send()
    bench.ordering.mark_failed(first, retry(first))
    assert [trouble.attempts for trouble in bench.settle().failures] == [1, 3]


def test_a_park_that_is_recorded_first_does_not_release_its_stopped_key() -> None:
    """The store may refuse the failure and take the park: settlements are split then."""
    first, second, third = row(1, "a"), row(2, "a"), row(3, "a")
    bench = Bench()
    bench.take(second, third)
    assert bench.send() == [2]
    bench.take(first)  # late: it may go before the second is tried again, but not before that is recorded
    bench.ordering.mark_failed(second, retry(second))
    failure, park = bench.ordering.next_settlement(100)[0].failures
    assert (park.message_id, park.waits) == (3, Waits.PARKED)
    bench.ordering.confirm_settlement(Settlement(failures=[park]))
    assert bench.send() == []
    bench.ordering.confirm_settlement(Settlement(failures=[failure]))
    assert bench.send() == [1]


def test_a_retry_that_is_due_goes_before_what_is_parked() -> None:
    bench = blocked_by("retry")
    bench.take(row(2, "a"))
    bench.claim(bench.due(waiting(1, Waits.RETRY)))
    assert bench.send() == [1]


def test_when_the_head_closes_the_parked_ones_are_read_and_go_in_order() -> None:
    bench = blocked_by("retry")
    bench.take(row(2, "a"), row(3, "a"))
    due = waiting(1, Waits.RETRY)
    bench.claim(bench.due(due))
    bench.send()
    bench.ordering.mark_delivered([due])
    assert bench.ordering.next_key_reads(10) == []
    bench.settle()
    bench.claim(bench.accept_key(bench.key_read(), [waiting(2), waiting(3)]))
    assert bench.send() == [2]
    bench.ordering.mark_delivered([waiting(2)])
    assert bench.send() == [3]


def test_parked_messages_are_read_once_and_taken_as_they_are() -> None:
    """Nothing is rewritten on the way out: they are claimed, not parked or unparked."""
    bench = blocked_by("retry")
    bench.ordering.block(0, "a", front=Waits.PARKED)
    offer = bench.accept_key(bench.key_read(), [waiting(2), waiting(3)])
    assert (ids(offer.take), offer.park) == ([2, 3], ())
    assert bench.ordering.next_key_reads(10) == []


def test_reading_a_blocked_key_stops_at_the_first_that_has_to_wait() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    offer = bench.accept_key(bench.key_read(), [waiting(2), waiting(3, Waits.RETRY), waiting(4)])
    assert ids(offer.take) == [2]
    bench.claim(offer)
    assert bench.send() == [2]
    bench.ordering.mark_delivered(offer.take)
    bench.settle()
    assert bench.ordering.next_key_reads(10) == [], "its front is known and waits for its time"
    assert bench.read(row(5, "a")).park == [row(5, "a")]


def test_a_front_that_comes_due_while_its_key_is_in_flight_is_read_as_soon_as_that_ends() -> None:
    """The search has passed it, and would find it again only in its next turn."""
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    bench.claim(bench.accept_key(bench.key_read(), [waiting(2), waiting(3, Waits.RETRY), waiting(4)]))
    assert bench.send() == [2]
    known = [bench.ordering.has_more_due]
    bench.ordering.choose_due([build_due(waiting(3, Waits.RETRY))])
    assert [*known, bench.ordering.has_more_due] == [False, True]
    bench.ordering.mark_delivered([waiting(2)])
    bench.settle()
    bench.claim(bench.accept_key(bench.key_read(), [waiting(3, Waits.RETRY), waiting(4)]))
    assert bench.send() == [3]


def test_a_key_is_free_when_everything_that_waited_is_in_hand() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    bench.claim(bench.accept_key(bench.key_read(), [waiting(2)]))
    assert bench.read(row(3, "a")).take == [row(3, "a")]


def test_a_key_is_not_free_when_more_may_wait_than_was_read() -> None:
    bench = Bench(key_share=2)
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    bench.claim(bench.accept_key(bench.key_read(), [waiting(2), waiting(3)]))
    assert bench.read(row(5, "a")).park == [row(5, "a")]


def test_a_key_is_not_free_when_something_was_parked_while_it_was_read() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    key_read = bench.key_read()
    meanwhile = bench.read(row(5, "a"))
    assert ids(meanwhile.park) == [5]
    bench.claim(bench.accept_key(key_read, [waiting(2)]))
    bench.claim(meanwhile)
    bench.send()
    bench.ordering.mark_delivered([waiting(2)])
    bench.settle()
    assert bench.key_read().key == "a"


def test_a_read_that_began_before_a_smaller_message_was_parked_takes_nothing_above_it() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    key_read = bench.key_read()
    bench.read(row(2, "a"))
    assert ids(bench.accept_key(key_read, [waiting(1), waiting(4)]).take) == [1]


def test_a_key_is_not_read_while_a_park_of_it_is_being_recorded() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.RETRY)
    offer = bench.read(row(2, "a"))
    bench.ordering.block(0, "a", front=Waits.PARKED)
    assert bench.ordering.next_key_reads(10) == []
    bench.claim(offer)
    assert bench.key_read().key == "a"


def test_a_key_that_could_not_be_read_is_wanted_again() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    key_read = bench.key_read()
    assert bench.ordering.next_key_reads(10) == []
    bench.ordering.abort_key_read(key_read)
    assert bench.key_read() == key_read


def test_a_waiting_message_is_not_taken_while_a_fresh_one_before_it_may_still_come() -> None:
    """The blocked keys are known, but the lane has been read only to id 3."""
    bench = Bench()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    partitions, _ = bench.ordering.begin_read()
    key_read = bench.key_read()
    assert bench.accept_key(key_read, [waiting(4)]).take == []
    assert bench.ordering.next_key_reads(10) == [], "not before the lane is read further"
    bench.ordering.abort_read(partitions)
    bench.read()
    bench.claim(bench.accept_key(bench.key_read(), [waiting(4)]))
    assert bench.send() == [4]


# --- fronts ---


def test_a_due_retry_is_not_taken_when_it_is_not_known_to_be_the_front() -> None:
    """The table may hold a held one before it: that is asked first."""
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.HELD)
    assert bench.due(waiting(5, Waits.RETRY)) == ReadDecision([], [])
    offer = bench.accept_key(bench.key_read(), [waiting(2, Waits.HELD), waiting(5, Waits.RETRY)])
    assert offer.take == []
    assert bench.ordering.next_key_reads(10) == []


def test_a_due_retry_is_not_taken_while_its_lane_is_being_read_from_its_start() -> None:
    """A fresh message of its key may come before it. When none can any more, it goes without being due once more."""
    bench = blocked_by("retry")
    bench.ordering.reopen()
    partitions, restart = bench.ordering.begin_read()
    assert restart == {0}
    assert bench.due(waiting(1, Waits.RETRY)) == ReadDecision([], [])
    assert bench.accept_key(bench.key_read(), [waiting(1, Waits.RETRY)]).take == []
    bench.ordering.accept_read(ReadResult((), Cursor(), frozenset(partitions)), partitions)
    assert ids(bench.accept_key(bench.key_read(), [waiting(1, Waits.RETRY)]).take) == [1]


def test_a_due_retry_that_was_asked_for_is_taken_with_what_stands_behind_it() -> None:
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.RETRY)
    bench.due(waiting(2, Waits.RETRY))
    offer = bench.accept_key(bench.key_read(), [waiting(2, Waits.RETRY), waiting(3)])
    assert ids(offer.take) == [2, 3]


def test_a_due_message_behind_another_is_not_read_with_the_due_ones() -> None:
    """Its key brings it. Otherwise a handful behind a held one would be fetched by every search."""
    bench = blocked_by("held")
    bench.ordering.begin_due_read()
    due = [build_due(waiting(5, Waits.RETRY)), build_due(row(7, "b", waits=Waits.DEFERRED))]
    assert bench.ordering.choose_due(due) == ([7], 2)


def test_a_key_takes_no_more_bytes_than_its_share_and_is_read_again() -> None:
    bench = Bench(window=10, key_share=5, window_bytes=100)
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    rows = [row(number, "a", waits=Waits.PARKED, payload=bytes(30)) for number in (1, 2, 3)]
    decision = bench.ordering.accept_key(bench.key_read(), KeyMessages(rows, complete=True))
    assert ids(decision.take) == [1, 2], "the second one reaches the 50 bytes of its share"
    bench.claim(decision)
    for number in (1, 2):
        assert bench.send() == [number]
        bench.ordering.mark_delivered([rows[number - 1]])
    bench.settle()
    assert ids(bench.ordering.accept_key(bench.key_read(), KeyMessages(rows[2:], complete=True)).take) == [3]


def test_a_front_that_a_person_removed_does_not_block_the_due_one_behind_it() -> None:
    bench = blocked_by("held")
    bench.due(waiting(5, Waits.RETRY))
    assert bench.ordering.next_key_reads(10) == []
    bench.ordering.block(0, "a", front=Waits.RETRY)  # what the table says once the held one is discarded
    bench.claim(bench.accept_key(bench.key_read(), [waiting(5, Waits.RETRY)]))
    assert bench.send() == [5]


def test_a_held_message_that_was_discarded_frees_the_parked_ones() -> None:
    bench = blocked_by("held")
    bench.take(row(2, "a"))
    bench.ordering.block(0, "a", front=Waits.PARKED)
    bench.claim(bench.accept_key(bench.key_read(), [waiting(2)]))
    assert bench.send() == [2]


def test_a_held_message_that_was_redriven_goes_first() -> None:
    bench = blocked_by("held")
    bench.take(row(2, "a"))
    bench.claim(bench.due(waiting(1, Waits.RETRY)))
    assert bench.send() == [1]


# --- deferred ---


def test_a_deferred_message_that_is_due_is_taken_like_a_fresh_one() -> None:
    bench = Bench()
    bench.read()
    bench.claim(bench.due(waiting(1, Waits.DEFERRED)))
    assert bench.send() == [1]


def test_a_deferred_message_of_a_blocked_key_is_parked_when_due() -> None:
    bench = blocked_by("retry")
    assert bench.due(waiting(5, Waits.DEFERRED)).park == [waiting(5, Waits.DEFERRED)]


def test_a_deferred_message_takes_its_place_before_later_ones_in_hand() -> None:
    bench = Bench()
    bench.take(row(2, "a"), row(3, "a"))
    bench.send()
    bench.claim(bench.due(waiting(1, Waits.DEFERRED)))
    bench.ordering.mark_delivered([row(2, "a")])
    assert bench.send() == [1]


# --- hot keys ---


def test_a_hot_key_gets_its_share_and_the_rest_is_parked() -> None:
    bench = Bench(window=100, key_share=2)
    offer = bench.take(*(row(number, "a") for number in range(1, 6)), row(6, "b"))
    assert (ids(offer.take), ids(offer.park)) == ([1, 2, 6], [3, 4, 5])


def test_a_hot_key_goes_on_with_what_was_parked() -> None:
    bench = Bench(key_share=1)
    bench.take(row(1, "a"), row(2, "a"))
    bench.send()
    bench.ordering.mark_delivered([row(1, "a")])
    bench.settle()
    bench.claim(bench.accept_key(bench.key_read(), [waiting(2)]))
    assert bench.send() == [2]


def test_the_share_is_at_least_one_message() -> None:
    bench = Bench(window=1, key_share=0)
    assert ids(bench.take(row(1, "a")).take) == [1]


def test_a_failure_frees_a_key_that_had_nothing_more() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.mark_failed(first, failed(first))
    bench.settle()
    bench.take(row(2, "a"))
    assert bench.send() == [2]


def test_a_key_goes_on_after_a_delivery_that_was_set_aside_and_then_recorded() -> None:
    """What waits in the table is taken only while nothing of the key is unsettled: the delivery counts once."""
    bench = Bench()
    ordering, first = bench.ordering, row(1, "a")
    bench.take(first)
    bench.send()
    ordering.mark_delivered([first])
    refused, _ = ordering.next_settlement(10)
    ordering.set_aside(1, refused)
    assert ordering.has_aside
    ordering.retry_aside()
    assert list(bench.settle().delivered) == [1]
    bench.take(row(2, "a"))
    assert bench.send() == [2]
    ordering.mark_failed(row(2, "a"), retry(row(2, "a")))
    bench.settle()
    bench.read()
    assert ids(bench.due(waiting(2, Waits.RETRY)).take) == [2]


def test_a_key_goes_on_after_a_failure_that_was_set_aside_and_then_recorded() -> None:
    """While it is set aside its key stands still, and it is unsettled all the time: it counts once too."""
    bench = Bench()
    ordering, first = bench.ordering, row(1, "a")
    bench.take(first, row(2, "a"))
    assert bench.send() == [1]
    ordering.mark_failed(first, failed(first))
    refused, _ = ordering.next_settlement(10)
    ordering.set_aside(1, refused)
    assert bench.send() == []
    ordering.retry_aside()
    assert [failure.message_id for failure in bench.settle().failures] == [1]
    assert bench.send() == [2]
    ordering.mark_failed(row(2, "a"), retry(row(2, "a")))
    bench.settle()
    bench.read()
    assert ids(bench.due(waiting(2, Waits.RETRY)).take) == [2]


def test_a_read_of_before_unblocks_no_key_of_a_lane_that_was_taken_again() -> None:
    """It may have been made before a message of the key went back to the table."""
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    read = bench.key_read()
    bench.ordering.drop([0])
    bench.ordering.grant(0)
    bench.ordering.block(0, "a", front=Waits.HELD)
    bench.accept_key(read, [])
    assert ids(bench.read(row(2, "a")).park) == [2]
