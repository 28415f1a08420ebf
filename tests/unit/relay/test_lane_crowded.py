"""Hot keys where reads can skip them: a share is in hand, the rest stays in the table as it is."""

from __future__ import annotations

from collections.abc import Iterable

from pillarbox.message import Message, Waits
from pillarbox.protocols import Cursor, Reading
from pillarbox.relay.lane import Left, Offer
from tests.unit.relay.lane_bench import Bench, held, ids, retry
from tests.unit.relay.lane_table import row


def crowded(*, messages: int = 5, share: int = 2) -> Bench:
    """So many messages of key a were read, a share of them is in hand."""
    bench = Bench(key_share=share, leaves=True)
    bench.take(*rows(range(1, messages + 1)))
    return bench


def rows(numbers: Iterable[int]) -> list[Message]:
    return [row(number, "a") for number in numbers]


def finish(bench: Bench) -> list[int]:
    """Deliver and settle all that is in hand, in its order."""
    sent: list[int] = []
    while batch := bench.core.batch(100):
        sent += ids(batch)
        bench.core.delivered(batch)
    bench.settle()
    return sent


def found(numbers: Iterable[int], *, complete: bool = False) -> Reading:
    """A read of the lane above some id."""
    return Reading(rows(numbers), Cursor(), frozenset([0] if complete else []))


def test_the_rest_of_a_hot_key_is_neither_claimed_nor_parked() -> None:
    bench = Bench(key_share=2, leaves=True)
    offer = bench.take(*rows(range(1, 6)), row(6, "b"))
    assert (ids(offer.take), ids(offer.park)) == ([1, 2, 6], [])
    assert bench.core.crowded == ["a"]


def test_what_comes_later_of_it_is_left_too() -> None:
    bench = crowded()
    assert bench.take(row(6, "a"), row(7, "b")) == Offer([row(7, "b")], [])


def test_no_more_of_it_is_wanted_while_anything_of_it_is_in_hand() -> None:
    bench = crowded()
    assert bench.core.left(10) == []
    batch = bench.core.batch(100)
    bench.core.delivered(batch)
    assert bench.core.left(10) == []


def test_its_lane_is_read_above_what_was_met_once_nothing_is_in_hand() -> None:
    bench = crowded()
    assert finish(bench) == [1, 2]
    assert bench.core.left(10) == [Left("a", 0, 2)]
    assert bench.core.left(10) == [], "it is being read"


def test_the_next_share_is_taken_and_the_key_stays_crowded() -> None:
    bench = crowded()
    finish(bench)
    (left,) = bench.core.left(10)
    bench.claim(bench.core.offer_left(left, found([3, 4, 5])))
    assert finish(bench) == [3, 4]
    assert bench.core.left(10) == [Left("a", 0, 4)]


def test_the_last_share_ends_the_crowd() -> None:
    bench = crowded()
    finish(bench)
    (left,) = bench.core.left(10)
    bench.claim(bench.core.offer_left(left, found([3, 4, 5])))
    finish(bench)
    (left,) = bench.core.left(10)
    bench.claim(bench.core.offer_left(left, found([5])))
    assert bench.core.crowded == []
    assert finish(bench) == [5]


def test_other_keys_in_that_read_are_not_touched() -> None:
    bench = crowded()
    finish(bench)
    (left,) = bench.core.left(10)
    reading = Reading([row(3, "a"), row(4, "b"), row(5, "a")], Cursor())
    assert ids(bench.core.offer_left(left, reading).take) == [3, 5]


def test_nothing_above_the_lanes_mark_is_taken() -> None:
    """A read that skips the key would pass by what becomes visible below it later."""
    bench = crowded(messages=3)
    finish(bench)
    (left,) = bench.core.left(10)
    assert ids(bench.core.offer_left(left, found([3, 9], complete=True)).take) == [3]
    assert bench.core.crowded == []


def test_a_read_that_was_cut_off_goes_on_where_it_ended() -> None:
    bench = crowded(messages=9)
    finish(bench)
    (left,) = bench.core.left(10)
    bench.core.offer_left(left, Reading([row(4, "b"), row(5, "b")], Cursor()))
    assert bench.core.left(10) == [Left("a", 0, 5)]


