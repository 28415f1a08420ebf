"""What an answer means: evidence decides who is to blame."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from pillarbox.contracts.store import FailedOutcome
from pillarbox.contracts.transport import Outcome
from pillarbox.durations import FOREVER
from pillarbox.message import Message, State, Waits
from pillarbox.relay.outcome_policy import AfterFailure, BatchResult, MissingTopology, OutcomePolicy, build_hold
from pillarbox.retry import RetryPolicy
from tests.support.lanes.lane_table import row

TAKEN = Outcome(True)
REFUSED = Outcome(False, "503 Service Unavailable")
REJECTED = Outcome(False, "422 Unprocessable", rejected=True, detail="the whole answer")
PLAIN = RetryPolicy(attempts=3, first=timedelta(seconds=2), jitter=0.0)


def policy(
    after_failure: AfterFailure = "continue",
    *,
    retry: RetryPolicy = PLAIN,
    missing_topology: MissingTopology = "wait",
    give_up_after: timedelta = FOREVER,
    has_addresses: bool = False,
    dead_letter: str | None = None,
    in_process: bool = False,
) -> OutcomePolicy:
    return OutcomePolicy(
        retry=retry, after_failure=after_failure, missing_topology=missing_topology, give_up_after=give_up_after,
        has_addresses=has_addresses, dead_letter=dead_letter, in_process=in_process,
    )  # fmt: skip


def weigh(
    policy: OutcomePolicy, *answers: tuple[Message, Outcome], began: int | None = None, now: float = 0.0
) -> BatchResult:
    messages, outcomes = zip(*answers, strict=True)
    began = policy.acknowledged if began is None else began
    return policy.evaluate(messages, outcomes, began=began, dice=0.5, now=now)


def tried(verdict: BatchResult) -> list[int]:
    """Messages that were tried and paid nothing."""
    assert all((failure.spends, failure.waits) == (False, Waits.RETRY) for _, failure in verdict.tried)
    assert all(failure.attempts == message.attempts for message, failure in verdict.tried)
    return [message.id for message, _ in verdict.tried]


def trouble_of(verdict: BatchResult) -> FailedOutcome:
    ((_, trouble),) = verdict.failures
    return trouble


def test_an_acknowledged_message_is_delivered() -> None:
    verdict = weigh(policy(), (row(1), TAKEN), (row(2), TAKEN))
    assert verdict == BatchResult([row(1), row(2)], [])


def test_what_was_lost_with_its_connection_is_not_weighed() -> None:
    verdict = weigh(policy(), (row(1), TAKEN), (row(2), Outcome(False, "the connection broke", lost=True)))
    assert verdict == BatchResult([row(1)], [])


# --- the witness ---


def test_without_a_witness_three_refusals_are_an_outage_and_cost_nothing() -> None:
    verdict = weigh(policy(), (row(1), REFUSED), (row(2), REFUSED), (row(3), REFUSED))
    assert (tried(verdict), verdict.failures) == ([1, 2, 3], [])
    assert verdict.outage == "503 Service Unavailable"
    assert {failure.delay for _, failure in verdict.tried} == {timedelta(0)}, "the breaker sets the pace"


def test_one_or_two_messages_that_are_refused_are_no_outage_and_wait_at_their_own_pace() -> None:
    judging = policy()
    pauses = []
    for _ in range(8):
        verdict = weigh(judging, (row(1), REFUSED), (row(2), REFUSED))
        assert (tried(verdict), verdict.outage, verdict.failures) == ([1, 2], None, [])
        pauses.append(verdict.tried[0][1].delay or timedelta(0))
    assert timedelta(seconds=0.5) <= pauses[0] <= timedelta(seconds=1)
    assert timedelta(seconds=15) <= pauses[-1] <= timedelta(seconds=30)
    assert weigh(judging, (row(3), REFUSED)).outage == "503 Service Unavailable"


def test_an_acknowledgement_begins_the_row_of_refusals_again() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED), (row(2), REFUSED))
    weigh(judging, (row(3), TAKEN))
    assert weigh(judging, (row(4), REFUSED)).outage is None


def test_the_row_of_refusals_goes_on_from_send_to_send() -> None:
    judging = policy()
    outages = [weigh(judging, (row(number), REFUSED)).outage is not None for number in (1, 2, 1, 2, 3, 4)]
    assert outages == [False, False, False, False, True, True]


def test_silence_is_an_outage_at_once() -> None:
    silent = Outcome(False, "no answer within 30 s", unanswered=True)
    assert weigh(policy(), (row(1), silent)).outage == "no answer within 30 s"


def test_a_message_that_asks_to_wait_longer_does_so_without_an_outage() -> None:
    asked = Outcome(False, "429", not_now=True, retry_after=timedelta(minutes=2))
    verdict = weigh(policy(), (row(1), asked))
    assert (verdict.outage, verdict.tried[0][1].delay) == (None, timedelta(minutes=2))


def test_what_is_acknowledged_between_the_answer_and_its_evaluation_is_no_witness() -> None:
    """The relay asks the journal in between. It shows all the same that the destination is there for others."""
    judging = policy()
    heard = judging.acknowledged
    weigh(judging, (row(2), TAKEN))
    verdict = judging.evaluate([row(1)], [REFUSED], began=0, dice=0.5, heard=heard)
    assert (tried(verdict), verdict.outage, bool(judging.row)) == ([1], None, False)


# --- tries, for the log ---


def test_every_try_of_a_message_is_counted_whether_or_not_it_spends_an_attempt() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED), now=10.0)
    weigh(judging, (row(2), TAKEN))
    verdict = weigh(judging, (row(1), REFUSED), now=25.0)
    counted = judging.add_tries(row(1), trouble_of(verdict), now=25.0)
    assert (counted.tries, counted.tried_for, counted.attempts) == (2, timedelta(seconds=15), 1)
    again = weigh(judging, (row(1, attempts=1), REFUSED), now=40.0)
    assert judging.add_tries(row(1), again.tried[0][1], now=40.0).tries == 3


def test_tries_of_other_relays_are_added_once() -> None:
    judging, again = policy(), row(1, waits=Waits.RETRY)
    assert judging.list_uncounted([again, row(2)], [REFUSED, REFUSED]) == [again]
    judging.recall_count(again, count=6, age=45.0, now=100.0)
    verdict = weigh(judging, (again, REFUSED), now=100.0)
    counted = judging.add_tries(again, verdict.tried[0][1], now=100.0)
    assert (counted.tries, counted.tried_for) == (7, timedelta(seconds=45))
    assert judging.list_uncounted([again], [REFUSED]) == []


def test_the_tries_of_a_message_that_is_over_are_forgotten() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED), (row(2), REFUSED))
    weigh(judging, (row(1), TAKEN))
    closed = judging.build_failure(row(2), error="given up")
    assert judging.add_tries(row(2), closed, now=0.0).tries == 1
    assert [judging.add_tries(row(number), closed, now=0.0).tries for number in (1, 2)] == [0, 0]


# --- what runs in the relay's own process ---


def test_in_its_own_process_a_failure_spends_an_attempt_without_a_witness() -> None:
    judging = policy(in_process=True)
    failures = [trouble_of(weigh(judging, (row(1, attempts=attempts), REFUSED))) for attempts in range(3)]
    assert [(one.attempts, one.state) for one in failures] == [
        (1, State.PENDING), (2, State.PENDING), (3, State.FAILED),
    ]  # fmt: skip
    assert not judging.row


def test_in_its_own_process_a_function_that_hangs_needs_a_witness_and_is_no_outage_alone() -> None:
    silent = Outcome(False, "no answer within 30 s", unanswered=True)
    judging = policy(in_process=True)
    for _ in range(5):
        verdict = weigh(judging, (row(1), silent))
        assert (tried(verdict), verdict.outage) == ([1], None)
    weigh(judging, (row(2), TAKEN))
    assert trouble_of(weigh(judging, (row(1), silent))).attempts == 1
    assert weigh(judging, (row(3), silent), (row(4), silent), (row(5), silent)).outage == "no answer within 30 s"


def test_in_its_own_process_a_conflict_spends_nothing_and_stops_nobody() -> None:
    verdict = weigh(policy(in_process=True), (row(1), Outcome(False, "deadlock", not_now=True)))
    assert (len(verdict.not_now), verdict.outage, verdict.failures) == (1, None, [])


def test_an_attempt_without_any_answer_counts_as_the_previous_one() -> None:
    """What was acknowledged before it is no sign that the destination works now."""
    asked = policy()
    weigh(asked, (row(1), REFUSED), (row(2), TAKEN))
    weigh(asked, (row(3), TAKEN))
    asked.note_interrupted([row(1)], began=asked.acknowledged)
    assert tried(weigh(asked, (row(1), REFUSED))) == [1]


def test_what_was_not_even_sent_had_no_attempt() -> None:
    """What was acknowledged while a connection did not come about says nothing of the message it was for."""
    asked = policy()
    began = asked.acknowledged
    weigh(asked, (row(2), TAKEN))
    asked.note_interrupted([row(1)], began=began, sent=False)
    assert tried(weigh(asked, (row(1), REFUSED))) == [1]


def test_what_was_sent_and_not_answered_had_one() -> None:
    asked = policy()
    began = asked.acknowledged
    weigh(asked, (row(2), TAKEN))
    asked.note_interrupted([row(1)], began=began)
    assert tried(weigh(asked, (row(1), REFUSED))) == []


def test_what_could_not_be_sent_makes_earlier_witnesses_too_old() -> None:
    asked = policy()
    weigh(asked, (row(1), REFUSED), (row(2), TAKEN))
    weigh(asked, (row(3), TAKEN))
    asked.note_interrupted([row(1)], began=asked.acknowledged, sent=False)
    assert tried(weigh(asked, (row(1), REFUSED))) == [1]


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
    assert tried(weigh(judging, (row(1), REFUSED))) == [1]


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
    assert tried(weigh(judging, (once, REFUSED))) == [1]


def test_an_outage_of_any_length_spends_no_attempt() -> None:
    judging = policy()
    for _ in range(1_000):
        assert weigh(judging, (row(1), REFUSED)).failures == []


def test_a_delivered_message_is_forgotten() -> None:
    """Replayed later, its first attempt needs a new witness."""
    judging = policy()
    weigh(judging, (row(1), REFUSED))
    weigh(judging, (row(1), TAKEN))
    assert tried(weigh(judging, (row(1), REFUSED))) == [1]


# --- a ping as the witness ---


def test_a_new_message_under_the_id_of_one_that_the_database_lost_has_none_of_its_past() -> None:
    """Its first attempt is its first, however often the lost one was tried, alone or with others."""
    judging = policy(give_up_after=timedelta(hours=1))
    lost, new = row(1), msgspec.structs.replace(row(1), message_id=UUID(int=77))
    assert tried(weigh(judging, (lost, REFUSED), now=0.0)) == [1]
    weigh(judging, (row(2), TAKEN), now=1.0)
    assert judging.has_lone_witness(lost)
    judging.recall([lost], None, now=1.0)
    verdict = weigh(judging, (new, REFUSED), now=4_000.0)
    assert (tried(verdict), verdict.failures) == ([1], []), "neither a witness nor the hour is its own"
    assert judging.has_lone_witness(new), "it was never sent alone"
    waiting = msgspec.structs.replace(row(3), waits=Waits.RETRY)
    weigh(judging, (waiting, REFUSED), now=4_000.0)
    reused = msgspec.structs.replace(waiting, message_id=UUID(int=78))
    assert judging.list_forgotten([waiting, reused], [REFUSED, REFUSED]) == [reused]


def test_two_rows_of_one_message_at_a_destination_have_nothing_in_common() -> None:
    """One is its own, the other was forwarded as a dead letter of another destination."""
    judging = policy()
    own, forwarded = row(1), msgspec.structs.replace(row(2), message_id=row(1).message_id)
    assert tried(weigh(judging, (own, REFUSED))) == [1]
    weigh(judging, (row(3), TAKEN))
    assert tried(weigh(judging, (forwarded, REFUSED))) == [2], (
        "what was acknowledged before its first try is no witness"
    )
    assert trouble_of(weigh(judging, (own, REFUSED))).attempts == 1


def test_a_ping_since_the_last_try_is_a_witness() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED))
    judging.note_ping()
    assert trouble_of(weigh(judging, (row(1), REFUSED))).attempts == 1


def test_a_ping_before_the_first_try_proves_nothing() -> None:
    judging = policy()
    judging.note_ping()
    for _ in range(2):
        assert tried(weigh(judging, (row(1), REFUSED))) == [1]


def test_each_try_needs_a_ping_of_its_own() -> None:
    judging = policy()
    weigh(judging, (row(1), REFUSED))
    judging.note_ping()
    weigh(judging, (row(1), REFUSED))
    assert tried(weigh(judging, (row(1, attempts=1), REFUSED))) == [1]


def test_a_ping_is_no_witness_against_silence() -> None:
    """A server that answers pings may still be unable to store anything."""
    judging, silent = policy(), Outcome(False, "no answer within 30 s", unanswered=True)
    for _ in range(10):
        assert tried(weigh(judging, (row(1), silent))) == [1]
        judging.note_ping()


# --- not now ---

NOT_NOW = Outcome(False, "the queue is full", not_now=True)
MISSING = Outcome(False, "there is no queue", not_now=True, missing=True)


@pytest.mark.parametrize("answer", [NOT_NOW, MISSING])
def test_an_address_that_takes_nothing_costs_no_attempt_whatever_else_is_acknowledged(answer: Outcome) -> None:
    judging = policy(has_addresses=True)
    for _ in range(100):
        verdict = weigh(judging, (row(1), answer), (row(2), TAKEN))
        judging.note_ping()
        ((message, waits, outcome),) = verdict.not_now
        assert (message.id, waits.spends, waits.attempts, outcome) == (1, False, 0, answer)
        assert (verdict.failures, verdict.tried, verdict.outage) == ([], [], None)


def test_without_a_witness_it_is_no_outage_of_the_others() -> None:
    verdict = weigh(policy(has_addresses=True), (row(1), NOT_NOW))
    assert (len(verdict.not_now), verdict.outage) == (1, None)


def test_where_there_is_one_address_it_is_an_outage_of_all() -> None:
    verdict = weigh(policy(), (row(1), NOT_NOW), (row(2), NOT_NOW), (row(3), MISSING))
    assert (tried(verdict), verdict.outage) == ([1, 2, 3], "there is no queue")


def test_where_there_is_one_address_that_takes_others_it_costs_nothing() -> None:
    verdict = weigh(policy(), (row(1), NOT_NOW), (row(2), TAKEN))
    assert (len(verdict.not_now), verdict.outage, verdict.failures) == (1, None, [])


@pytest.mark.parametrize(("seconds", "is_doubtful"), [(1.9, False), (2.1, True)])
def test_where_there_is_one_address_a_recent_acknowledgement_shows_that_it_takes_others(
    seconds: float, is_doubtful: bool
) -> None:
    """As when a tenant is throttled whose message was sent a moment after those of the others."""
    judging = policy()
    judging.evaluate([row(1)], [TAKEN], began=0, dice=0.0, now=100.0)
    verdict = judging.evaluate([row(2)], [NOT_NOW], began=1, dice=0.0, now=100.0 + seconds)
    assert (bool(judging.row), len(verdict.not_now)) == (is_doubtful, 0 if is_doubtful else 1)


def test_silence_everywhere_is_an_outage_of_all() -> None:
    silent = Outcome(False, "no answer in time", unanswered=True, not_now=True)
    judging = policy(has_addresses=True)
    assert weigh(judging, (row(1), silent)).outage == "no answer in time"
    verdict = weigh(judging, (row(2), silent), (row(3), TAKEN))
    assert (len(verdict.not_now), verdict.outage) == (1, None)


def test_it_is_tried_again_less_and_less_often_and_not_before_the_broker_asked_for() -> None:
    judging = policy(has_addresses=True)
    pauses = [_pause(weigh(judging, (row(1), NOT_NOW))) for _ in range(8)]
    assert all(0.5 * full <= pause <= full for pause, full in zip(pauses, [1, 2, 4, 8, 16, 30, 30, 30], strict=True))
    asked = Outcome(False, "429", not_now=True, retry_after=timedelta(minutes=2))
    assert _pause(weigh(judging, (row(1), asked))) == 120


def test_what_was_refused_together_does_not_come_back_together() -> None:
    verdict = weigh(policy(has_addresses=True), *((row(number), NOT_NOW) for number in range(1, 51)))
    pauses = {waits.delay for _, waits, _ in verdict.not_now}
    assert len(pauses) == 50


def test_missing_topology_can_be_rejected_at_once() -> None:
    judging = policy(has_addresses=True, missing_topology="reject")
    verdict = weigh(judging, (row(1), MISSING), (row(2), NOT_NOW))
    assert (trouble_of(verdict).state, trouble_of(verdict).error) == (State.FAILED, "there is no queue")
    assert [message.id for message, _, _ in verdict.not_now] == [2]


def _pause(verdict: BatchResult) -> float:
    ((_, waits, _),) = verdict.not_now
    assert waits.delay is not None
    return waits.delay.total_seconds()


# --- giving up without a witness ---


@pytest.mark.parametrize(("answer", "has_addresses"), [(REFUSED, False), (NOT_NOW, True), (MISSING, True)])
def test_a_message_is_given_up_after_so_long_if_that_is_wanted(answer: Outcome, has_addresses: bool) -> None:
    judging = policy(give_up_after=timedelta(hours=1), has_addresses=has_addresses)
    assert weigh(judging, (row(1), answer), now=100.0).failures == []
    assert weigh(judging, (row(1), answer), now=3_699.0).failures == []
    trouble = trouble_of(weigh(judging, (row(1), answer), now=3_700.0))
    assert (trouble.state, trouble.attempts) == (State.FAILED, 0)
    assert trouble.error == f"given up after 1h: {answer.error}"


def test_the_time_counts_on_from_the_tries_of_other_relays() -> None:
    judging, hour = policy(give_up_after=timedelta(hours=1)), timedelta(hours=1)
    old, new = (msgspec.structs.replace(row(number), waits=Waits.RETRY) for number in (1, 2))
    assert judging.list_forgotten([old, new, row(3)], [REFUSED, TAKEN, REFUSED]) == [old], "others have no past"
    judging.recall([old], None, now=0.0)
    assert weigh(judging, (old, REFUSED), now=0.0).failures == []
    assert judging.list_forgotten([old], [REFUSED]) == [old], "the journal could not be asked"
    judging.recall([old], {old.message_id: hour}, now=10.0)
    assert judging.list_forgotten([old], [REFUSED]) == []
    assert trouble_of(weigh(judging, (old, REFUSED), now=10.0)).state is State.FAILED
    judging.recall([new], {}, now=10.0)
    assert weigh(judging, (new, REFUSED), now=10.0).failures == []
    assert judging.list_forgotten([new], [REFUSED]) == [], "it was tried here first"
    assert policy().list_forgotten([old], [REFUSED]) == [], "no message is given up: nobody asks"


def test_the_time_begins_anew_for_a_message_that_was_delivered() -> None:
    judging = policy(give_up_after=timedelta(hours=1))
    weigh(judging, (row(1), REFUSED), now=0.0)
    weigh(judging, (row(1), TAKEN), now=10.0)
    assert weigh(judging, (row(1), REFUSED), now=4_000.0).failures == []


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
    assert tried(verdict) == [20, 21, 22, 23, 24, 25]
    assert verdict.outage == "it rejects every message, the last one so: 422 Unprocessable"


def test_they_are_counted_over_several_sends() -> None:
    judging = policy()
    outages = [weigh(judging, (row(number), REJECTED)).outage is not None for number in range(1, 21)]
    assert outages == [False] * 19 + [True]


def test_one_acknowledgement_begins_the_count_anew() -> None:
    judging = policy()
    weigh(judging, *((row(number), REJECTED) for number in range(1, 20)))
    weigh(judging, (row(20), TAKEN))
    assert weigh(judging, (row(21), REJECTED)).outage is None


def test_a_send_of_which_every_other_message_is_rejected_is_no_outage() -> None:
    verdict = weigh(policy(), *((row(number), REJECTED if number % 2 else TAKEN) for number in range(1, 101)))
    assert (len(verdict.failures), len(verdict.delivered)) == (50, 50)
    assert verdict.outage is None


def test_twenty_rejections_after_an_acknowledgement_of_the_same_send_are_a_row() -> None:
    verdict = weigh(policy(), (row(1), TAKEN), *((row(number), REJECTED) for number in range(2, 22)))
    assert (len(verdict.failures), tried(verdict)) == (19, [21])


# --- hold ---


@pytest.mark.parametrize("answer", [REFUSED, REJECTED])
def test_hold_keeps_a_failed_message_open_and_its_key_waiting(answer: Outcome) -> None:
    bad = row(1, "a", attempts=2)
    trouble = trouble_of(weigh(policy("hold"), (bad, answer), (row(2), TAKEN)))
    assert (trouble.state, trouble.waits, trouble.attempts) == (State.PENDING, Waits.HELD, 3)


def test_a_message_without_a_key_holds_nobody_up() -> None:
    assert trouble_of(weigh(policy("hold"), (row(1), REJECTED))).state is State.FAILED


def test_a_message_that_goes_on_to_a_dead_letter_holds_nobody_up() -> None:
    trouble = trouble_of(weigh(policy("hold", dead_letter="letters"), (row(1, "a"), REJECTED)))
    assert (trouble.state, trouble.waits, trouble.forward_to) == (State.FAILED, None, "letters")


def test_a_message_that_is_held_for_its_address_was_not_tried() -> None:
    """It leaves its reason, and no line in the journal."""
    waiting = build_hold(row(1, attempts=2), reason="the queue is full", pause=timedelta(seconds=3))
    assert (waiting.state, waiting.waits, waiting.attempts) == (State.PENDING, Waits.RETRY, 2)
    assert (waiting.error, waiting.delay, waiting.action) == ("the queue is full", timedelta(seconds=3), None)


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
