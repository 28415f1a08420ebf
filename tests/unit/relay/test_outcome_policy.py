"""What an answer means: evidence decides who is to blame."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pillarbox.contracts.store import FailedOutcome
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, State, Waits
from pillarbox.relay.outcome_policy import AfterFailure, BatchResult, OutcomePolicy
from pillarbox.retry import RetryPolicy
from tests.support.lanes.lane_bench import ids
from tests.support.lanes.lane_table import row

TAKEN = Outcome(True)
REFUSED = Outcome(False, "503 Service Unavailable")
REJECTED = Outcome(False, "422 Unprocessable", rejected=True, detail="the whole answer")
PLAIN = RetryPolicy(attempts=3, first=timedelta(seconds=2), jitter=0.0)


def policy(after_failure: AfterFailure = "continue", *, retry: RetryPolicy = PLAIN) -> OutcomePolicy:
    return OutcomePolicy(retry=retry, after_failure=after_failure)


def weigh(policy: OutcomePolicy, *answers: tuple[Message, Outcome], began: int | None = None) -> BatchResult:
    messages, outcomes = zip(*answers, strict=True)
    began = policy.acknowledged if began is None else began
    return policy.evaluate(messages, outcomes, began=began, dice=0.5)


def trouble_of(verdict: BatchResult) -> FailedOutcome:
    ((_, trouble),) = verdict.failures
    return trouble


def test_an_acknowledged_message_is_delivered() -> None:
    verdict = weigh(policy(), (row(1), TAKEN), (row(2), TAKEN))
    assert verdict == BatchResult([row(1), row(2)], [], [])


def test_what_was_lost_with_its_connection_is_not_weighed() -> None:
    verdict = weigh(policy(), (row(1), TAKEN), (row(2), Outcome(False, "the connection broke", lost=True)))
    assert verdict == BatchResult([row(1)], [], [])


# --- the witness ---


def test_without_a_witness_a_refusal_is_an_outage_and_costs_nothing() -> None:
    verdict = weigh(policy(), (row(1), REFUSED), (row(2), REFUSED))
    assert (ids(verdict.returned), verdict.failures) == ([1, 2], [])
    assert verdict.outage == "503 Service Unavailable"


def test_an_attempt_without_any_answer_counts_as_the_previous_one() -> None:
    """What was acknowledged before it is no sign that the destination works now."""
    asked = policy()
    weigh(asked, (row(1), REFUSED), (row(2), TAKEN))
    weigh(asked, (row(3), TAKEN))
    asked.note_interrupted([row(1)], began=asked.acknowledged)
    assert ids(weigh(asked, (row(1), REFUSED)).returned) == [1]


def test_what_was_not_even_sent_had_no_attempt() -> None:
    """What was acknowledged while a connection did not come about says nothing of the message it was for."""
    asked = policy()
    began = asked.acknowledged
    weigh(asked, (row(2), TAKEN))
    asked.note_interrupted([row(1)], began=began, sent=False)
    assert ids(weigh(asked, (row(1), REFUSED)).returned) == [1]


def test_what_was_sent_and_not_answered_had_one() -> None:
    asked = policy()
    began = asked.acknowledged
    weigh(asked, (row(2), TAKEN))
    asked.note_interrupted([row(1)], began=began)
    assert weigh(asked, (row(1), REFUSED)).returned == []


def test_what_could_not_be_sent_makes_earlier_witnesses_too_old() -> None:
    asked = policy()
    weigh(asked, (row(1), REFUSED), (row(2), TAKEN))
    weigh(asked, (row(3), TAKEN))
    asked.note_interrupted([row(1)], began=asked.acknowledged, sent=False)
    assert ids(weigh(asked, (row(1), REFUSED)).returned) == [1]


def test_an_acknowledgement_in_the_same_batch_is_a_witness() -> None:
    verdict = weigh(policy(), (row(1), REFUSED), (row(2), TAKEN))
    assert trouble_of(verdict) == FailedOutcome(
        message_id=1,
        state=State.PENDING,
        waits=Waits.RETRY,
        attempts=1,
        error="503 Service Unavailable",
        delay=timedelta(seconds=2),
    )
    assert verdict.outage is None


def test_an_acknowledgement_by_another_send_meanwhile_is_a_witness() -> None:
    judging = policy()
    began = judging.acknowledged
    weigh(judging, (row(2), TAKEN))
    assert trouble_of(weigh(judging, (row(1), REFUSED), began=began)).attempts == 1


def test_what_was_acknowledged_before_the_first_attempt_proves_nothing() -> None:
    judging = policy()
    weigh(judging, (row(2), TAKEN))
    assert ids(weigh(judging, (row(1), REFUSED)).returned) == [1]


def test_what_was_acknowledged_since_the_previous_attempt_is_a_witness() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED))
    weigh(judging, (row(2), TAKEN))
    assert trouble_of(weigh(judging, (row(1), REFUSED))).attempts == 1


def test_each_attempt_needs_a_witness_of_its_own() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED), (row(2), TAKEN))
    once = row(1, attempts=1)
    weigh(judging, (once, REFUSED))
    assert ids(weigh(judging, (once, REFUSED)).returned) == [1]


def test_an_outage_of_any_length_spends_no_attempt() -> None:
    judging = policy()
    for _ in range(1_000):
        assert weigh(judging, (row(1), REFUSED)).failures == []


def test_a_delivered_message_is_forgotten() -> None:
    """Replayed later, its first attempt needs a new witness."""
    judging = policy()
    weigh(judging, (row(1), REFUSED))
    weigh(judging, (row(1), TAKEN))
    assert ids(weigh(judging, (row(1), REFUSED)).returned) == [1]


# --- retrying and giving up ---


def test_the_last_attempt_fails_the_message() -> None:
    verdict = weigh(policy(), (row(1, attempts=2), REFUSED), (row(2), TAKEN))
    assert trouble_of(verdict) == FailedOutcome(
        message_id=1, state=State.FAILED, attempts=3, error="503 Service Unavailable"
    )


def test_the_broker_may_ask_for_a_longer_wait_but_not_for_a_shorter_one() -> None:
    long, short = (Outcome(False, "429", retry_after=timedelta(seconds=seconds)) for seconds in (60, 1))
    verdict = weigh(policy(), (row(1), long), (row(2), short), (row(3), TAKEN))
    assert [trouble.delay for _, trouble in verdict.failures] == [timedelta(seconds=60), timedelta(seconds=2)]


def test_in_an_outage_the_longest_wait_that_was_asked_for_counts() -> None:
    waits = [timedelta(seconds=5), timedelta(seconds=60), None]
    verdict = weigh(policy(), *((row(i), Outcome(False, "503", retry_after=w)) for i, w in enumerate(waits, 1)))
    assert verdict.retry_after == timedelta(seconds=60)


# --- the message's own fault ---


def test_a_rejected_message_fails_at_once_without_a_witness() -> None:
    verdict = weigh(policy(), (row(1), REJECTED))
    assert trouble_of(verdict) == FailedOutcome(
        message_id=1, state=State.FAILED, attempts=1, error="422 Unprocessable", detail="the whole answer"
    )
    assert verdict.outage is None


def test_twenty_rejections_in_a_row_are_the_destinations_fault() -> None:
    verdict = weigh(policy(), *((row(number), REJECTED) for number in range(1, 26)))
    assert len(verdict.failures) == 19
    assert (verdict.is_flood, ids(verdict.returned)) == (True, [20, 21, 22, 23, 24, 25])


def test_they_are_counted_over_several_sends() -> None:
    judging = policy()
    floods = [weigh(judging, (row(number), REJECTED)).is_flood for number in range(1, 21)]
    assert floods == [False] * 19 + [True]


def test_one_acknowledgement_begins_the_count_anew() -> None:
    judging = policy()
    weigh(judging, *((row(number), REJECTED) for number in range(1, 20)))
    weigh(judging, (row(20), TAKEN))
    assert not weigh(judging, (row(21), REJECTED)).is_flood


def test_a_resumed_destination_begins_the_count_anew() -> None:
    judging = policy()
    weigh(judging, *((row(number), REJECTED) for number in range(1, 26)))
    judging.reset_rejections()
    assert not weigh(judging, (row(26), REJECTED)).is_flood


# --- hold ---


@pytest.mark.parametrize("answer", [REFUSED, REJECTED])
def test_hold_keeps_a_failed_message_open_and_its_key_waiting(answer: Outcome) -> None:
    bad = row(1, "a", attempts=2)
    trouble = trouble_of(weigh(policy("hold"), (bad, answer), (row(2), TAKEN)))
    assert (trouble.state, trouble.waits, trouble.attempts) == (State.PENDING, Waits.HELD, 3)


def test_a_message_without_a_key_holds_nobody_up() -> None:
    assert trouble_of(weigh(policy("hold"), (row(1), REJECTED))).state is State.FAILED


def test_a_message_that_is_given_up_spends_no_attempt() -> None:
    trouble = policy().build_failure(row(1, "a", attempts=1), error="it killed the relay 7 times")
    assert (trouble.state, trouble.attempts, trouble.error) == (State.FAILED, 1, "it killed the relay 7 times")


def test_no_answer_brings_a_secret_or_a_control_character_into_the_journal() -> None:
    odd = "\x1b[2J\x9b\u202e\x00\ud800 at amqp://shop:hunter2@mq/x\npassword=hunter2"
    verdict = weigh(policy(), (row(1), Outcome(False, odd, rejected=True, detail=f"first\n{odd}")))
    trouble = trouble_of(verdict)
    assert trouble.error is not None
    assert trouble.error.isprintable()
    assert "hunter2" not in f"{trouble.error}{trouble.detail}"
    assert all(line.isprintable() for line in str(trouble.detail).split("\n"))
    assert str(trouble.detail).startswith("first\n")
