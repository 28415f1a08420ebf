"""Hot keys where reads can skip them: a share is in hand, the rest stays in the table as it is."""

from __future__ import annotations

from collections.abc import Iterable

from pillarbox.contracts.store import Cursor, ReadResult
from pillarbox.message import Message, Waits
from pillarbox.relay.ordering import HotKeyRemainder, ReadDecision
from tests.support.lanes.lane_bench import Bench, held, ids, retry
from tests.support.lanes.lane_table import row


def hot_bench(*, messages: int = 5, share: int = 2) -> Bench:
    """So many messages of key a were read, a share of them is in hand."""
    bench = Bench(key_share=share, skips_keys=True)
    bench.take(*rows(range(1, messages + 1)))
    return bench


def rows(numbers: Iterable[int]) -> list[Message]:
    return [row(number, "a") for number in numbers]


def finish(bench: Bench) -> list[int]:
    """Deliver and settle all that is in hand, in its order."""
    sent: list[int] = []
    while batch := bench.ordering.next_batch(100):
        sent += ids(batch)
        bench.ordering.mark_delivered(batch)
    bench.settle()
    return sent


def found(numbers: Iterable[int], *, complete: bool = False) -> ReadResult:
    """A read of the lane above some id."""
    return ReadResult(rows(numbers), Cursor(), frozenset([0] if complete else []))


def test_the_rest_of_a_hot_key_is_neither_claimed_nor_parked() -> None:
    bench = Bench(key_share=2, skips_keys=True)
    offer = bench.take(*rows(range(1, 6)), row(6, "b"))
    assert (ids(offer.take), ids(offer.park)) == ([1, 2, 6], [])
    assert bench.ordering.hot_keys == ["a"]


def test_a_key_gets_its_share_of_the_bytes() -> None:
    bench = Bench(window=100, key_share=10, window_bytes=10_000, skips_keys=True)
    offer = bench.take(*(row(number, "a", payload=bytes(400)) for number in range(1, 6)), row(6, "b"))
    assert (ids(offer.take), bench.ordering.hot_keys) == ([1, 2, 3, 6], ["a"])


def test_what_comes_later_of_it_is_left_too() -> None:
    bench = hot_bench()
    assert bench.take(row(6, "a"), row(7, "b")) == ReadDecision([row(7, "b")], [])


def test_no_more_of_it_is_wanted_while_anything_of_it_is_in_hand() -> None:
    bench = hot_bench()
    assert bench.ordering.next_remainders(10) == []
    batch = bench.ordering.next_batch(100)
    bench.ordering.mark_delivered(batch)
    assert bench.ordering.next_remainders(10) == []


def test_its_lane_is_read_above_what_was_met_once_nothing_is_in_hand() -> None:
    bench = hot_bench()
    assert finish(bench) == [1, 2]
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("a", 0, 2)]
    assert bench.ordering.next_remainders(10) == [], "it is being read"


def test_the_next_share_is_taken_and_the_key_stays_crowded() -> None:
    bench = hot_bench()
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.claim(bench.ordering.accept_remainder(left, found([3, 4, 5])))
    assert finish(bench) == [3, 4]
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("a", 0, 4)]


def test_the_last_share_ends_the_crowd() -> None:
    bench = hot_bench()
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.claim(bench.ordering.accept_remainder(left, found([3, 4, 5])))
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.claim(bench.ordering.accept_remainder(left, found([5])))
    assert bench.ordering.hot_keys == []
    assert finish(bench) == [5]


def test_other_keys_in_that_read_are_not_touched() -> None:
    bench = hot_bench()
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    reading = ReadResult([row(3, "a"), row(4, "b"), row(5, "a")], Cursor())
    assert ids(bench.ordering.accept_remainder(left, reading).take) == [3, 5]


def test_nothing_above_the_lanes_mark_is_taken() -> None:
    """A read that skips the key would pass by what becomes visible below it later."""
    bench = hot_bench(messages=3)
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    assert ids(bench.ordering.accept_remainder(left, found([3, 9], complete=True)).take) == [3]
    assert bench.ordering.hot_keys == []


def test_a_read_that_was_cut_off_goes_on_where_it_ended() -> None:
    bench = hot_bench(messages=9)
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.accept_remainder(left, ReadResult([row(4, "b"), row(5, "b")], Cursor()))
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("a", 0, 5)]