def test_a_lane_that_could_not_be_read_is_read_again() -> None:
    bench = crowded()
    finish(bench)
    (left,) = bench.core.left(10)
    bench.core.left_failed(left)
    assert bench.core.left(10) == [left]


def test_a_failure_blocks_the_key_and_what_was_left_stays_where_it_is() -> None:
    bench = crowded()
    bench.send()
    bench.core.troubled(row(1, "a"), retry(row(1, "a")))
    bench.settle()
    assert bench.core.left(10) == []
    assert bench.take(row(6, "a")) == Offer([], [])


def test_a_waiting_message_is_not_taken_before_what_was_left() -> None:
    """A deferred message came due and was parked, in its place behind 3, 4 and 5."""
    bench = crowded()
    bench.claim(bench.due(row(9, "a", waits=Waits.DEFERRED)))
    finish(bench)
    assert bench.core.offer_key(bench.wanted(), [row(9, "a", waits=Waits.PARKED)]).take == []
    assert bench.core.wanted(10) == []
    (left,) = bench.core.left(10)
    offer = bench.core.offer_left(left, found([3, 4, 5], complete=True))
    assert (ids(offer.take), ids(offer.park)) == ([], [3, 4])


def test_a_lane_that_is_read_from_its_start_meets_everything_again() -> None:
    bench = crowded()
    bench.core.meet_again([0])
    assert bench.core.crowded == []
    assert ids(bench.take(*rows(range(1, 6))).take) == [3], "1 is next, so there is room for one more behind it"
    assert bench.core.crowded == ["a"]


def test_what_went_back_is_met_again_before_what_was_left() -> None:
    bench = crowded()
    bench.core.close()
    bench.settle()
    bench.core.reopen()
    assert ids(bench.take(*rows(range(1, 6))).take) == [1, 2]
    assert finish(bench) == [1, 2]
    assert bench.core.left(10) == [Left("a", 0, 2)]


def test_a_crowded_key_of_a_lane_that_was_lost_is_forgotten() -> None:
    bench = crowded()
    finish(bench)
    (left,) = bench.core.left(10)
    bench.core.drop([0])
    assert bench.core.crowded == []
    assert bench.core.offer_left(left, found([3, 4])) == Offer(())


# --- a person acts ---


def held_front(*, share: int = 1) -> Bench:
    """The first of the key is held; the rest was left, and none of it is parked: the table names only the first."""
    bench = crowded(share=share)
    bench.send()
    bench.core.troubled(row(1, "a"), held(row(1, "a")))
    bench.settle()
    return bench


def test_a_held_front_that_a_person_discarded_frees_what_was_left() -> None:
    bench = held_front()
    bench.core.look_again(set())
    assert bench.core.offer_key(bench.wanted(), []).take == []
    (left,) = bench.core.left(10)
    assert left == Left("a", 0, 1)
    assert ids(bench.core.offer_left(left, found([2, 3, 4, 5])).take) == [2]


def test_a_front_that_the_table_still_names_is_waited_for() -> None:
    bench = held_front()
    bench.core.look_again({"a", "b"})
    assert (bench.core.wanted(10), bench.core.left(10)) == ([], [])


def test_a_front_that_is_still_there_after_all_is_waited_for_again() -> None:
    """The table was read before the front was recorded in it."""
    bench = held_front()
    bench.core.look_again(set())
    assert bench.core.offer_key(bench.wanted(), [row(1, "a", waits=Waits.HELD)]).take == []
    assert (bench.core.wanted(10), bench.core.left(10)) == ([], [])


def test_a_key_is_looked_at_again_once() -> None:
    bench = held_front()
    bench.core.look_again(set())
    wanted = bench.wanted()
    bench.core.look_again(set())
    assert bench.core.wanted(10) == [], "it is being read"
    bench.core.fetching_failed(wanted)
    assert bench.wanted() == wanted


