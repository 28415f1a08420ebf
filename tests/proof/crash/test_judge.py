"""What the judge says to each kind of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from msgspec.structs import replace

from proof.crash.consumer import Arrival
from proof.crash.stories import Story
from proof.judge import CommittedRow, Evidence, Kept, judge

_STORY: Final = Story(load=())
_SUBJECTS: Final = ("a/1", "a/2", "a/3", "b/1")


def _parcelled(subject: str) -> CommittedRow:
    key, number = subject.split("/")
    return CommittedRow(subject, key, int(number))


def _arrived(subjects: Sequence[str], *, status: int = 204) -> list[Arrival]:
    rows = [_parcelled(subject) for subject in subjects]
    return [Arrival(row.subject, row.key, row.number, status, 0) for row in rows]


def _kept(state: str, *subjects: str, attempts: int = 0) -> list[Kept]:
    return [Kept(subject, state, attempts) for subject in subjects]


@pytest.fixture
def evidence() -> Evidence:
    """Four messages of two keys, all as it should be."""
    return Evidence(
        committed=[_parcelled(subject) for subject in _SUBJECTS],
        arrivals=_arrived(_SUBJECTS),
        kept=_kept("delivered", *_SUBJECTS),
    )


def test_all_as_it_should_be(evidence: Evidence) -> None:
    verdict = judge(evidence, _STORY)
    assert verdict.holds
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order, verdict.duplicates) == (0, 0, 0, 0)


def test_what_was_committed_and_is_nowhere_is_lost(evidence: Evidence) -> None:
    gone = replace(evidence, arrivals=_arrived(("a/1", "a/2", "b/1")), kept=_kept("delivered", "a/1", "a/2", "b/1"))
    assert judge(gone, _STORY).lost == 1


def test_what_is_said_to_be_delivered_and_was_not_accepted_is_lost(evidence: Evidence) -> None:
    refused = [*_arrived(("a/1", "a/2", "b/1")), *_arrived(("a/3",), status=500)]
    assert judge(replace(evidence, arrivals=refused), _STORY).lost == 1


def test_what_is_kept_as_failed_is_not_lost(evidence: Evidence) -> None:
    story = replace(_STORY, ends={"a/2": "failed"})
    kept = [*_kept("delivered", "a/1", "a/3", "b/1"), *_kept("failed", "a/2", attempts=1)]
    arrivals = [*_arrived(("a/1",)), *_arrived(("a/2",), status=422), *_arrived(("a/3", "b/1"))]
    failed = replace(evidence, kept=kept, arrivals=arrivals)
    assert judge(failed, story).holds
    assert judge(failed, _STORY).faults == ["a/2 is failed, and should be delivered"]


@pytest.mark.parametrize("where", ["arrivals", "kept"])
def test_what_was_never_committed_is_a_ghost_wherever_it_is(evidence: Evidence, where: str) -> None:
    ghost = replace(evidence, committed=evidence.committed[:-1], **{where: getattr(evidence, where)[:-1]})
    assert judge(ghost, _STORY).ghosts == 1


def test_a_later_message_that_is_accepted_first_is_out_of_order(evidence: Evidence) -> None:
    overtaken = replace(evidence, arrivals=_arrived(("a/1", "a/3", "b/1", "a/2")))
    assert judge(overtaken, _STORY).out_of_order == 1
    assert judge(overtaken, replace(_STORY, redriven=["a/2"])).out_of_order == 0


def test_a_repeat_is_counted_and_is_not_out_of_order(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, arrivals=_arrived(("a/1", "a/2", "a/1", "a/3", "b/1", "a/2"))), _STORY)
    assert verdict.holds
    assert verdict.duplicates == 2


def test_what_was_refused_first_is_not_yet_delivered(evidence: Evidence) -> None:
    arrivals = [*_arrived(("a/1",), status=500), *_arrived(("a/2", "a/1", "a/3", "b/1"))]
    assert judge(replace(evidence, arrivals=arrivals), _STORY).out_of_order == 1


@pytest.mark.parametrize(("state", "told"), [("pending", "pending"), ("sending", "sending"), ("failed", "failed")])
def test_a_message_that_did_not_end_as_it_should_is_told(evidence: Evidence, state: str, told: str) -> None:
    stuck = replace(evidence, kept=[*_kept("delivered", "a/1", "a/2", "a/3"), *_kept(state, "b/1")])
    assert judge(stuck, _STORY).faults == [f"b/1 is {told}, and should be delivered"]


def test_a_message_that_is_there_twice_is_told(evidence: Evidence) -> None:
    twice = replace(evidence, kept=[*evidence.kept, *_kept("pending", "b/1")])
    assert judge(twice, _STORY).faults == ["b/1 is delivered and pending, and should be delivered"]


def test_what_is_cleaned_away_must_have_been_delivered(evidence: Evidence) -> None:
    story = replace(_STORY, purges=True, ends={"b/1": "failed"})
    assert judge(replace(evidence, kept=()), story).faults == ["b/1 is nowhere, and should be failed"]


def test_what_is_deleted_must_be_in_the_archive(evidence: Evidence) -> None:
    story = replace(_STORY, purges=True, archives=True)
    deleted = replace(evidence, kept=_kept("delivered", "a/1", "a/2"), archived=["a/3"])
    assert judge(deleted, story).faults == ["b/1 was deleted, and is not in the archive"]


def test_what_was_recorded_as_delivered_must_not_come_again(evidence: Evidence) -> None:
    recorded = replace(evidence, recorded=["a/1"], looked_at=7)
    again = [replace(arrival, at=8) for arrival in _arrived(("a/1", "a/2"))]
    assert judge(recorded, _STORY).holds
    assert judge(replace(recorded, arrivals=[*evidence.arrivals, *again]), _STORY).faults == [
        "a/1 was recorded as delivered, and was sent again"
    ]


def test_only_refusals_spend_attempts(evidence: Evidence) -> None:
    kept = [*_kept("delivered", "a/1", "a/2", "a/3"), *_kept("delivered", "b/1", attempts=2)]
    once = replace(evidence, kept=kept, arrivals=[*_arrived(("b/1",), status=500), *evidence.arrivals])
    assert judge(once, _STORY).faults == ["b/1 spent 2 attempts, and was refused 1 times"]
    away = replace(evidence, kept=kept, arrivals=[*_arrived(("b/1", "b/1"), status=503), *evidence.arrivals])
    assert judge(away, _STORY).faults == ["b/1 spent 2 attempts, and was refused 0 times"]


def test_nothing_may_be_left_behind(evidence: Evidence) -> None:
    left = replace(evidence, claims=1, owned_lanes=64, exit_code=1)
    assert judge(left, _STORY).faults == [
        "1 claims are left",
        "64 lanes are owned by nobody alive",
        "the relay that went on ended with code 1",
    ]


def test_repeats_stay_within_what_the_story_says(evidence: Evidence) -> None:
    six = replace(_STORY, repeats=(1, 1))
    repeated = replace(evidence, arrivals=_arrived([*_SUBJECTS, "a/1", "a/2"]))
    assert judge(evidence, six).faults == ["0 messages came twice, and at least 1 should have"]
    assert judge(repeated, six).faults == ["2 messages came twice, and at most 1 should have"]
    assert judge(repeated, six, alone=False).holds
    assert judge(replace(repeated, lapses=1), six).holds  # a lease that a busy machine let run out repeats, too


def test_what_a_writer_and_an_operator_left_behind(evidence: Evidence) -> None:
    story = replace(_STORY, booked=2, left=3)
    assert judge(replace(evidence, left=1), story).faults == [
        "0 parcels of the writer are committed, and 2 should be",
        "1 messages were failed when the operator had died, and 3 should have been",
    ]