def test_a_lane_that_could_not_be_read_is_read_again() -> None:
    bench = hot_bench()
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.abort_remainder(left)
    assert bench.ordering.next_remainders(10) == [left]


def test_a_failure_blocks_the_key_and_what_was_left_stays_where_it_is() -> None:
    bench = hot_bench()
    bench.send()
    bench.ordering.mark_failed(row(1, "a"), retry(row(1, "a")))
    bench.settle()
    assert bench.ordering.next_remainders(10) == []
    assert bench.take(row(6, "a")) == ReadDecision([], [])


def test_a_waiting_message_is_not_taken_before_what_was_left() -> None:
    """A deferred message came due and was parked, in its place behind 3, 4 and 5."""
    bench = hot_bench()
    bench.claim(bench.due(row(9, "a", waits=Waits.DEFERRED)))
    finish(bench)
    assert bench.accept_key(bench.key_read(), [row(9, "a", waits=Waits.PARKED)]).take == []
    assert bench.ordering.next_key_reads(10) == []
    (left,) = bench.ordering.next_remainders(10)
    offer = bench.ordering.accept_remainder(left, found([3, 4, 5], complete=True))
    assert (ids(offer.take), ids(offer.park)) == ([], [3, 4])


def test_a_lane_that_is_read_from_its_start_meets_everything_again() -> None:
    bench = hot_bench()
    bench.ordering.load_hot_keys([0])
    assert bench.ordering.hot_keys == []
    assert ids(bench.take(*rows(range(1, 6))).take) == [3], "1 is next, so there is room for one more behind it"
    assert bench.ordering.hot_keys == ["a"]


def test_what_went_back_is_met_again_before_what_was_left() -> None:
    bench = hot_bench()
    bench.ordering.close()
    bench.settle()
    bench.ordering.reopen()
    assert ids(bench.take(*rows(range(1, 6))).take) == [1, 2]
    assert finish(bench) == [1, 2]
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("a", 0, 2)]


def test_a_crowded_key_of_a_lane_that_was_lost_is_forgotten() -> None:
    bench = hot_bench()
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.drop([0])
    assert bench.ordering.hot_keys == []
    assert bench.ordering.accept_remainder(left, found([3, 4])) == ReadDecision(())


# --- a person acts ---


def held_front(*, share: int = 1) -> Bench:
    """The first of the key is held; the rest was left, and none of it is parked: the table names only the first."""
    bench = hot_bench(share=share)
    bench.send()
    bench.ordering.mark_failed(row(1, "a"), held(row(1, "a")))
    bench.settle()
    return bench


def test_a_held_front_that_a_person_discarded_frees_what_was_left() -> None:
    bench = held_front()
    bench.ordering.recheck_hot_keys(set())
    assert bench.accept_key(bench.key_read(), []).take == []
    (left,) = bench.ordering.next_remainders(10)
    assert left == HotKeyRemainder("a", 0, 1)
    assert ids(bench.ordering.accept_remainder(left, found([2, 3, 4, 5])).take) == [2]


def test_a_front_that_the_table_still_names_is_waited_for() -> None:
    bench = held_front()
    bench.ordering.recheck_hot_keys({"a", "b"})
    assert (bench.ordering.next_key_reads(10), bench.ordering.next_remainders(10)) == ([], [])


def test_a_front_that_is_still_there_after_all_is_waited_for_again() -> None:
    """The table was read before the front was recorded in it."""
    bench = held_front()
    bench.ordering.recheck_hot_keys(set())
    assert bench.accept_key(bench.key_read(), [row(1, "a", waits=Waits.HELD)]).take == []
    assert (bench.ordering.next_key_reads(10), bench.ordering.next_remainders(10)) == ([], [])


def test_a_key_is_looked_at_again_once() -> None:
    bench = held_front()
    bench.ordering.recheck_hot_keys(set())
    key_read = bench.key_read()
    bench.ordering.recheck_hot_keys(set())
    assert bench.ordering.next_key_reads(10) == [], "it is being read"
    bench.ordering.abort_key_read(key_read)
    assert bench.key_read() == key_read


