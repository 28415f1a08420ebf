"""What RabbitMQ's answers mean, for the message and for the destination."""

from __future__ import annotations

import ssl

import pytest

from pillarbox.brokers.rabbitmq.encoding import EncodedMessage
from pillarbox.brokers.rabbitmq.errors import (
    NACKED,
    Answer,
    Broken,
    Closed,
    Ended,
    NotAnswered,
    map_connect_error,
    map_end,
    map_refusal,
    map_return,
    parse_size_limit,
    to_outcomes,
)
from pillarbox.brokers.send_batch import DELIVERED
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable

CUT = NotAnswered("cut")
BLAMED = NotAnswered("no such exchange", is_to_blame=True)
# As RabbitMQ 3.8 to 4.1 word it.
TOO_LARGE = (
    "PRECONDITION_FAILED - message size 600 larger than max size 512",
    "PRECONDITION_FAILED - message size 600 is larger than configured max size 512",
    "PRECONDITION_FAILED - message size 600 is larger than max size 512",
)


def encoded(*, exchange: str = "shop", routing_key: str = "orders", size: int = 10) -> EncodedMessage:
    return EncodedMessage("1", exchange, routing_key, size, b"")


def judged(*answers: Answer | None, blocked: str | None = None) -> list[Outcome]:
    return to_outcomes(answers, late="late", blocked=blocked)


def unavailable(*answers: Answer | None, blocked: str | None = None) -> TransportUnavailable:
    with pytest.raises(TransportUnavailable) as error:
        judged(*answers, blocked=blocked)
    return error.value


# --- a send as a whole ---------------------------------------------------------------------------


def test_answers_are_outcomes() -> None:
    assert judged(DELIVERED, NACKED) == [DELIVERED, NACKED]


def test_no_answer_in_time_is_not_delivered_and_the_others_keep_theirs() -> None:
    late = Outcome(False, "late", unanswered=True, not_now=True)
    assert judged(DELIVERED, None) == [DELIVERED, late]
    assert judged(None, None) == [late] * 2


def test_a_break_before_any_answer_is_an_outage_under_way() -> None:
    assert unavailable(CUT, CUT).mid_send


def test_a_break_after_some_answers_loses_the_others() -> None:
    assert judged(DELIVERED, CUT) == [DELIVERED, Outcome(False, "cut", lost=True)]


def test_what_is_missing_is_the_trouble_of_its_messages_alone() -> None:
    missing = Outcome(False, "no such exchange", not_now=True, missing=True)
    assert judged(BLAMED, BLAMED) == [missing, missing]
    assert judged(BLAMED, CUT) == [missing, Outcome(False, "cut", lost=True)]
    assert judged(BLAMED, DELIVERED) == [missing, DELIVERED]


def test_while_the_broker_takes_no_messages_silence_blames_nobody() -> None:
    error = unavailable(None, None, blocked="low on disk")
    assert (str(error), error.mid_send) == ("low on disk", False)
    assert judged(DELIVERED, None, blocked="low on disk") == [DELIVERED, Outcome(False, "low on disk", lost=True)]


# --- one message ---------------------------------------------------------------------------------


def test_a_returned_message_lacks_its_queue_and_says_where_it_went() -> None:
    outcome = map_return(encoded(), code=312, text="NO_ROUTE")
    assert (outcome.not_now, outcome.missing, outcome.rejected) == (True, True, False)
    assert "312 NO_ROUTE" in (outcome.error or "")
    assert "exchange 'shop'" in (outcome.error or "")
    assert "'orders'" in (outcome.error or "")


def test_a_nack_asks_to_come_back_later() -> None:
    assert (NACKED.delivered, NACKED.rejected, NACKED.lost, NACKED.not_now) == (False, False, False, True)


@pytest.mark.parametrize("text", TOO_LARGE)
def test_the_too_large_one_is_found_by_its_size(text: str) -> None:
    reason = Closed(406, text)
    guilty = map_end(reason, encoded(size=600), is_alone=False)
    assert isinstance(guilty, Outcome)
    assert guilty.rejected
    assert isinstance(map_end(reason, encoded(size=512), is_alone=False), NotAnswered)
    assert parse_size_limit(reason) == 512


