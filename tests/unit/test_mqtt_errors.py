"""What a broker's reason codes mean."""

from __future__ import annotations

import pytest

from pillarbox.brokers.mqtt.errors import AcknowledgementPolicy, advise_on_refused_connect, to_outcome
from pillarbox.brokers.mqtt.settings import NoSubscribers
from pillarbox.contracts.transport import Outcome

POLICY = AcknowledgementPolicy(where="mqtt://broker.example:1883")


def outcome(code: int, text: str | None = None) -> Outcome:
    return to_outcome(code, POLICY, topic="orders", text=text)


def test_success() -> None:
    assert outcome(0x00) == Outcome(delivered=True)


@pytest.mark.parametrize(
    ("policy", "expected"), [("accept", (True, False)), ("refuse", (False, False)), ("reject", (False, True))]
)
def test_nobody_subscribes(policy: NoSubscribers, expected: tuple[bool, bool]) -> None:
    answer = to_outcome(0x10, AcknowledgementPolicy(where="broker", no_subscribers=policy), topic="orders")
    assert (answer.delivered, answer.rejected) == expected


@pytest.mark.parametrize("code", range(0x80, 0x100))
def test_no_failure_is_a_success(code: int) -> None:
    assert not outcome(code).delivered
    assert f"0x{code:02x}" in (outcome(code).error or "")


@pytest.mark.parametrize("code", [0x90, 0x95, 0x99])
def test_the_message_itself_is_at_fault(code: int) -> None:
    assert outcome(code).rejected


@pytest.mark.parametrize(("code", "is_free"), [
    (0x80, False), (0x83, False), (0x87, True), (0x91, True), (0x92, True), (0x97, True),
])  # fmt: skip
def test_it_may_work_later_and_costs_no_attempt_where_the_message_is_not_at_fault(code: int, is_free: bool) -> None:
    assert not outcome(code).rejected
    assert (outcome(code).not_now, outcome(code).missing) == (is_free, code == 0x87)


def test_a_denied_topic_is_named() -> None:
    assert outcome(0x87).error == (
        "mqtt://broker.example:1883 refused a message to 'orders': no permission to publish to that topic; allow it in "
        "the broker's access list (0x87)."
    )


def test_what_the_broker_said_is_on_one_line() -> None:
    assert (outcome(0x97, text="over\nquota").error or "").endswith("It said: over quota")


@pytest.mark.parametrize(("code", "word"), [(0x86, "password"), (0x85, "client_id"), (0x84, "MQTT 5"), (0x88, "ask")])
def test_advice(code: int, word: str) -> None:
    assert word in advise_on_refused_connect(code)
