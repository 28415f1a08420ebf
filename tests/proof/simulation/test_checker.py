"""The checker itself: planted violations are noticed, and what is allowed is not taken for one."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from pillarbox.contracts.store import FailedOutcome
from pillarbox.message import Message, State, Waits
from pillarbox.testing.samples import sample
from proof.simulation.checker import DeliveryChecker, FailureChecker, Promise


def row(id: int, key: str | None = "k", destination: str = "a") -> Message:
    return replace(sample(key=key, destination=destination), id=id, message_id=UUID(int=id))


def violations(deliveries: DeliveryChecker) -> list[Promise]:
    return [violation.promise for violation in deliveries.violations]


def checker_with(*rows: Message) -> DeliveryChecker:
    deliveries = DeliveryChecker()
    deliveries.record_commit(rows)
    return deliveries


def takes(deliveries: DeliveryChecker, *ids: int) -> DeliveryChecker:
    for id in ids:
        deliveries.record_delivery("a", row(id), 0.0)
    return deliveries


# --- ghosts ---


def test_what_was_never_committed_is_a_ghost() -> None:
    assert violations(takes(DeliveryChecker(), 1)) == [Promise.GHOST]


def test_what_was_committed_for_another_destination_is_a_ghost() -> None:
    assert violations(takes(checker_with(row(1, destination="b")), 1)) == [Promise.GHOST]


def test_what_was_moved_may_come_late_to_where_it_was_taken_from() -> None:
    deliveries = checker_with(row(1))
    deliveries.record_move(1, "b")
    takes(deliveries, 1)
    deliveries.record_delivery("b", row(1), 0.0)
    assert violations(deliveries) == []


def test_another_message_under_a_committed_id_is_a_ghost() -> None:
    deliveries = checker_with(row(1))
    deliveries.record_delivery("a", replace(row(1), message_id=UUID(int=7)), 0.0)
    assert violations(deliveries) == [Promise.GHOST]


def test_what_the_store_lost_may_still_arrive_and_its_id_is_another_messages() -> None:
    deliveries = checker_with(row(1), row(2))
    deliveries.forget([row(2)])
    takes(deliveries, 2)
    again = replace(row(2), message_id=UUID(int=7))
    deliveries.record_commit([again])
    deliveries.record_delivery("a", again, 0.0)
    assert violations(deliveries) == [Promise.OUT_OF_ORDER], "1 is still owed"


# --- order ---


def test_an_overtaking_is_noticed() -> None:
    assert violations(takes(checker_with(row(1), row(2)), 2)) == [Promise.OUT_OF_ORDER]


def test_a_repeat_is_counted_and_is_no_overtaking() -> None:
    deliveries = takes(checker_with(row(1), row(2)), 1, 2, 1)
    assert (violations(deliveries), deliveries.duplicates) == ([], 1)


def test_other_keys_and_messages_without_one_wait_for_nobody() -> None:
    assert violations(takes(checker_with(row(1), row(2, "other"), row(3, None)), 3, 2, 1)) == []


def test_another_destination_has_an_order_of_its_own() -> None:
    deliveries = checker_with(row(1), row(2, destination="b"))
    deliveries.record_delivery("b", row(2), 0.0)
    assert violations(deliveries) == []


def test_what_is_closed_is_waited_for_by_nobody() -> None:
    deliveries = checker_with(row(1), row(2))
    deliveries.record_close(1)
    assert violations(takes(deliveries, 2)) == []


def test_what_its_writer_deferred_neither_waits_nor_is_waited_for() -> None:
    deferred = replace(row(1), available_at=row(1).event_time)
    assert violations(takes(checker_with(deferred, row(2)), 2, 1)) == []
    late = replace(row(2), available_at=row(1).event_time)
    assert violations(takes(checker_with(row(1), late), 2, 1)) == []


def test_what_a_person_sent_again_departs_from_the_order() -> None:
    deliveries = checker_with(row(1), row(2), row(3))
    deliveries.exempt(2)
    assert violations(takes(deliveries, 2)) == []
    assert violations(takes(deliveries, 3)) == [Promise.OUT_OF_ORDER]


# --- attempts and failures ---


class Case:
    """One relay_run of a relay with one destination."""

    def __init__(self, *, attempts: int | None = 2, lone_cap: int = 1) -> None:
        self.deliveries = checker_with(row(1), row(2))
        self.failures = FailureChecker(self.deliveries, attempts={"a": attempts}, lone_cap=lone_cap)
        self._now = 0.0

    def tries(self, id: int, *, acks: Sequence[int] = (), rejected: bool = False) -> None:
        """An attempt that fails, while others are acknowledged."""
        self._now += 1.0
        self.deliveries.record_try(row(id))
        self.failures.record_send("relay_run", "a", [row(id)], self._now)
        for other in acks:
            self.failures.record_ack("relay_run", "a", other, self._now + 0.5)
        self.failures.record_refusal("relay_run", "a", id, rejected=rejected)

    def records(
        self, state: State, waits: Waits | None = None, *, attempts: int = 1, spends: bool = True
    ) -> list[Promise]:
        failure = FailedOutcome(message_id=1, state=state, waits=waits, attempts=attempts, spends=spends)
        self.failures.check("relay_run", row(1), failure, self._now)
        return violations(self.deliveries)


def test_an_attempt_without_a_witness_is_noticed() -> None:
    case = Case()
    case.tries(1)
    assert case.records(State.PENDING, Waits.RETRY) == [Promise.SPENT]


def test_an_attempt_with_a_witness_is_fair() -> None:
    case = Case()
    case.tries(1, acks=[2])
    assert case.records(State.PENDING, Waits.RETRY) == []


def test_a_witness_from_before_the_previous_attempt_proves_nothing() -> None:
    case = Case()
    case.tries(1, acks=[2])
    case.tries(1)
    case.tries(1)
    assert case.records(State.PENDING, Waits.RETRY) == [Promise.SPENT]


def test_more_attempts_than_were_spent_are_noticed_whatever_the_relay_counts() -> None:
    case = Case(attempts=9)
    case.tries(1, acks=[2])
    assert case.records(State.PENDING, Waits.RETRY, attempts=2) == [Promise.MISCOUNTED]


def test_an_attempt_that_is_not_counted_is_noticed() -> None:
    case = Case(attempts=9)
    case.tries(1, acks=[2])
    assert case.records(State.PENDING, Waits.RETRY, attempts=0) == [Promise.MISCOUNTED]


def test_more_attempts_than_it_was_sent_are_noticed() -> None:
    case = Case(attempts=9)
    case.tries(1, acks=[2])
    case.records(State.PENDING, Waits.RETRY, attempts=1)
    case.tries(1, acks=[2])
    case.deliveries.tries[1] = 1
    assert case.records(State.PENDING, Waits.RETRY, attempts=2) == [Promise.MISCOUNTED]


def test_a_try_that_spends_nothing_counts_nothing() -> None:
    case = Case()
    case.tries(1)
    assert case.records(State.PENDING, Waits.RETRY, attempts=0, spends=False) == []


def test_a_message_that_goes_again_has_all_its_attempts() -> None:
    case = Case(attempts=1)
    case.tries(1, acks=[2])
    assert case.records(State.FAILED) == []
    case.failures.begin_anew(1)
    case.tries(1, acks=[2])
    assert case.records(State.PENDING, Waits.RETRY) == []
    case.failures.check_end(replace(row(1), attempts=1), 0.0)
    assert violations(case.deliveries) == []
    case.failures.check_end(replace(row(1), attempts=2), 0.0)
    assert violations(case.deliveries) == [Promise.MISCOUNTED]


def test_recording_the_same_twice_is_one_record() -> None:
    case = Case()
    case.tries(1, acks=[2])
    case.records(State.PENDING, Waits.RETRY)
    assert case.records(State.PENDING, Waits.RETRY) == []


def test_failing_an_innocent_is_noticed() -> None:
    case = Case(attempts=2)
    case.tries(1, acks=[2])
    assert case.records(State.FAILED) == [Promise.INNOCENT]


def test_failing_is_fair_when_rejected_or_out_of_attempts_or_deadly() -> None:
    rejected, spent, deadly = Case(), Case(attempts=1), Case(lone_cap=2)
    rejected.tries(1, rejected=True)
    spent.tries(1, acks=[2])
    deadly.failures.record_ack("relay_run", "a", 2, 0.0)
    deadly.failures.record_lone_death("relay_run", "a", 1)
    deadly.failures.record_lone_death("relay_run", "a", 1)
    assert [case.records(State.FAILED) for case in (rejected, spent)] == [[], []]
    assert deadly.records(State.FAILED, attempts=0) == []


def test_dying_less_often_than_the_cap_is_no_reason() -> None:
    case = Case(lone_cap=2)
    case.failures.record_ack("relay_run", "a", 2, 0.0)
    case.failures.record_lone_death("relay_run", "a", 1)
    assert case.records(State.PENDING, Waits.HELD) == [Promise.INNOCENT]


def test_dying_while_the_destination_answers_nobody_is_no_reason() -> None:
    case = Case(lone_cap=2)
    for relay in ("relay_run", "another"):
        case.failures.record_lone_death(relay, "a", 1)
    assert case.records(State.FAILED) == [Promise.INNOCENT]
