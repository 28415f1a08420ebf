"""The verdict on each kind of evidence."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from proof.chain.run import Evidence, judge
from proof.judge import NumberedRow, Verdict

_SUBJECTS: Final = ("a/1", "a/2", "b/1", "a/3")


def effects(*subjects: str) -> list[NumberedRow]:
    return [NumberedRow(subject, *_parts(subject)) for subject in subjects]


def _parts(subject: str) -> tuple[str, int]:
    key, number = subject.split("/")
    return key, int(number)


@pytest.fixture
def evidence() -> Evidence:
    """Four messages of two keys, all as it should be."""
    done = {"B": effects(*_SUBJECTS), "C": effects(*_SUBJECTS)}
    return Evidence(committed=effects(*_SUBJECTS), effects=done, duplicates=2)


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.ghosts, verdict.twice, verdict.out_of_order


def with_c(evidence: Evidence, *subjects: str) -> Verdict:
    return judge(replace(evidence, effects={**evidence.effects, "C": effects(*subjects)}))


def test_once_and_in_order_holds(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert verdict.holds
    assert counts(verdict) == (0, 0, 0, 0)
    assert verdict.duplicates == 2


def test_keys_may_pass_each_other(evidence: Evidence) -> None:
    assert with_c(evidence, "b/1", "a/1", "a/2", "a/3").holds


def test_what_has_no_effect_is_lost(evidence: Evidence) -> None:
    verdict = with_c(evidence, "a/1", "a/2", "b/1")
    assert counts(verdict) == (1, 0, 0, 0)
    assert not verdict.holds


def test_what_was_never_committed_is_a_ghost(evidence: Evidence) -> None:
    verdict = with_c(evidence, *_SUBJECTS, "b/2")
    assert counts(verdict) == (0, 1, 0, 0)
    assert not verdict.holds


def test_a_second_effect_is_counted_and_is_no_overtaking(evidence: Evidence) -> None:
    verdict = with_c(evidence, *_SUBJECTS, "a/1", "a/1")
    assert counts(verdict) == (0, 0, 2, 0)
    assert not verdict.holds


def test_an_effect_after_a_later_one_of_its_key_is_out_of_order(evidence: Evidence) -> None:
    verdict = with_c(evidence, "a/2", "a/1", "b/1", "a/3")
    assert counts(verdict) == (0, 0, 0, 1)
    assert verdict.overtaken == ["a/1 after 2 in C"]
    assert not verdict.holds


def test_what_is_kept_as_failed_is_a_fault(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, failed=["C keeps 7 as failed: no"]))
    assert verdict.faults == ["C keeps 7 as failed: no"]
    assert not verdict.holds


def test_a_run_without_a_duplicate_proves_nothing(evidence: Evidence) -> None:
    verdict = judge(replace(evidence, duplicates=0))
    assert verdict.faults == ["no message came again, so nothing is proven"]
    assert not verdict.holds


def test_a_fault_of_its_course_is_a_fault(evidence: Evidence) -> None:
    assert not judge(evidence, faults=["relay A never died at claimed"]).holds
