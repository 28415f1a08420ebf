"""What JetStream's answers mean."""

from __future__ import annotations

import msgspec
import nats.errors
import pytest

from pillarbox.brokers.nats.connection import _find_reason
from pillarbox.brokers.nats.errors import (
    BatchRefused,
    BatchStarted,
    FirstStored,
    PermissionViolation,
    parse_permission_violation,
    read_ack,
    read_batch_commit,
    read_batch_start,
)
from pillarbox.brokers.send_batch import DELIVERED, NotAnswered
from pillarbox.contracts.transport import Outcome


def said(**members: object) -> Outcome | NotAnswered:
    return read_ack(msgspec.json.encode(members), status=None, subject="orders.eu")


def refused(err_code: int, description: str = "words", code: int = 400) -> Outcome | NotAnswered:
    error = {"code": code, "err_code": err_code, "description": description}
    return said(type="io.nats.jetstream.api.v1.pub_ack", error=error, stream="S", seq=0)


def test_stored_is_delivered() -> None:
    assert said(stream="S", seq=1) is DELIVERED


def test_stored_already_is_delivered() -> None:
    assert said(stream="S", seq=1, duplicate=True) is DELIVERED


@pytest.mark.parametrize("members", [{}, {"stream": "S"}, {"stream": "S", "seq": 0}, {"seq": 4}, {"ok": True}])
def test_what_is_no_acknowledgement_is_none(members: dict[str, object]) -> None:
    answer = said(**members)
    assert isinstance(answer, Outcome)
    assert not answer.delivered
    assert not answer.rejected


@pytest.mark.parametrize("data", [b"", b"+ACK", b"{", b"[]", b'{"stream": 5, "seq": 1}', b'{"x":' + b"[" * 20_000])
def test_what_is_no_json_is_no_acknowledgement(data: bytes) -> None:
    answer = read_ack(data, status=None, subject="orders")
    assert isinstance(answer, Outcome)
    assert not answer.delivered


def test_nobody_there_is_missing_topology() -> None:
    answer = read_ack(b"", status="503", subject="orders.eu")
    assert isinstance(answer, Outcome)
    assert (answer.not_now, answer.missing) == (True, True)
    assert "'orders.eu'" in (answer.error or "")
    assert "declare=true" in (answer.error or "")


@pytest.mark.parametrize("err_code", [10059, 10060, 10109])
def test_what_is_the_same_for_the_subject_is_missing_topology(err_code: int) -> None:
    answer = refused(err_code)
    assert isinstance(answer, Outcome)
    assert (answer.not_now, answer.missing) == (True, True)


@pytest.mark.parametrize("err_code", [10039, 10076])
def test_what_is_the_same_for_all_is_an_outage(err_code: int) -> None:
    answer = refused(err_code)
    assert isinstance(answer, NotAnswered)
    assert answer.is_outage


@pytest.mark.parametrize("err_code", [10054, 10097])
def test_too_large_is_rejected(err_code: int) -> None:
    answer = refused(err_code)
    assert isinstance(answer, Outcome)
    assert answer.rejected


@pytest.mark.parametrize(
    ("err_code", "code"), [(10002, 400), (10120, 400), (10028, 500), (10047, 500), (10158, 409), (10167, 429)]
)
def test_no_room_costs_no_attempt_whatever_the_server_calls_it(err_code: int, code: int) -> None:
    """An account that is full answers with 400, as for a message at fault."""
    answer = refused(err_code, "resource limits exceeded for account", code=code)
    assert isinstance(answer, Outcome)
    assert (answer.delivered, answer.rejected, answer.not_now, answer.missing) == (False, False, True, False)


@pytest.mark.parametrize("err_code", [10077, 10023, 10041, 99999])
def test_everything_else_may_pass(err_code: int) -> None:
    """Where the server is short of something it costs no attempt."""
    for code, is_later in ((503, True), (400, False)):
        answer = refused(err_code, "maximum messages exceeded", code=code)
        assert isinstance(answer, Outcome)
        assert (answer.delivered, answer.rejected, answer.not_now) == (False, False, is_later)
        assert "maximum messages exceeded" in (answer.error or "")


def test_a_servers_words_are_made_fit_to_be_shown() -> None:
    answer = refused(10077, "two\nlines, password=hunter2")
    assert isinstance(answer, Outcome)
    assert "\n" not in (answer.error or "")
    assert "hunter2" not in (answer.error or "")


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        ('nats: permissions violation for publish to "orders.eu"', PermissionViolation("publish", "orders.eu")),
        (
            'nats: Permissions Violation for Subscription to "_INBOX.x.*"',
            PermissionViolation("subscription", "_inbox.x.*"),
        ),
        ("nats: stale connection", None),
    ],
)
def test_permissions(error: str, meant: PermissionViolation | None) -> None:
    assert parse_permission_violation(error) == meant


# --- atomic batches ---

DISABLED = msgspec.json.encode({"error": {"code": 400, "err_code": 10174}, "stream": "S", "seq": 0})
INCOMPLETE = msgspec.json.encode({"error": {"code": 400, "err_code": 10176}, "stream": "S", "seq": 0})


def test_a_batch_has_started_when_the_answer_is_empty() -> None:
    assert read_batch_start(b"", status=None) == BatchStarted()


def test_a_server_that_acknowledges_the_first_message_has_stored_it() -> None:
    assert read_batch_start(b'{"stream": "S", "seq": 7}', status=None) == FirstStored()


@pytest.mark.parametrize("data", [b"{}", b"+OK", b'{"stream": "S"}', b'{"stream": "S", "seq": 7, "batch": "x"}'])
def test_no_other_answer_starts_a_batch(data: bytes) -> None:
    assert read_batch_start(data, status=None) == BatchRefused()
    assert read_batch_start(b"", status="503") == BatchRefused()


def test_a_stream_without_batches_says_so() -> None:
    assert read_batch_start(DISABLED, status=None) == BatchRefused(is_unsupported=True)
    assert read_batch_start(INCOMPLETE, status=None) == BatchRefused()


def test_a_batch_is_delivered_when_all_of_it_is_counted() -> None:
    ack = b'{"stream": "S", "seq": 7, "batch": "x", "count": 3}'
    assert read_batch_commit(ack, status=None, count=3) is DELIVERED
    assert isinstance(read_batch_commit(ack, status=None, count=4), NotAnswered)
    assert isinstance(read_batch_commit(b'{"stream": "S", "seq": 7}', status=None, count=3), NotAnswered)
    assert read_batch_commit(INCOMPLETE, status=None, count=3) == BatchRefused()
    assert read_batch_commit(b"", status=None, count=3) == BatchRefused()


def test_what_a_server_said_counts_more_than_a_lost_connection() -> None:
    """Of two tries, the one that read why the server closed the connection."""
    lost, refused = ConnectionResetError("Connection lost"), nats.errors.AuthorizationError()
    assert _find_reason([lost, refused]) is refused
    assert _find_reason([refused, lost]) is refused
    assert _find_reason([lost]) is lost
    assert _find_reason([]) is None
