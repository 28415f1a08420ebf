"""What the answers of one send come to."""

from __future__ import annotations

import pytest

from pillarbox.brokers.send_batch import DELIVERED, Answer, NotAnswered, collect_outcomes
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable

CUT = NotAnswered("cut")
NOWHERE = NotAnswered("no stream", is_outage=True)
REJECTED = Outcome(False, "too large", rejected=True)
REFUSED = Outcome(False, "full")
LATE = "no answer in time"
SILENT = Outcome(False, LATE, unanswered=True, not_now=True)


def test_answers_are_passed_on() -> None:
    assert collect_outcomes([DELIVERED, REFUSED, REJECTED], late=LATE) == [DELIVERED, REFUSED, REJECTED]


def test_what_was_not_answered_in_time_says_so() -> None:
    assert collect_outcomes([DELIVERED, None], late=LATE) == [DELIVERED, SILENT]
    assert collect_outcomes([None, None], late=LATE) == [SILENT] * 2


@pytest.mark.parametrize("said", [DELIVERED, REFUSED, None])
@pytest.mark.parametrize("interrupted", [CUT, NOWHERE])
def test_what_is_interrupted_beside_answers_is_lost(said: Answer | None, interrupted: NotAnswered) -> None:
    first, second = collect_outcomes([said, interrupted], late=LATE)
    assert not first.lost
    is_outage = interrupted.is_outage
    assert second == Outcome(False, interrupted.reason, lost=not is_outage, not_now=is_outage)


def test_a_break_before_any_answer_is_under_way() -> None:
    with pytest.raises(TransportUnavailable, match="cut") as broken:
        collect_outcomes([CUT, CUT], late=LATE)
    assert broken.value.mid_send


def test_a_break_before_anything_was_written_blames_nobody() -> None:
    with pytest.raises(TransportUnavailable) as broken:
        collect_outcomes([CUT], late=LATE, is_written=False)
    assert not broken.value.mid_send


def test_missing_topology_blames_nobody() -> None:
    with pytest.raises(TransportUnavailable, match="no stream") as away:
        collect_outcomes([NOWHERE, NOWHERE], late=LATE)
    assert not away.value.mid_send


def test_a_rejection_is_no_sign_of_life() -> None:
    with pytest.raises(TransportUnavailable):
        collect_outcomes([REJECTED, CUT], late=LATE)