def test_a_front_that_is_in_hand_is_not_looked_for() -> None:
    bench = hot_bench(share=1)
    bench.send()
    bench.ordering.mark_failed(row(1, "a"), retry(row(1, "a")))
    bench.settle()
    bench.claim(bench.due(row(1, "a", waits=Waits.RETRY)))
    bench.ordering.recheck_hot_keys(set())
    assert bench.ordering.next_key_reads(10) == []
    assert finish(bench) == [1]
    assert bench.accept_key(bench.key_read(), []).take == []
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("a", 0, 1)]


def test_a_key_that_waits_for_nothing_is_not_looked_for() -> None:
    bench = hot_bench()
    finish(bench)
    bench.ordering.recheck_hot_keys(set())
    assert bench.ordering.next_key_reads(10) == []
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("a", 0, 2)]


# --- what waits behind what was left ---


def lagging() -> Bench:
    """A deferred message of the key came due and was parked; 3, 4 and 5 stand before it, and were left."""
    bench = hot_bench()
    bench.claim(bench.due(row(9, "a", waits=Waits.DEFERRED)))
    finish(bench)
    bench.accept_key(bench.key_read(), [row(9, "a", waits=Waits.PARKED)])
    return bench


def test_what_was_met_of_it_goes_before_more_is_met() -> None:
    bench = lagging()
    (left,) = bench.ordering.next_remainders(10)
    bench.claim(bench.ordering.accept_remainder(left, found([3, 4, 5])))
    assert bench.ordering.next_remainders(10) == []
    parked = [row(id, "a", waits=Waits.PARKED) for id in (3, 4, 9)]
    assert ids(bench.accept_key(bench.key_read(), parked).take) == [3, 4]


def test_what_waits_goes_when_all_that_was_left_is_gone() -> None:
    bench = lagging()
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.accept_remainder(left, found([], complete=True))
    assert ids(bench.accept_key(bench.key_read(), [row(9, "a", waits=Waits.PARKED)]).take) == [9]


def test_a_failed_read_of_a_key_that_is_crowded_no_more_leaves_it_wanted() -> None:
    bench = lagging()
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.load_hot_keys([0])
    assert bench.ordering.next_key_reads(10) == [], "it is being read"
    bench.ordering.abort_remainder(left)
    assert bench.key_read().key == "a"


def test_what_is_found_of_a_key_that_is_crowded_no_more_is_left_to_the_read_of_its_lane() -> None:
    bench = hot_bench()
    finish(bench)
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.load_hot_keys([0])
    assert bench.ordering.accept_remainder(left, found([3, 4])) == ReadDecision(())
    assert ids(bench.take(*rows(range(3, 6))).take) == [3, 4]


# --- several at a time ---


def test_no_more_keys_are_fetched_than_asked_for() -> None:
    bench = Bench(key_share=1, skips_keys=True)
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"), row(4, "b"))
    finish(bench)
    assert bench.ordering.next_remainders(1) == [HotKeyRemainder("a", 0, 1)]
    assert bench.ordering.next_remainders(10) == [HotKeyRemainder("b", 0, 3)]


def test_nothing_is_fetched_from_a_lane_into_which_something_goes_back() -> None:
    bench = Bench(key_share=1, skips_keys=True)
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"))
    first, other = bench.ordering.next_batch(2)
    bench.ordering.mark_delivered([first])
    bench.ordering.mark_returned([other])
    bench.settle()
    assert bench.ordering.next_remainders(10) == []


def test_what_is_found_while_something_goes_back_is_not_taken() -> None:
    bench = Bench(key_share=1, skips_keys=True)
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"))
    first, other = bench.ordering.next_batch(2)
    bench.ordering.mark_delivered([first])
    bench.settle()
    (left,) = bench.ordering.next_remainders(10)
    bench.ordering.mark_returned([other])
    assert bench.ordering.accept_remainder(left, found([2])) == ReadDecision(())


def test_a_hot_key_goes_out_whole_and_in_order() -> None:
    bench, sent = hot_bench(messages=20, share=3), list[int]()
    for _ in range(20):
        sent += finish(bench)
        for left in bench.ordering.next_remainders(10):
            bench.claim(bench.ordering.accept_remainder(left, found(range(left.after + 1, 21))))
    assert sent == list(range(1, 21))
    assert (bench.ordering.hot_keys, bench.ordering.in_flight) == ([], 0)
