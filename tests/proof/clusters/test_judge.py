"""The judge of failovers: a cluster that loses, invents or reorders a message is caught."""

from __future__ import annotations

import msgspec
import pytest

from proof.clusters.judge import Evidence, find_pause, judge
from proof.judge import NumberedRow


def row(subject: str) -> NumberedRow:
    key, _, number = subject.partition("/")
    return NumberedRow(subject, key, int(number))


SUBJECTS = ["a/1", "a/2", "a/3", "b/1"]
ROWS = [row(subject) for subject in SUBJECTS]
CLEAN = Evidence(
    attempted=[*SUBJECTS, "a/4"], acknowledged=SUBJECTS, committed=ROWS, delivered=SUBJECTS, arrivals=ROWS,
    exit_codes=[0, 0],
)  # fmt: skip


def test_a_clean_failover_holds() -> None:
    result = judge(CLEAN)
    assert result.verdict.holds
    assert result.undone == 0


def test_a_commit_of_unknown_outcome_may_be_there_or_not() -> None:
    there = msgspec.structs.replace(CLEAN, committed=[*ROWS, row("a/4")], arrivals=[*ROWS, row("a/4")])
    assert judge(there).verdict.holds  # and CLEAN is the case where it is not


def test_a_message_that_never_arrives_is_lost() -> None:
    result = judge(msgspec.structs.replace(CLEAN, arrivals=[row("a/1"), row("a/3"), row("b/1")]))
    assert (result.verdict.lost, result.verdict.holds) == (1, False)


def test_a_message_of_unknown_outcome_that_was_committed_is_lost_too() -> None:
    assert judge(msgspec.structs.replace(CLEAN, committed=[*ROWS, row("a/4")])).verdict.lost == 1


def test_an_acknowledged_commit_that_is_gone_is_lost() -> None:
    gone = msgspec.structs.replace(CLEAN, committed=ROWS[1:], arrivals=ROWS[1:], delivered=SUBJECTS[1:])
    assert judge(gone).verdict.lost == 1


def test_a_message_that_nobody_committed_is_a_ghost() -> None:
    assert judge(msgspec.structs.replace(CLEAN, arrivals=[*ROWS, row("a/4")])).verdict.ghosts == 1


def test_overtaken_messages_are_out_of_order_and_repeats_are_not() -> None:
    swapped = [row("a/2"), row("a/1"), row("a/3"), row("b/1")]
    assert judge(msgspec.structs.replace(CLEAN, arrivals=swapped)).verdict.out_of_order == 1
    repeated = judge(msgspec.structs.replace(CLEAN, arrivals=[*ROWS, row("a/1")]))
    assert (repeated.verdict.duplicates, repeated.verdict.holds) == (1, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failed": 2}, "2 messages are failed"),
        ({"exit_codes": [0, 1]}, "ended with 1"),
        ({"exit_codes": [None]}, "ended with None"),
        ({"arrivals": [], "committed": [], "acknowledged": [], "delivered": []}, "nothing arrived"),
    ],
)
def test_what_else_is_wrong_is_a_fault(change: dict[str, object], words: str) -> None:
    verdict = judge(msgspec.structs.replace(CLEAN, **change)).verdict
    assert not verdict.holds
    assert words in " ".join(verdict.faults)


# --- clusters that may take back what they acknowledged ---


def test_what_an_asynchronous_store_took_back_is_counted_apart() -> None:
    gone = msgspec.structs.replace(CLEAN, committed=ROWS[:-1])  # b/1 was delivered, too
    result = judge(gone, may_undo=True)
    assert result.verdict.holds
    assert result.undone == 1
    assert not judge(gone).verdict.holds


def test_what_an_asynchronous_broker_took_back_is_counted_apart() -> None:
    gone = msgspec.structs.replace(CLEAN, arrivals=ROWS[:-1])
    result = judge(gone, may_undo=True)
    assert (result.verdict.holds, result.undone) == (True, 1)


def test_an_asynchronous_cluster_excuses_nothing_else() -> None:
    # Never delivered, although the store still has it: that is ours.
    undelivered = msgspec.structs.replace(CLEAN, arrivals=ROWS[:-1], delivered=SUBJECTS[:-1])
    assert judge(undelivered, may_undo=True).verdict.lost == 1
    # And nobody ever wrote it.
    invented = msgspec.structs.replace(CLEAN, arrivals=[*ROWS, row("z/1")])
    assert judge(invented, may_undo=True).verdict.ghosts == 1


# --- the pause ---


def test_the_pause_is_the_longest_after_the_fault() -> None:
    assert find_pause([1.0, 9.0, 10.0, 14.0, 14.5], since=9.5) == 4.0
    assert find_pause([12.5, 10.0, 11.0], since=9.5) == 1.5
    assert find_pause([1.0], since=9.5) == 0.0
