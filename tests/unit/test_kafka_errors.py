"""What the answers of a Kafka cluster mean."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from pillarbox.brokers.kafka.connection import PendingSend, Reachability
from pillarbox.brokers.kafka.encoding import EncodedMessage
from pillarbox.brokers.kafka.errors import (
    DELIVERED,
    TIMED_OUT,
    DeliveryReport,
    DeliveryStatus,
    ErrorCode,
    build_report,
    classify,
    to_outcomes,
)
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable

FAILED = DeliveryReport(DeliveryStatus.FAILED, "full")
OUTAGE = DeliveryReport(DeliveryStatus.OUTAGE, "the login may not write idempotently: let it")
LOST = DeliveryReport(DeliveryStatus.LOST, "fatal")


def outcomes(*reports: DeliveryReport, down: str | None = None) -> list[Outcome]:
    return to_outcomes(reports, where="kafka://broker.example", timeout=10, down=down)


@pytest.mark.parametrize("code", ErrorCode)
def test_the_codes_are_the_clients(code: ErrorCode) -> None:
    assert getattr(KafkaError, code.name) == code.value


def test_delivered_is_no_error_and_nothing_else() -> None:
    codes = [value for name, value in vars(KafkaError).items() if name.isupper() and isinstance(value, int)]
    assert [code for code in codes if classify(code) is DeliveryStatus.DELIVERED] == [KafkaError.NO_ERROR]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, DeliveryStatus.SUSPECT),
        (KafkaError.INVALID_RECORD, DeliveryStatus.SUSPECT),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, DeliveryStatus.MISSING),
        (KafkaError._UNKNOWN_TOPIC, DeliveryStatus.MISSING),
        (KafkaError.TOPIC_EXCEPTION, DeliveryStatus.MISSING),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, DeliveryStatus.MISSING),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, DeliveryStatus.OUTAGE),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, DeliveryStatus.NOT_NOW),
        (KafkaError.NOT_ENOUGH_REPLICAS, DeliveryStatus.NOT_NOW),
        (KafkaError.LEADER_NOT_AVAILABLE, DeliveryStatus.NOT_NOW),
        (KafkaError.KAFKA_STORAGE_ERROR, DeliveryStatus.NOT_NOW),
        (KafkaError.UNKNOWN, DeliveryStatus.FAILED),
        (KafkaError._MSG_TIMED_OUT, DeliveryStatus.TIMED_OUT),
        (KafkaError._PURGE_QUEUE, DeliveryStatus.LOST),
        (KafkaError._FATAL, DeliveryStatus.LOST),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, DeliveryStatus.LOST),
    ],
)
def test_errors_are_told_apart(code: int, expected: DeliveryStatus) -> None:
    assert classify(code) is expected


def test_a_fatal_error_is_the_clients_end_whatever_its_code() -> None:
    assert classify(KafkaError.UNKNOWN, fatal=True) is DeliveryStatus.LOST


def test_each_message_has_its_own_outcome() -> None:
    delivered, failed, rejected, silent = outcomes(
        DELIVERED, FAILED, DeliveryReport(DeliveryStatus.REJECTED, "large"), TIMED_OUT
    )
    assert delivered == Outcome(delivered=True)
    assert (failed.rejected, failed.lost, failed.error) == (
        False,
        False,
        "kafka://broker.example did not take it: full",
    )
    assert rejected.rejected
    error = "no answer from kafka://broker.example within 10 s"
    assert silent == Outcome(delivered=False, error=error, unanswered=True, not_now=True)


def test_what_broke_after_some_were_answered_is_lost() -> None:
    delivered, lost = outcomes(DELIVERED, LOST)
    assert (delivered.delivered, lost.lost) == (True, True)


def test_a_missing_topic_is_the_trouble_of_its_messages_alone() -> None:
    missing = DeliveryReport(DeliveryStatus.MISSING, "the topic orders does not exist")
    expected = Outcome(
        delivered=False, error="At kafka://broker.example, the topic orders does not exist.", not_now=True, missing=True
    )
    assert outcomes(DELIVERED, missing) == [Outcome(delivered=True), expected]
    assert outcomes(missing, missing) == [expected, expected]


def test_what_the_cluster_takes_later_is_nobodys_fault() -> None:
    (later,) = outcomes(DeliveryReport(DeliveryStatus.NOT_NOW, "no leader"))
    assert (later.not_now, later.missing, later.rejected, later.lost) == (True, False, False, False)


def test_an_outage_of_the_cluster_beside_others_that_got_through_costs_nothing() -> None:
    delivered, later = outcomes(DELIVERED, OUTAGE)
    assert delivered.delivered
    assert (later.not_now, later.rejected, later.lost) == (True, False, False)


def test_what_broke_before_any_was_answered_is_an_outage() -> None:
    with pytest.raises(TransportUnavailable, match="fatal") as broken:
        outcomes(LOST, LOST)
    assert broken.value.mid_send


def test_a_missing_right_in_the_cluster_is_no_messages_fault() -> None:
    with pytest.raises(TransportUnavailable, match="may not write idempotently") as missing:
        outcomes(LOST, OUTAGE)
    assert not missing.value.mid_send


def test_silence_of_a_cluster_that_is_away_is_an_outage() -> None:
    with pytest.raises(TransportUnavailable, match="refused") as away:
        outcomes(TIMED_OUT, TIMED_OUT, down="refused")
    assert away.value.mid_send
    delivered, lost = outcomes(DELIVERED, TIMED_OUT, down="refused")
    assert (delivered.delivered, lost.lost) == (True, True)


def test_the_answer_names_the_topic() -> None:
    assert "the topic orders does not exist" in build_report(3, topic="orders", text="?").reason


# --- one send ---


def _send(count: int) -> PendingSend:
    messages = [EncodedMessage("orders", None, b"", [])] * count
    return PendingSend(messages)


async def test_a_send_is_done_with_its_last_answer() -> None:
    send = _send(3)
    send.resolve(2, None)
    send.resolve(0, KafkaError(KafkaError.THROTTLING_QUOTA_EXCEEDED))
    assert not send.done.done()
    send.resolve(1, None)
    assert send.done.done()
    assert [report.status for report in send.reports] == [
        DeliveryStatus.NOT_NOW,
        DeliveryStatus.DELIVERED,
        DeliveryStatus.DELIVERED,
    ]


async def test_what_is_not_answered_in_time_is_silence_and_the_rest_keeps_its_answers() -> None:
    send = _send(3)
    send.resolve(1, None)
    send.end()
    send.resolve(0, None)  # too late to be heard
    assert send.reports == [TIMED_OUT, DELIVERED, TIMED_OUT]


async def test_what_the_client_did_not_take_is_about_that_message_alone() -> None:
    send = _send(2)
    send.refuse(0, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    send.resolve(1, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert [report.status for report in send.reports] == [DeliveryStatus.REJECTED, DeliveryStatus.SUSPECT]


# --- whether it can be reached ---


def test_a_single_broken_connection_is_no_outage() -> None:
    reachability = Reachability(hide=str)
    reachability.record_error(ErrorCode._TIMED_OUT, "one broker is slow")
    assert reachability.down is None


def test_the_reason_of_an_outage_is_what_the_client_said_last() -> None:
    reachability = Reachability(hide=lambda text: text.replace("secret", "***"))
    reachability.record_error(KafkaError._TRANSPORT, "connection refused, secret")
    reachability.record_error(ErrorCode._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert reachability.down == "connection refused, ***"
    reachability.record_error(KafkaError._AUTHENTICATION, "wrong login")
    assert reachability.down == "wrong login"
    reachability.record_answer()
    assert reachability.down is None
