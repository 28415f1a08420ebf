"""The verdict on each kind of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from msgspec.structs import replace

from proof.crash.consumer import Arrival
from proof.crash.judge import Evidence, StoredMessage, judge
from proof.crash.scenarios import Scenario
from proof.judge import NumberedRow

_SCENARIO: Final = Scenario(load=())
_SUBJECTS: Final = ("a/1", "a/2", "a/3", "b/1")


def _parse_row(subject: str) -> NumberedRow:
    key, number = subject.split("/")
    return NumberedRow(subject, key, int(number))


def _make_arrivals(subjects: Sequence[str], *, status: int = 204) -> list[Arrival]:
    rows = [_parse_row(subject) for subject in subjects]
    return [Arrival(row.subject, row.key, row.number, status, 0) for row in rows]


def _make_stored(state: str, *subjects: str, attempts: int = 0) -> list[StoredMessage]:
    return [StoredMessage(subject, state, attempts) for subject in subjects]


@pytest.fixture
def evidence() -> Evidence:
    """Four messages of two keys, all as it should be."""
    return Evidence(
        committed=[_parse_row(subject) for subject in _SUBJECTS],
        arrivals=_make_arrivals(_SUBJECTS),
        stored=_make_stored("delivered", *_SUBJECTS),
    )


def test_all_as_it_should_be(evidence: Evidence) -> None:
    verdict = judge(evidence, _SCENARIO)
    assert verdict.holds
    assert (verdict.lost, verdict.ghosts, verdict.out_of_order, verdict.duplicates) == (0, 0, 0, 0)


def test_what_was_committed_and_is_nowhere_is_lost(evidence: Evidence) -> None:
    gone = replace(
        evidence, arrivals=_make_arrivals(("a/1", "a/2", "b/1")), stored=_make_stored("delivered", "a/1", "a/2", "b/1")
    )
    assert judge(gone, _SCENARIO).lost == 1


def test_what_is_said_to_be_delivered_and_was_not_accepted_is_lost(evidence: Evidence) -> None:
    refused = [*_make_arrivals(("a/1", "a/2", "b/1")), *_make_arrivals(("a/3",), status=500)]
    assert judge(replace(evidence, arrivals=refused), _SCENARIO).lost == 1


def test_what_is_kept_as_failed_is_not_lost(evidence: Evidence) -> None:
    scenario = replace(_SCENARIO, end_states={"a/2": "failed"})
    stored = [*_make_stored("delivered", "a/1", "a/3", "b/1"), *_make_stored("failed", "a/2", attempts=1)]
    arrivals = [*_make_arrivals(("a/1",)), *_make_arrivals(("a/2",), status=422), *_make_arrivals(("a/3", "b/1"))]
    failed = replace(evidence, stored=stored, arrivals=arrivals)
    assert judge(failed, scenario).holds
    assert judge(failed, _SCENARIO).faults == ["a/2 is failed, and should be delivered"]


@pytest.mark.parametrize("where", ["arrivals", "stored"])
def test_what_was_never_committed_is_a_ghost_wherever_it_is(evidence: Evidence, where: str) -> None:
    ghost = replace(evidence, committed=evidence.committed[:-1], **{where: getattr(evidence, where)[:-1]})
    assert judge(ghost, _SCENARIO).ghosts == 1


def test_a_later_message_that_is_accepted_first_is_out_of_order(evidence: Evidence) -> None:
    overtaken = replace(evidence, arrivals=_make_arrivals(("a/1", "a/3", "b/1", "a/2")))
    assert judge(overtaken, _SCENARIO).out_of_order == 1
    assert judge(overtaken, replace(_SCENARIO, redriven=["a/2"])).out_of_order == 0


def test_a_repeat_is_counted_and_is_not_out_of_order(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, arrivals=_make_arrivals(("a/1", "a/2", "a/1", "a/3", "b/1", "a/2"))), _SCENARIO)
    assert verdict.holds
    assert verdict.duplicates == 2


def test_what_was_refused_first_is_not_yet_delivered(evidence: Evidence) -> None:
    arrivals = [*_make_arrivals(("a/1",), status=500), *_make_arrivals(("a/2", "a/1", "a/3", "b/1"))]
    assert judge(replace(evidence, arrivals=arrivals), _SCENARIO).out_of_order == 1


@pytest.mark.parametrize("state", ["pending", "sending", "failed"])
def test_a_message_that_did_not_end_as_it_should_is_a_fault(evidence: Evidence, state: str) -> None:
    stuck = replace(evidence, stored=[*_make_stored("delivered", "a/1", "a/2", "a/3"), *_make_stored(state, "b/1")])
    assert judge(stuck, _SCENARIO).faults == [f"b/1 is {state}, and should be delivered"]


def test_a_message_that_is_there_twice_is_a_fault(evidence: Evidence) -> None:
    twice = replace(evidence, stored=[*evidence.stored, *_make_stored("pending", "b/1")])
    assert judge(twice, _SCENARIO).faults == ["b/1 is delivered and pending, and should be delivered"]


def test_what_is_cleaned_away_must_have_been_delivered(evidence: Evidence) -> None:
    scenario = replace(_SCENARIO, purges=True, end_states={"b/1": "failed"})
    assert judge(replace(evidence, stored=()), scenario).faults == ["b/1 is nowhere, and should be failed"]


def test_what_is_deleted_must_be_in_the_archive(evidence: Evidence) -> None:
    scenario = replace(_SCENARIO, purges=True, archives=True)
    deleted = replace(evidence, stored=_make_stored("delivered", "a/1", "a/2"), archived=["a/3"])
    assert judge(deleted, scenario).faults == ["b/1 was deleted, and is not in the archive"]


def test_what_was_recorded_as_delivered_must_not_come_again(evidence: Evidence) -> None:
    recorded = replace(evidence, recorded=["a/1"], recorded_at=7)
    again = [replace(arrival, at=8) for arrival in _make_arrivals(("a/1", "a/2"))]
    assert judge(recorded, _SCENARIO).holds
    assert judge(replace(recorded, arrivals=[*evidence.arrivals, *again]), _SCENARIO).faults == [
        "a/1 was recorded as delivered, and was sent again"
    ]


def test_only_refusals_spend_attempts(evidence: Evidence) -> None:
    stored = [*_make_stored("delivered", "a/1", "a/2", "a/3"), *_make_stored("delivered", "b/1", attempts=2)]
    once = replace(evidence, stored=stored, arrivals=[*_make_arrivals(("b/1",), status=500), *evidence.arrivals])
    assert judge(once, _SCENARIO).faults == ["b/1 spent 2 attempts, and was refused 1 times"]
    away = replace(evidence, stored=stored, arrivals=[*_make_arrivals(("b/1", "b/1"), status=503), *evidence.arrivals])
    assert judge(away, _SCENARIO).faults == ["b/1 spent 2 attempts, and was refused 0 times"]


def test_nothing_may_be_left_behind(evidence: Evidence) -> None:
    left = replace(evidence, claims=1, owned_lanes=64, exit_code=1)
    assert judge(left, _SCENARIO).faults == [
        "1 claims are left",
        "64 lanes are owned by nobody alive",
        "the relay that went on ended with code 1",
    ]


def test_repeats_stay_within_what_the_scenario_says(evidence: Evidence) -> None:
    six = replace(_SCENARIO, repeats=(1, 1))
    repeated = replace(evidence, arrivals=_make_arrivals([*_SUBJECTS, "a/1", "a/2"]))
    assert judge(evidence, six).faults == ["0 messages came twice, and at least 1 should have"]
    assert judge(repeated, six).faults == ["2 messages came twice, and at most 1 should have"]
    assert judge(repeated, six, alone=False).holds
    assert judge(replace(repeated, lapses=1), six).holds  # a lease that a busy machine let run out repeats, too


def test_a_deadly_message_is_given_up_neither_too_early_nor_too_late(evidence: Evidence) -> None:
    deadly = replace(_SCENARIO, deaths=(3, 4))
    assert judge(evidence, _SCENARIO).holds
    assert all(judge(replace(evidence, deaths=deaths), deadly).holds for deaths in (3, 4))
    assert judge(replace(evidence, deaths=2), deadly).faults == [
        "2 relays died at the point, and at least 3 should have"
    ]
    assert judge(replace(evidence, deaths=5), deadly).faults == [
        "5 relays died at the point, and at most 4 should have"
    ]
    assert judge(replace(evidence, deaths=2, lapses=1), deadly).holds  # a lease that ran out counts like a death


def test_what_a_writer_and_an_operator_left_behind(evidence: Evidence) -> None:
    scenario = replace(_SCENARIO, committed=2, still_failed=3)
    assert judge(replace(evidence, still_failed=1), scenario).faults == [
        "0 messages of the writer are committed, and 2 should be",
        "1 messages were failed when the operator had died, and 3 should have been",
    ]
