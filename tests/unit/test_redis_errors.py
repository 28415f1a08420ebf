"""What the replies of Redis mean."""

from __future__ import annotations

import pytest

from pillarbox.brokers.redis.errors import (
    ErrorReply,
    is_demotion,
    is_script_refusal,
    read_add_reply,
    read_run_reply,
    read_wait_reply,
)
from pillarbox.brokers.redis.settings import Durability
from pillarbox.brokers.send_batch import DELIVERED, NotAnswered
from pillarbox.contracts.transport import Outcome


def test_an_id_is_delivered() -> None:
    assert read_add_reply(b"1700000000000-0", key="orders") is DELIVERED


def test_no_stream_is_missing_topology() -> None:
    answer = read_add_reply(None, key="orders")
    assert isinstance(answer, Outcome)
    assert (answer.not_now, answer.missing) == (True, True)
    assert "'orders'" in (answer.error or "")
    assert "create=false" in (answer.error or "")


@pytest.mark.parametrize(
    "words",
    [
        "NOPERM User x has no permissions",
        "WRONGTYPE Operation against a key",
        "ERR The stream has exhausted the last possible ID, unable to add more items",
    ],
)
def test_what_is_the_same_for_the_stream_is_missing_topology(words: str) -> None:
    answer = read_add_reply(ErrorReply(words), key="orders")
    assert isinstance(answer, Outcome)
    assert (answer.not_now, answer.missing) == (True, True)
    assert words[:20] in (answer.error or "")


@pytest.mark.parametrize(
    "words", ["OOM command not allowed when used memory > 'maxmemory'.", "TRYAGAIN Multiple keys request"]
)
def test_what_may_pass_costs_no_attempt(words: str) -> None:
    answer = read_add_reply(ErrorReply(words), key="orders")
    assert isinstance(answer, Outcome)
    assert (answer.not_now, answer.missing) == (True, False)


@pytest.mark.parametrize(
    "words",
    [
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "LOADING Redis is loading the dataset in memory",
        "MISCONF Redis is configured to save RDB snapshots",
        "MOVED 3999 127.0.0.1:6381",
        "NOAUTH Authentication required.",
        "NOREPLICAS Not enough good replicas to write.",
        "READONLY You can't write against a read only replica.",
        "ERR unknown command 'XADD'",
    ],
)
def test_what_is_the_same_for_all_is_an_outage(words: str) -> None:
    answer = read_add_reply(ErrorReply(words), key="orders")
    assert isinstance(answer, NotAnswered)
    assert answer.is_outage
    assert "'orders'" in answer.reason
    assert words[:20] in answer.reason


def test_an_error_that_is_not_known_is_the_messages() -> None:
    answer = read_add_reply(ErrorReply("ERR odd"), key="orders")
    assert isinstance(answer, Outcome)
    assert (answer.delivered, answer.rejected, answer.not_now) == (False, False, False)


def test_too_large_is_rejected() -> None:
    answer = read_add_reply(ErrorReply("Protocol error: invalid bulk length"), key="orders")
    assert isinstance(answer, Outcome)
    assert answer.rejected


@pytest.mark.parametrize("reply", [5, [], "text"])
def test_an_unknown_reply_is_not_delivered(reply: object) -> None:
    answer = read_add_reply(reply, key="orders")
    assert isinstance(answer, Outcome)
    assert not answer.delivered


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        (1, Durability(False, 1)),
        (5, Durability(False, 2)),
        ([1, 0], Durability(True, 0)),
        ([1, 2], Durability(True, 2)),
    ],
)
def test_as_safe_as_wanted(reply: object, wanted: Durability) -> None:
    assert read_wait_reply(reply, wanted) is None


