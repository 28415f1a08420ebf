"""What goes back comes again first: given back, inherited, revoked, lost."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from pillarbox.contracts.store import Cursor, ReadResult
from pillarbox.message import Message, Waits
from pillarbox.relay.ordering import LONE_STRIKES, SUSPECT_STRIKES, ReadDecision
from tests.support.lanes.lane_bench import Bench, ids, non_empty, retry
from tests.support.lanes.lane_table import row

# --- given back ---


def test_what_was_not_delivered_goes_back_with_what_stands_behind_it() -> None:
    first, second, third = row(1, "a"), row(2, "a"), row(3, "b")
    bench = Bench()
    bench.take(first, second, third)
    bench.send()
    bench.ordering.mark_returned([first])
    assert non_empty(bench.settle()) == {"returned": [1, 2], "touched": [1]}
    assert bench.ordering.in_flight == 1


def test_a_retry_that_goes_back_blocks_its_key() -> None:
    """Reads of fresh messages do not show it, and would pass it."""
    first = row(1, "a", waits=Waits.RETRY)
    bench = Bench()
    bench.read()
    bench.ordering.block(0, "a", front=Waits.RETRY)
    assert bench.due(first).take == []
    bench.claim(bench.accept_key(bench.key_read(), [first]))
    assert bench.send() == [1]
    bench.ordering.mark_returned([first])
    bench.settle()
    assert bench.take(row(2, "a")) == ReadDecision([], [row(2, "a")])


def test_a_smaller_one_that_came_late_goes_back_too() -> None:
    """It stands before the one that was under way, and nobody would call it again."""
    under_way, late = row(5, "a"), row(2, "a")
    bench = Bench()
    bench.take(under_way)
    bench.send()
    bench.take(late)
    bench.ordering.mark_returned([under_way])
    assert sorted(bench.settle().returned) == [2, 5]


def test_a_lane_takes_no_news_before_it_is_read_from_its_start() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    partitions, _ = bench.ordering.begin_read()
    bench.ordering.mark_returned([first])
    answer = ReadResult([row(2, "a"), row(3)], Cursor({0: 3}), frozenset(partitions))
    assert bench.ordering.accept_read(answer, partitions) == ReadDecision([], [])


def test_the_lane_is_read_from_its_start_once_everything_is_back() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.mark_returned([first])
    assert bench.ordering.begin_read() == ([], set())
    bench.ordering.abort_read(())
    bench.settle()
    assert bench.ordering.begin_read() == ([0], {0})


def test_what_is_still_on_its_way_back_is_waited_for() -> None:
    first, second = row(1, "a"), row(2, "b")
    bench = Bench()
    bench.take(first, second)
    bench.send()
    bench.ordering.mark_returned([first])
    settlement, _ = bench.ordering.next_settlement(10)
    bench.ordering.mark_returned([second])
    bench.ordering.confirm_settlement(settlement)
    assert bench.ordering.begin_read() == ([], set())
    bench.ordering.abort_read(())
    bench.settle()
    assert bench.ordering.begin_read() == ([0], {0})


def test_a_read_from_the_start_that_failed_is_still_owed() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.mark_returned([first])
    bench.settle()
    _, restart = bench.ordering.begin_read()
    bench.ordering.abort_read(restart)
    assert bench.ordering.begin_read() == ([0], {0})


def test_a_claim_that_commits_after_something_went_back_goes_back_too() -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    later = bench.read(row(2, "a"))
    bench.ordering.mark_returned([first])
    bench.settle()
    bench.claim(later)
    assert bench.send() == []
    assert bench.settle().returned == [2]
    bench.take(first, row(2, "a"))
    assert bench.send() == [1]


def test_a_hot_key_of_any_length_can_be_given_back() -> None:
    bench = Bench(window=10_000, key_share=5_000)
    bench.take(*(row(number, "a") for number in range(1, 3_001)))
    bench.ordering.close()
    settlement, _ = bench.ordering.next_settlement(10)
    assert len(settlement.returned) == 3_000


# --- the gate ---


def test_a_closed_core_gives_back_what_is_unsent_and_lets_the_rest_finish() -> None:
    bench = Bench()
    bench.take(row(1, "a"), row(2, "a"), row(3, "b"), row(4))
    assert bench.send(1) == [1]
    bench.ordering.close()
    assert bench.send() == []
    bench.ordering.mark_delivered([row(1, "a")])
    settlement = bench.settle()
    assert (settlement.delivered, sorted(settlement.returned)) == ([1], [2, 3, 4])


def test_a_claim_that_commits_in_a_closed_core_goes_back() -> None:
    bench = Bench()
    offer = bench.read(row(1, "a"), row(2))
    bench.ordering.close()
    bench.claim(offer)
    assert sorted(bench.settle().returned) == [1, 2]


def test_reopened_every_lane_is_read_from_its_start() -> None:
    bench = Bench(lanes=[0, 1])
    bench.read()
    bench.ordering.close()
    bench.ordering.reopen()
    assert bench.ordering.begin_read() == ([0, 1], {0, 1})


# --- strikes ---


def strike(bench: Bench, *messages: Message) -> None:
    """Count a strike against these messages, which are being sent, and give them back."""
    bench.ordering.add_strikes(messages)
    bench.ordering.mark_returned(messages)
    bench.settle()


def test_a_message_is_sent_normally_after_the_first_strike_and_is_a_suspect_after_the_second() -> None:
    bench = Bench()
    for strikes in (0, 1):
        bench.take(row(1, "a"))
        assert bench.ordering.count_strikes(1) == strikes
        assert bench.send() == [1]
        strike(bench, row(1, "a"))
    bench.take(row(1, "a"), row(2, "b"))
    assert bench.send() == [2]
    assert bench.ordering.next_suspects(500) == [row(1, "a")]
    assert bench.ordering.next_suspects(500) == []


def test_a_new_message_under_the_id_of_one_that_the_database_lost_has_none_of_its_strikes() -> None:
    bench = Bench()
    for _ in range(2):
        bench.take(row(1, "a"))
        bench.ordering.next_batch(10)
        strike(bench, row(1, "a"))
    bench.take(msgspec.structs.replace(row(1, "b"), message_id=UUID(int=77)))
    assert bench.ordering.count_strikes(1) == 0
    assert bench.send() == [1]


def hunt(culprit: Message, suspects: Sequence[Message]) -> tuple[list[int], int]:
    """Send suspects until the culprit broke the connection alone. Return the sizes of the groups, and its strikes."""
    bench = Bench(window=2_000)
    bench.ordering.recover_claim(7, suspects, strikes=SUSPECT_STRIKES)
    bench.settle()
    bench.take(*suspects)
    sizes: list[int] = []
    while group := bench.ordering.next_suspects(500):
        sizes.append(len(group))
        if group == [culprit]:
            bench.ordering.add_strikes(group)
            break
        if culprit in group:
            strike(bench, *group)
            bench.take(*group)
        else:
            bench.ordering.mark_delivered(group)
            bench.settle()
    return sizes, bench.ordering.count_strikes(culprit.id)


def test_each_strike_splits_the_suspects_until_the_culprit_is_alone() -> None:
    suspects = [row(number, f"key-{number}") for number in range(1, 301)]
    assert hunt(suspects[0], suspects) == ([256, 44, *[32] * 8, *[4] * 8, 1], LONE_STRIKES + 1)


def test_a_small_group_is_split_at_once() -> None:
    suspects = [row(number, f"key-{number}") for number in range(1, 5)]
    assert hunt(suspects[1], suspects) == ([4, 1, 1], LONE_STRIKES + 1)


def test_a_suspect_without_company_counts_as_alone() -> None:
    assert hunt(row(1), [row(1)]) == ([1], LONE_STRIKES + 1)


def test_suspects_of_one_key_go_one_after_the_other() -> None:
    suspects = [row(1, "a"), row(2, "a"), row(3, "b")]
    bench = Bench()
    bench.ordering.recover_claim(7, suspects, strikes=SUSPECT_STRIKES)
    bench.settle()
    bench.take(*suspects)
    assert ids(bench.ordering.next_suspects(500)) == [1, 3]
    assert bench.ordering.next_suspects(500) == []
    bench.ordering.mark_delivered([row(1, "a")])
    assert ids(bench.ordering.next_suspects(500)) == [2]


def test_the_bytes_of_suspects_are_bounded_too() -> None:
    bench = Bench(window=100, window_bytes=1_000)
    suspects = [row(number, payload=bytes(500)) for number in range(1, 5)]
    bench.ordering.recover_claim(7, suspects, strikes=SUSPECT_STRIKES)
    bench.settle()
    bench.take(*suspects[:3])
    assert bench.ordering.room_bytes == 500
    bench.take(suspects[3])
    assert not bench.ordering.has_room


def test_what_waits_as_a_suspect_takes_no_room() -> None:
    """With a window of one it would keep out every message that could show that the destination works."""
    bench = Bench(window=1)
    for _ in range(SUSPECT_STRIKES):
        bench.take(row(1, "a"))
        assert bench.send() == [1]
        strike(bench, row(1, "a"))
    bench.take(row(1, "a"))
    assert bench.ordering.has_suspects
    assert (bench.ordering.room, bench.ordering.has_room) == (1, True)
    bench.take(row(2, "b"))
    assert bench.send() == [2]
    assert not bench.ordering.has_room
    assert bench.ordering.next_suspects(500) == [row(1, "a")]


@pytest.mark.parametrize("is_delivered", [True, False])
def test_an_answer_refunds_the_strikes(is_delivered: bool) -> None:
    first = row(1, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.ordering.add_strikes([first])
    if is_delivered:
        bench.ordering.mark_delivered([first])
    else:
        bench.ordering.mark_failed(first, retry(first))
    bench.settle()
    assert not bench.ordering.has_strikes


def test_a_group_with_a_claim_of_its_own_leaves_those_it_was_in() -> None:
    bench = Bench()
    bench.ordering.recover_claim(7, [row(1, "a"), row(2, "b")], strikes=SUSPECT_STRIKES)
    bench.settle()
    first = bench.claim(bench.read(row(1, "a")))
    second = bench.claim(bench.read(row(2, "b"), row(3, "c")))
    group = bench.ordering.next_suspects(500)
    assert group == [row(1, "a"), row(2, "b")]
    left = non_empty(bench.ordering.confirm_group_claim(group, 99))
    assert left == {"returned": [1, 2], "finished": [first], "touched": [second]}
    bench.send()
    bench.ordering.mark_delivered([*group, row(3, "c")])
    assert sorted(bench.settle().finished) == [second, 99]


# --- inherited ---


def test_what_is_inherited_goes_back_first_and_keeps_its_strikes() -> None:
    """A later message may have been claimed when an earlier one of its key had just gone back."""
    bench = Bench()
    bench.ordering.recover_claim(7, [row(2, "a")], strikes=1)
    assert bench.send() == []
    assert non_empty(bench.settle()) == {"returned": [2], "finished": [7]}
    bench.take(row(1, "a"), row(2, "a"))
    assert bench.ordering.count_strikes(2) == 1
    assert bench.send() == [1]


def test_lone_ones_that_a_takeover_puts_together_keep_their_deaths() -> None:
    """A deadly one would never be given up if others that were sent alone wait to be settled at each death."""
    bench = Bench()
    bench.ordering.recover_claim(7, [row(1), row(2)], strikes=LONE_STRIKES + 2)
    bench.settle()
    bench.take(row(1), row(2))
    assert [bench.ordering.count_strikes(id) for id in (1, 2)] == [LONE_STRIKES + 2] * 2


def test_what_is_inherited_does_not_pass_a_message_of_its_key_that_waits() -> None:
    bench = Bench()
    bench.ordering.recover_claim(7, [row(2, "a")], strikes=1)
    bench.ordering.block(0, "a", front=Waits.RETRY)
    bench.settle()
    assert ids(bench.read(row(2, "a")).park) == [2]
    assert bench.send() == []


# --- lanes ---


def test_a_new_lane_is_read_from_its_start_and_nothing_of_it_is_taken_before() -> None:
    bench = Bench(lanes=[0])
    partitions, _ = bench.ordering.begin_read()
    bench.ordering.grant(1)
    answer = ReadResult([row(1, lane=1)], Cursor({1: 1}), frozenset(partitions))
    assert bench.ordering.accept_read(answer, partitions).take == []
    assert bench.ordering.begin_read() == ([0, 1], {1})


def test_a_revoked_lane_finishes_what_is_under_way_and_gives_back_the_rest() -> None:
    bench = Bench(lanes=[0, 1])
    bench.take(row(1, "a"), row(2, "a"), row(3, "b", lane=1))
    bench.send(1)
    bench.ordering.revoke(0)
    assert bench.ordering.partitions == [1]
    assert bench.settle().returned == [2]
    assert not bench.ordering.is_drained(0)
    bench.ordering.mark_delivered([row(1, "a")])
    bench.settle()
    assert bench.ordering.is_drained(0)
    assert bench.send() == [3]


def test_a_dropped_lane_is_forgotten_with_its_outcomes() -> None:
    bench = Bench(lanes=[0, 1])
    bench.take(row(1, "a"), row(2, "a"), row(3, "b", lane=1))
    bench.send()
    bench.ordering.mark_delivered([row(1, "a"), row(3, "b", lane=1)])
    bench.ordering.drop([0])
    assert non_empty(bench.settle()) == {"delivered": [3], "finished": [1]}
    assert bench.ordering.in_flight == 0
    assert bench.send() == []


def test_a_settlement_that_was_refused_keeps_only_the_lanes_that_are_ours() -> None:
    bench = Bench(lanes=[0, 1])
    bench.take(row(1, "a"), row(3, "b", lane=1))
    bench.send()
    bench.ordering.mark_delivered([row(1, "a"), row(3, "b", lane=1)])
    settlement, lanes = bench.ordering.next_settlement(10)
    assert lanes == {0, 1}
    bench.ordering.drop([0])
    bench.ordering.abort_settlement(settlement)
    assert bench.settle().delivered == [3]


def test_blocked_keys_of_lanes_that_are_not_ours_are_not_wanted() -> None:
    bench = Bench(lanes=[0])
    bench.read()
    bench.ordering.block(1, "a", front=Waits.PARKED)
    assert bench.ordering.next_key_reads(10) == []


def test_a_revoked_lane_forgets_what_it_wanted_to_read() -> None:
    bench = Bench(lanes=[0])
    bench.read()
    bench.ordering.block(0, "a", front=Waits.PARKED)
    bench.ordering.revoke(0)
    assert bench.ordering.next_key_reads(10) == []


def test_what_nobody_waits_for_is_dropped_and_what_is_known_is_kept() -> None:
    bench = Bench()
    bench.take(row(1, "a"), row(2, "b"))
    bench.send()
    bench.ordering.mark_delivered([row(2, "b")])
    bench.ordering.drop_unanswered()
    assert bench.settle().delivered == [2]
    assert bench.ordering.in_flight == 0


# --- claims ---


def test_what_is_dropped_stands_in_no_line_any_more() -> None:
    """Its key may be stopped: when that is recorded the next one is looked for."""
    first, second = row(1, "a"), row(2, "a")
    bench = Bench()
    bench.take(first)
    bench.send()
    bench.read(second)
    bench.ordering.mark_failed(first, retry(first))
    bench.ordering.drop_unanswered()
    assert [trouble.message_id for trouble in bench.settle().failures] == [1]
    assert bench.ordering.in_flight == 0
    bench.ordering.block(0, "a", front=Waits.PARKED)
    assert bench.key_read().key == "a", "nothing of it is thought to be in hand"


def test_a_claim_is_finished_when_its_last_message_leaves() -> None:
    bench = Bench()
    bench.take(row(1), row(2))
    bench.send()
    bench.ordering.mark_delivered([row(1)])
    assert non_empty(bench.settle()) == {"delivered": [1], "touched": [1]}
    bench.ordering.mark_delivered([row(2)])
    assert non_empty(bench.settle()) == {"delivered": [2], "finished": [1]}


def test_deliveries_are_settled_in_portions_and_trouble_at_once() -> None:
    bench = Bench()
    bench.take(row(1), row(2), row(3))
    bench.send()
    bench.ordering.mark_delivered([row(1), row(2)])
    bench.ordering.mark_failed(row(3), retry(row(3)))
    settlement, _ = bench.ordering.next_settlement(1)
    assert (settlement.delivered, len(settlement.failures)) == ([1], 1)
