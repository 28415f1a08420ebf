"""What an HTTP answer means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.http.errors import (
    DeliveryStatus,
    Response,
    ResponsePolicy,
    check_rejects,
    classify,
    parse_retry_after,
    to_outcome,
)
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = ResponsePolicy(where="https://shop.example/…")

EXPECTED = {
    DeliveryStatus.DELIVERED: {*range(200, 300)},
    DeliveryStatus.REJECTED: {400, 413, 415, 422, 431},
    DeliveryStatus.OUTAGE: {401, 402, 403, 405, 406, 407, 410, 411, 414, 417, 426},
}


@pytest.mark.parametrize("status", range(100, 600))
def test_each_status_has_one_meaning(status: int) -> None:
    expected = next((found for found, statuses in EXPECTED.items() if status in statuses), DeliveryStatus.FAILED)
    assert classify(status, POLICY) is expected


def test_which_statuses_reject_can_be_chosen() -> None:
    policy = ResponsePolicy(where="x", rejects={404, 409})
    assert classify(404, policy) is DeliveryStatus.REJECTED
    assert classify(409, policy) is DeliveryStatus.REJECTED
    assert classify(400, policy) is DeliveryStatus.FAILED


def test_gone_can_reject() -> None:
    assert classify(410, ResponsePolicy(where="x", gone="reject")) is DeliveryStatus.REJECTED


def test_delivered_says_nothing_more() -> None:
    assert to_outcome(Response(status=202, body=b"thanks"), POLICY, now=NOW) == Outcome(delivered=True)


def test_a_failure_says_what_was_answered() -> None:
    outcome = to_outcome(Response(status=503, body=b"come\r\nback \x1b[31mlater", retry_after="7"), POLICY, now=NOW)
    assert outcome == Outcome(
        delivered=False,
        error="https://shop.example/… answered 503 Service Unavailable. It said: come back [31mlater",
        retry_after=timedelta(seconds=7),
        detail="come back [31mlater",
        not_now=True,
    )


@pytest.mark.parametrize(
    ("status", "retry_after", "not_now"),
    [(429, None, True), (429, "7", True), (503, "7", True), (503, None, False), (500, "7", False), (404, None, False)],
)
def test_an_answer_that_asks_to_come_back_later_is_not_the_messages_fault(
    status: int, retry_after: str | None, not_now: bool
) -> None:
    outcome = to_outcome(Response(status=status, retry_after=retry_after), POLICY, now=NOW)
    assert (outcome.not_now, outcome.rejected, outcome.missing) == (not_now, False, False)


def test_a_status_can_mean_that_the_endpoint_is_not_there() -> None:
    outcome = to_outcome(Response(status=404), ResponsePolicy(where="x", missing={404}), now=NOW)
    assert (outcome.not_now, outcome.missing, outcome.rejected) == (True, True, False)
    with pytest.raises(ConfigError, match="both have 404"):
        check_rejects({404, 422}, missing={404})
    with pytest.raises(ConfigError, match="missing has 503"):
        check_rejects({404}, missing={503})


def test_a_rejection_says_so() -> None:
    outcome = to_outcome(Response(status=422, body=b"no such order"), POLICY, now=NOW)
    assert (outcome.delivered, outcome.rejected) == (False, True)


def test_what_is_not_the_messages_fault_spends_nothing_and_says_what_to_check() -> None:
    outcome = to_outcome(Response(status=401, retry_after="60"), POLICY, now=NOW)
    assert outcome.error == (
        "https://shop.example/… answered 401 Unauthorized; check the secret, the headers and what the endpoint allows."
    )
    assert (outcome.not_now, outcome.missing, outcome.rejected) == (True, False, False)
    assert (outcome.unanswered, outcome.retry_after) == (False, timedelta(seconds=60)), "it is an answer"
    assert "404 Not Found; check the URL" in str(to_outcome(Response(status=404), POLICY, now=NOW).error)


def test_a_redirect_says_that_it_is_not_followed() -> None:
    assert "not followed" in str(to_outcome(Response(status=302), POLICY, now=NOW).error)


def test_a_status_without_a_name() -> None:
    assert to_outcome(Response(status=599), POLICY, now=NOW).error == "https://shop.example/… answered 599."


def test_a_long_answer_is_cut() -> None:
    outcome = to_outcome(Response(status=500, body=b"\xff" * 64_000), POLICY, now=NOW)
    assert len(outcome.error or "") < 400
    assert len(outcome.detail or "") <= 4_000


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 120 ", 120),
        ("86400", 86_400),
        ("86401", 86_400),
        ("9" * 500, 86_400),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30),
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0),
        ("Fri, 01 Jan 2126 12:00:00 GMT", 86_400),
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
        ("Thu, 99 Foo 2026 99:99:99 GMT", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=NOW) == (None if seconds is None else timedelta(seconds=seconds))


@given(st.text())
def test_any_retry_after_is_read_or_left(header: str) -> None:
    found = parse_retry_after(header, now=NOW)
    assert found is None or timedelta(0) <= found <= timedelta(days=1)