def test_a_limit_in_other_words_rejects_only_who_is_alone() -> None:
    reason = Closed(406, "PRECONDITION_FAILED - too big for us")
    assert parse_size_limit(reason) is None
    assert isinstance(map_end(reason, encoded(), is_alone=False), NotAnswered)
    alone = map_end(reason, encoded(), is_alone=True)
    assert isinstance(alone, Outcome)
    assert alone.rejected


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (404, "NOT_FOUND - no exchange 'shop' in vhost '/'"),
        (403, "ACCESS_REFUSED - access to exchange 'shop' in vhost '/' refused for user 'u'"),
        (403, "ACCESS_REFUSED - cannot publish to internal exchange 'shop' in vhost '/'"),
        (403, "ACCESS_REFUSED - access to topic 'orders' in exchange 'shop' in vhost '/' refused for user 'u'"),
        (404, "NOT_FOUND - in words that nobody foresaw"),
    ],
)
def test_whose_address_it_is_about_is_to_blame(code: int, text: str) -> None:
    answer = map_end(Closed(code, text), encoded(), is_alone=False)
    assert isinstance(answer, NotAnswered)
    assert answer.is_to_blame
    assert text in answer.reason
    assert "declare=true" in answer.reason or code == 403


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (404, "NOT_FOUND - no exchange 'other' in vhost '/'"),
        (403, "ACCESS_REFUSED - access to topic 'other' in exchange 'shop' in vhost '/' refused for user 'u'"),
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"),
    ],
)
def test_the_others_are_not(code: int, text: str) -> None:
    assert map_end(Closed(code, text), encoded(), is_alone=False) == NotAnswered(
        f"RabbitMQ closed the channel or the connection ({code} {text})."
    )


def test_a_broken_connection_blames_nobody() -> None:
    assert map_end(Broken("reset"), encoded(), is_alone=True) == NotAnswered(
        "The connection to RabbitMQ broke (reset)."
    )


def test_the_default_exchange_has_a_name_in_errors() -> None:
    reason = Closed(403, "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'u'")
    answer = map_end(reason, encoded(exchange=""), is_alone=False)
    assert isinstance(answer, NotAnswered)
    assert "default exchange" in answer.reason


# --- no way to the broker ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Closed(403, "ACCESS_REFUSED - Login was refused"), "refuses the login"),
        (Closed(530, "NOT_ALLOWED - vhost shop not found"), "refuses the virtual host"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "cannot be trusted"),
        (ConnectionRefusedError(111, "…"), "cannot be reached"),
        (TimeoutError(), "no answer in time"),
        (Broken("it does not answer in AMQP 0-9-1"), "it does not answer in AMQP 0-9-1"),
    ],
)
def test_no_connection_says_why(error: Exception, text: str) -> None:
    found = map_connect_error(error, where="RabbitMQ at amqp://shop")
    assert text in str(found)
    assert not found.mid_send


@pytest.mark.parametrize(
    ("code", "advice"),
    [(404, "declare=true"), (406, "exchange_type"), (403, "leave out declare"), (540, "did not like")],
)
def test_a_question_that_the_broker_dislikes_says_what_to_do(code: int, advice: str) -> None:
    text = str(map_refusal(Closed(code, "SAID"), where="RabbitMQ", what="exchange 'shop'"))
    assert advice in text
    assert "'shop'" in text
    assert f"{code} SAID" in text


def test_what_a_broker_says_stays_on_one_line() -> None:
    reason: Ended = Closed(404, "no exchange\r\n\x1b[31m password=canary")
    answer = map_end(reason, encoded(), is_alone=False)
    assert isinstance(answer, NotAnswered)
    assert "\n" not in answer.reason
    assert "\x1b" not in answer.reason
    assert "canary" not in answer.reason
