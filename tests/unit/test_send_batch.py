"""What the answers of one send come to."""

from __future__ import annotations

import pytest

from pillarbox.brokers.send_batch import (
    DELIVERED,
    UNSENT,
    Answer,
    NotAnswered,
    SendBatch,
    collect_outcomes,
    find_runs,
    stop_runs,
)
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample

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


async def test_the_first_answer_to_a_message_counts() -> None:
    batch = SendBatch[Answer]([None, REJECTED, None])
    assert batch.answer(0, DELIVERED)
    assert not batch.answer(0, REFUSED)
    assert not batch.answer(1, REFUSED)
    assert (batch.unanswered, batch.done.done()) == (1, False)
    batch.answer_rest(CUT)
    assert (batch.answers, batch.unanswered, batch.done.done()) == ([DELIVERED, REJECTED, CUT], 0, True)


def test_a_run_is_several_messages_of_one_key() -> None:
    messages = [sample(key=key) for key in ("a", "b", None, "a", "c", None, "b", "a")]
    assert find_runs(messages) == [[0, 3, 7], [1, 6]]
    assert find_runs([sample(key=key) for key in ("a", "b", None, None)]) == []


def test_after_the_first_of_a_run_that_was_not_delivered_the_others_are_unsent() -> None:
    answers = [DELIVERED, REFUSED, DELIVERED, DELIVERED, DELIVERED]
    stop_runs([[0, 1, 3], [2, 4]], answers)
    assert answers == [DELIVERED, REFUSED, DELIVERED, UNSENT, DELIVERED]


def test_what_is_not_answered_yet_does_not_stop_a_run() -> None:
    answers: list[Outcome | str] = ["encoded", REJECTED, "encoded"]
    stop_runs([[0, 1, 2]], answers)
    assert answers == ["encoded", REJECTED, UNSENT]


def test_unsent_messages_do_not_show_that_the_broker_answered() -> None:
    with pytest.raises(TransportUnavailable, match="cut"):
        collect_outcomes([CUT, REJECTED, UNSENT], late=LATE)