@pytest.mark.parametrize(
    ("reply", "wanted", "words"),
    [
        (0, Durability(False, 1), "0 of 1 replicas"),
        ([0, 0], Durability(True, 0), "disk"),
        ([1, 1], Durability(True, 2), "1 of 2 replicas"),
        (b"OK", Durability(False, 1), "unknown"),
    ],
)
def test_less_safe_than_wanted_is_not_delivered(reply: object, wanted: Durability, words: str) -> None:
    short = read_wait_reply(reply, wanted)
    assert isinstance(short, Outcome)
    assert (short.delivered, short.rejected) == (False, False)
    assert words in (short.error or "")


@pytest.mark.parametrize(
    "words", ["unknown command 'WAITAOF'", "WAITAOF cannot be used when numlocal is set but appendonly is disabled."]
)
def test_a_server_that_cannot_say_is_an_outage(words: str) -> None:
    short = read_wait_reply(ErrorReply(words), Durability(True, 0))
    assert isinstance(short, NotAnswered)
    assert short.is_outage
    assert "7.2" in short.reason


def test_a_script_answers_for_the_messages_that_it_tried() -> None:
    full = ErrorReply("OOM command not allowed when used memory > 'maxmemory'.")
    added, refused = read_run_reply([b"1-0", full], key="orders", count=5)
    assert added is DELIVERED
    assert refused == read_add_reply(full, key="orders")
    assert read_run_reply([None], key="orders", count=5) == [read_add_reply(None, key="orders")]


def test_an_error_within_a_script_has_its_code_behind_its_place_in_old_servers() -> None:
    old = ErrorReply("@user_script: 4: -OOM command not allowed when used memory > 'maxmemory'.")
    (answer,) = read_run_reply([old], key="orders", count=5)
    assert isinstance(answer, Outcome)
    assert answer.not_now


def test_an_error_in_place_of_a_script_is_the_answer_for_the_first_message() -> None:
    (answer,) = read_run_reply(ErrorReply("LOADING Redis is loading the dataset"), key="orders", count=5)
    assert isinstance(answer, NotAnswered)
    assert answer.is_outage
    (unknown,) = read_run_reply([], key="orders", count=5)
    assert isinstance(unknown, Outcome)
    assert not unknown.delivered


def test_a_field_that_is_too_large_for_a_script_is_the_fault_of_one_that_nobody_knows() -> None:
    answers = read_run_reply(ErrorReply("ERR Protocol error: invalid bulk length"), key="orders", count=3)
    assert len(answers) == 3
    assert all(isinstance(answer, NotAnswered) and not answer.is_outage for answer in answers)


@pytest.mark.parametrize(
    ("words", "is_refusal"),
    [
        ("NOPERM User plain has no permissions to run the 'eval' command", True),
        ("NOPERM this user has no permissions to run the 'eval' command or its subcommand", True),
        ("ERR unknown command `EVAL`, with args beginning with: ", True),
        ("NOPERM No permissions to access a key", False),
        ("WRONGTYPE Operation against a key", False),
    ],
)
def test_a_server_that_runs_no_scripts_is_known(words: str, is_refusal: bool) -> None:
    assert is_script_refusal(ErrorReply(words)) is is_refusal
    assert not is_script_refusal([b"1-0"])


@pytest.mark.parametrize(
    ("reply", "is_one"),
    [
        ("READONLY You can't write against a read only replica.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("MASTERDOWN Link with MASTER is down", True),
        ("@user_script: 4: -READONLY You can't write against a read only replica.", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("NOREPLICAS Not enough good replicas to write.", False),
        ("NOPERM this user has no permissions", False),
    ],
)
def test_a_server_that_is_no_master_any_more(reply: str, is_one: bool) -> None:
    """Its connection is left: another one leads to the new master."""
    assert is_demotion(ErrorReply(reply)) is is_one


@pytest.mark.parametrize("code", ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS"])
def test_a_failover_costs_no_message_an_attempt(code: str) -> None:
    answer = read_add_reply(ErrorReply(f"{code} it is not the leader"), key="orders")
    assert isinstance(answer, NotAnswered)
    assert answer.is_outage
