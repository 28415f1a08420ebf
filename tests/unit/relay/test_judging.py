"""What an answer means: evidence decides who is to blame."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Outcome, Trouble
from pillarbox.relay.judging import AfterFailure, Judge, Verdict
from pillarbox.retry import RetryPolicy
from tests.unit.relay.lane_bench import ids
from tests.unit.relay.lane_table import row

TAKEN = Outcome(True)
REFUSED = Outcome(False, "503 Service Unavailable")
REJECTED = Outcome(False, "422 Unprocessable", rejected=True, detail="the whole answer")
PLAIN = RetryPolicy(attempts=3, first=timedelta(seconds=2), jitter=0.0)


def judge(after_failure: AfterFailure = "continue", *, retry: RetryPolicy = PLAIN) -> Judge:
    return Judge(retry=retry, after_failure=after_failure)


def weigh(judge: Judge, *answers: tuple[Message, Outcome], began: int | None = None) -> Verdict:
    messages, outcomes = zip(*answers, strict=True)
    began = judge.acknowledged if began is None else began
    return judge.judge(messages, outcomes, began=began, dice=0.5)


def trouble_of(verdict: Verdict) -> Trouble:
    ((_, trouble),) = verdict.troubles
    return trouble


def test_an_acknowledged_message_is_delivered() -> None:
    verdict = weigh(judge(), (row(1), TAKEN), (row(2), TAKEN))
    assert verdict == Verdict([row(1), row(2)], [], [])


def test_what_was_lost_with_its_connection_is_not_weighed() -> None:
    verdict = weigh(judge(), (row(1), TAKEN), (row(2), Outcome(False, "the connection broke", lost=True)))
    assert verdict == Verdict([row(1)], [], [])


# --- the witness ---


def test_without_a_witness_a_refusal_is_an_outage_and_costs_nothing() -> None:
    verdict = weigh(judge(), (row(1), REFUSED), (row(2), REFUSED))
    assert (ids(verdict.returned), verdict.troubles) == ([1, 2], [])
    assert verdict.outage == "503 Service Unavailable"


def test_an_attempt_without_any_answer_counts_as_the_previous_one() -> None:
    """What was acknowledged before it is no sign that the destination works now."""
    asked = judge()
    weigh(asked, (row(1), REFUSED), (row(2), TAKEN))
    weigh(asked, (row(3), TAKEN))
    asked.interrupted([row(1)], began=asked.acknowledged)
    assert ids(weigh(asked, (row(1), REFUSED)).returned) == [1]


def test_what_was_not_even_sent_had_no_attempt() -> None:
    """What was acknowledged while a connection did not come about says nothing of the message it was for."""
    asked = judge()
    began = asked.acknowledged
    weigh(asked, (row(2), TAKEN))
    asked.interrupted([row(1)], began=began, sent=False)
    assert ids(weigh(asked, (row(1), REFUSED)).returned) == [1]


def test_what_was_sent_and_not_answered_had_one() -> None:
    asked = judge()
    began = asked.acknowledged
    weigh(asked, (row(2), TAKEN))
    asked.interrupted([row(1)], began=began)
    assert weigh(asked, (row(1), REFUSED)).returned == []


def test_what_could_not_be_sent_makes_earlier_witnesses_too_old() -> None:
    asked = judge()
    weigh(asked, (row(1), REFUSED), (row(2), TAKEN))
    weigh(asked, (row(3), TAKEN))
    asked.interrupted([row(1)], began=asked.acknowledged, sent=False)
    assert ids(weigh(asked, (row(1), REFUSED)).returned) == [1]


def test_an_acknowledgement_in_the_same_batch_is_a_witness() -> None:
    verdict = weigh(judge(), (row(1), REFUSED), (row(2), TAKEN))
    assert trouble_of(verdict) == Trouble(
        message_id=1,
        state=State.PENDING,
        waits=Waits.RETRY,
        attempts=1,
        error="503 Service Unavailable",
        delay=timedelta(seconds=2),
    )
    assert verdict.outage is None


def test_an_acknowledgement_by_another_send_meanwhile_is_a_witness() -> None:
    judging = judge()
    began = judging.acknowledged
    weigh(judging, (row(2), TAKEN))
    assert trouble_of(weigh(judging, (row(1), REFUSED), began=began)).attempts == 1


def test_what_was_acknowledged_before_the_first_attempt_proves_nothing() -> None:
    judging = judge()
    weigh(judging, (row(2), TAKEN))
    assert ids(weigh(judging, (row(1), REFUSED)).returned) == [1]


def test_what_was_acknowledged_since_the_previous_attempt_is_a_witness() -> None:
    judging = judge()
    weigh(judging, (row(1), REFUSED))
    weigh(judging, (row(2), TAKEN))
    assert trouble_of(weigh(judging, (row(1), REFUSED))).attempts == 1


def test_each_attempt_needs_a_witness_of_its_own() -> None:
    judging = judge()
    weigh(judging, (row(1), REFUSED), (row(2), TAKEN))
    once = row(1, attempts=1)
    weigh(judging, (once, REFUSED))
    assert ids(weigh(judging, (once, REFUSED)).returned) == [1]


def test_an_outage_of_any_length_spends_no_attempt() -> None:
    judging = judge()
    for _ in range(1_000):
        assert weigh(judging, (row(1), REFUSED)).troubles == []


def test_a_delivered_message_is_forgotten() -> None:
    """Replayed later, its first attempt needs a new witness."""
    judging = judge()
    weigh(judging, (row(1), REFUSED))
    weigh(judging, (row(1), TAKEN))
    assert ids(weigh(judging, (row(1), REFUSED)).returned) == [1]


# --- retrying and giving up ---


def test_the_last_attempt_fails_the_message() -> None:
    verdict = weigh(judge(), (row(1, attempts=2), REFUSED), (row(2), TAKEN))
    assert trouble_of(verdict) == Trouble(message_id=1, state=State.FAILED, attempts=3, error="503 Service Unavailable")


def test_the_broker_may_ask_for_a_longer_wait_but_not_for_a_shorter_one() -> None:
    long, short = (Outcome(False, "429", retry_after=timedelta(seconds=seconds)) for seconds in (60, 1))
    verdict = weigh(judge(), (row(1), long), (row(2), short), (row(3), TAKEN))
    assert [trouble.delay for _, trouble in verdict.troubles] == [timedelta(seconds=60), timedelta(seconds=2)]


def test_in_an_outage_the_longest_wait_that_was_asked_for_counts() -> None:
    waits = [timedelta(seconds=5), timedelta(seconds=60), None]
    verdict = weigh(judge(), *((row(i), Outcome(False, "503", retry_after=w)) for i, w in enumerate(waits, 1)))
    assert verdict.retry_after == timedelta(seconds=60)


# --- the message's own fault ---


def test_a_rejected_message_fails_at_once_without_a_witness() -> None:
    verdict = weigh(judge(), (row(1), REJECTED))
    assert trouble_of(verdict) == Trouble(
        message_id=1, state=State.FAILED, attempts=1, error="422 Unprocessable", detail="the whole answer"
    )
    assert verdict.outage is None


def test_twenty_rejections_in_a_row_are_the_destinations_fault() -> None:
    verdict = weigh(judge(), *((row(number), REJECTED) for number in range(1, 26)))
    assert len(verdict.troubles) == 19
    assert (verdict.flood, ids(verdict.returned)) == (True, [20, 21, 22, 23, 24, 25])


def test_they_are_counted_over_several_sends() -> None:
    judging = judge()
    floods = [weigh(judging, (row(number), REJECTED)).flood for number in range(1, 21)]
    assert floods == [False] * 19 + [True]


def test_one_acknowledgement_begins_the_count_anew() -> None:
    judging = judge()
    weigh(judging, *((row(number), REJECTED) for number in range(1, 20)))
    weigh(judging, (row(20), TAKEN))
    assert not weigh(judging, (row(21), REJECTED)).flood


def test_a_resumed_destination_begins_the_count_anew() -> None:
    judging = judge()
    weigh(judging, *((row(number), REJECTED) for number in range(1, 26)))
    judging.resumed()
    assert not weigh(judging, (row(26), REJECTED)).flood


# --- hold ---


@pytest.mark.parametrize("answer", [REFUSED, REJECTED])
def test_hold_keeps_a_failed_message_open_and_its_key_waiting(answer: Outcome) -> None:
    bad = row(1, "a", attempts=2)
    trouble = trouble_of(weigh(judge("hold"), (bad, answer), (row(2), TAKEN)))
    assert (trouble.state, trouble.waits, trouble.attempts) == (State.PENDING, Waits.HELD, 3)


def test_a_message_without_a_key_holds_nobody_up() -> None:
    assert trouble_of(weigh(judge("hold"), (row(1), REJECTED))).state is State.FAILED


def test_a_message_that_is_given_up_spends_no_attempt() -> None:
    trouble = judge().failed(row(1, "a", attempts=1), error="it killed the relay 7 times")
    assert (trouble.state, trouble.attempts, trouble.error) == (State.FAILED, 1, "it killed the relay 7 times")
