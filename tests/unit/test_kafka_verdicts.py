"""What the answers of a Kafka cluster mean."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.kafka.answers import Batch
from pillarbox.transports.kafka.reach import Reach
from pillarbox.transports.kafka.records import Record
from pillarbox.transports.kafka.verdicts import (
    DELIVERED,
    SILENT,
    Answer,
    Code,
    Verdict,
    answer_of,
    outcomes_of,
    verdict,
)

FAILED = Answer(Verdict.FAILED, "full")
OUTAGE = Answer(Verdict.OUTAGE, "the topic orders does not exist")
LOST = Answer(Verdict.LOST, "fatal")


def outcomes(*answers: Answer, down: str | None = None) -> list[Outcome]:
    return outcomes_of(answers, where="kafka://broker.example", within=10, down=down)


@pytest.mark.parametrize("code", Code)
def test_the_codes_are_the_clients(code: Code) -> None:
    assert getattr(KafkaError, code.name) == code.value


def test_delivered_is_no_error_and_nothing_else() -> None:
    codes = [value for name, value in vars(KafkaError).items() if name.isupper() and isinstance(value, int)]
    assert [code for code in codes if verdict(code) is Verdict.DELIVERED] == [KafkaError.NO_ERROR]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Verdict.SUSPECT),
        (KafkaError.INVALID_RECORD, Verdict.SUSPECT),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Verdict.OUTAGE),
        (KafkaError._UNKNOWN_TOPIC, Verdict.OUTAGE),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Verdict.OUTAGE),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Verdict.OUTAGE),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, Verdict.FAILED),
        (KafkaError.NOT_ENOUGH_REPLICAS, Verdict.FAILED),
        (KafkaError.KAFKA_STORAGE_ERROR, Verdict.FAILED),
        (KafkaError.UNKNOWN, Verdict.FAILED),
        (KafkaError._MSG_TIMED_OUT, Verdict.SILENT),
        (KafkaError._PURGE_QUEUE, Verdict.LOST),
        (KafkaError._FATAL, Verdict.LOST),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Verdict.LOST),
    ],
)
def test_errors_are_told_apart(code: int, expected: Verdict) -> None:
    assert verdict(code) is expected


def test_a_fatal_error_is_the_clients_end_whatever_its_code() -> None:
    assert verdict(KafkaError.UNKNOWN, fatal=True) is Verdict.LOST


def test_each_message_has_its_own_outcome() -> None:
    delivered, failed, rejected, silent = outcomes(DELIVERED, FAILED, Answer(Verdict.REJECTED, "large"), SILENT)
    assert delivered == Outcome(delivered=True)
    assert (failed.rejected, failed.lost, failed.error) == (
        False,
        False,
        "kafka://broker.example did not take it: full",
    )
    assert rejected.rejected
    assert silent == Outcome(delivered=False, error="no answer from kafka://broker.example within 10 s")


def test_what_broke_after_some_were_answered_is_lost() -> None:
    delivered, lost = outcomes(DELIVERED, LOST)
    assert (delivered.delivered, lost.lost) == (True, True)


def test_a_missing_topic_is_the_trouble_of_its_messages_alone_if_others_got_through() -> None:
    delivered, missing = outcomes(DELIVERED, OUTAGE)
    assert delivered.delivered
    assert (missing.delivered, missing.rejected, missing.lost) == (False, False, False)
    assert "does not exist" in (missing.error or "")


def test_what_broke_before_any_was_answered_is_an_outage() -> None:
    with pytest.raises(TransportUnavailable, match="fatal") as broken:
        outcomes(LOST, LOST)
    assert broken.value.mid_send


def test_a_missing_topic_is_no_messages_fault() -> None:
    with pytest.raises(TransportUnavailable, match="the topic orders does not exist") as missing:
        outcomes(LOST, OUTAGE)
    assert not missing.value.mid_send


def test_silence_of_a_cluster_that_is_away_is_an_outage() -> None:
    with pytest.raises(TransportUnavailable, match="refused") as away:
        outcomes(SILENT, SILENT, down="refused")
    assert away.value.mid_send
    delivered, lost = outcomes(DELIVERED, SILENT, down="refused")
    assert (delivered.delivered, lost.lost) == (True, True)


def test_the_answer_names_the_topic() -> None:
    assert "the topic orders does not exist" in answer_of(3, topic="orders", said="?").text


# --- one send ---


def _batch(count: int) -> Batch:
    records = [Record("orders", None, b"", [])] * count
    return Batch(records, done=asyncio.get_running_loop().create_future())


async def test_a_send_is_done_with_its_last_answer() -> None:
    batch = _batch(3)
    batch.answered(2, None)
    batch.answered(0, KafkaError(KafkaError.THROTTLING_QUOTA_EXCEEDED))
    assert not batch.done.done()
    batch.answered(1, None)
    assert batch.done.done()
    assert [answer.verdict for answer in batch.answers] == [Verdict.FAILED, Verdict.DELIVERED, Verdict.DELIVERED]


async def test_what_is_not_answered_in_time_is_silence_and_the_rest_keeps_its_answers() -> None:
    batch = _batch(3)
    batch.answered(1, None)
    batch.end()
    batch.answered(0, None)  # too late to be heard
    assert batch.answers == [SILENT, DELIVERED, SILENT]


async def test_what_the_client_did_not_take_is_about_that_message_alone() -> None:
    batch = _batch(2)
    batch.refused(0, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    batch.answered(1, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert [answer.verdict for answer in batch.answers] == [Verdict.REJECTED, Verdict.SUSPECT]


# --- whether it can be reached ---


def test_a_single_broken_connection_is_no_outage() -> None:
    reach = Reach(hide=str)
    reach.heard(Code._TIMED_OUT, "one broker is slow")
    assert reach.down is None


def test_the_reason_of_an_outage_is_what_the_client_said_last() -> None:
    reach = Reach(hide=lambda text: text.replace("secret", "***"))
    reach.heard(KafkaError._TRANSPORT, "connection refused, secret")
    reach.heard(Code._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert reach.down == "connection refused, ***"
    reach.heard(KafkaError._AUTHENTICATION, "wrong login")
    assert reach.down == "wrong login"
    reach.answered()
    assert reach.down is None