def test_a_front_that_is_in_hand_is_not_looked_for() -> None:
    bench = crowded(share=1)
    bench.send()
    bench.core.troubled(row(1, "a"), retry(row(1, "a")))
    bench.settle()
    bench.claim(bench.due(row(1, "a", waits=Waits.RETRY)))
    bench.core.look_again(set())
    assert bench.core.wanted(10) == []
    assert finish(bench) == [1]
    assert bench.core.offer_key(bench.wanted(), []).take == []
    assert bench.core.left(10) == [Left("a", 0, 1)]


def test_a_key_that_waits_for_nothing_is_not_looked_for() -> None:
    bench = crowded()
    finish(bench)
    bench.core.look_again(set())
    assert bench.core.wanted(10) == []
    assert bench.core.left(10) == [Left("a", 0, 2)]


# --- what waits behind what was left ---


def lagging() -> Bench:
    """A deferred message of the key came due and was parked; 3, 4 and 5 stand before it, and were left."""
    bench = crowded()
    bench.claim(bench.due(row(9, "a", waits=Waits.DEFERRED)))
    finish(bench)
    bench.core.offer_key(bench.wanted(), [row(9, "a", waits=Waits.PARKED)])
    return bench


def test_what_was_met_of_it_goes_before_more_is_met() -> None:
    bench = lagging()
    (left,) = bench.core.left(10)
    bench.claim(bench.core.offer_left(left, found([3, 4, 5])))
    assert bench.core.left(10) == []
    parked = [row(id, "a", waits=Waits.PARKED) for id in (3, 4, 9)]
    assert ids(bench.core.offer_key(bench.wanted(), parked).take) == [3, 4]


def test_what_waits_goes_when_all_that_was_left_is_gone() -> None:
    bench = lagging()
    (left,) = bench.core.left(10)
    bench.core.offer_left(left, found([], complete=True))
    assert ids(bench.core.offer_key(bench.wanted(), [row(9, "a", waits=Waits.PARKED)]).take) == [9]


def test_a_failed_read_of_a_key_that_is_crowded_no_more_leaves_it_wanted() -> None:
    bench = lagging()
    (left,) = bench.core.left(10)
    bench.core.meet_again([0])
    assert bench.core.wanted(10) == [], "it is being read"
    bench.core.left_failed(left)
    assert bench.wanted().key == "a"


def test_what_is_found_of_a_key_that_is_crowded_no_more_is_left_to_the_read_of_its_lane() -> None:
    bench = crowded()
    finish(bench)
    (left,) = bench.core.left(10)
    bench.core.meet_again([0])
    assert bench.core.offer_left(left, found([3, 4])) == Offer(())
    assert ids(bench.take(*rows(range(3, 6))).take) == [3, 4]


# --- several at a time ---


def test_no_more_keys_are_fetched_than_asked_for() -> None:
    bench = Bench(key_share=1, leaves=True)
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"), row(4, "b"))
    finish(bench)
    assert bench.core.left(1) == [Left("a", 0, 1)]
    assert bench.core.left(10) == [Left("b", 0, 3)]


def test_nothing_is_fetched_from_a_lane_into_which_something_goes_back() -> None:
    bench = Bench(key_share=1, leaves=True)
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"))
    first, other = bench.core.batch(2)
    bench.core.delivered([first])
    bench.core.returned([other])
    bench.settle()
    assert bench.core.left(10) == []


def test_what_is_found_while_something_goes_back_is_not_taken() -> None:
    bench = Bench(key_share=1, leaves=True)
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"))
    first, other = bench.core.batch(2)
    bench.core.delivered([first])
    bench.settle()
    (left,) = bench.core.left(10)
    bench.core.returned([other])
    assert bench.core.offer_left(left, found([2])) == Offer(())


def test_a_hot_key_goes_out_whole_and_in_order() -> None:
    bench, sent = crowded(messages=20, share=3), list[int]()
    for _ in range(20):
        sent += finish(bench)
        for left in bench.core.left(10):
            bench.claim(bench.core.offer_left(left, found(range(left.after + 1, 21))))
    assert sent == list(range(1, 21))
    assert (bench.core.crowded, bench.core.in_hand) == ([], 0)
