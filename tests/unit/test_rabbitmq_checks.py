"""What is set on the broker that could lose messages, and where a routing key leads."""

from __future__ import annotations

import pytest

from pillarbox.brokers.rabbitmq.checks import (
    Binding,
    Exchange,
    Node,
    Queue,
    check_exchange,
    check_nodes,
    check_queue,
    match_bindings,
)
from pillarbox.contracts.finding import Severity

SAFE = Queue("q", type="quorum", arguments={"x-dead-letter-exchange": "d", "x-dead-letter-strategy": "at-least-once"})


def codes(queue: Queue) -> set[str]:
    return {finding.code for finding in check_queue(queue)}


def test_a_safe_queue_has_no_findings() -> None:
    assert codes(SAFE) == set()


@pytest.mark.parametrize(
    ("queue", "code"),
    [
        (Queue("q", durable=False), "queue-not-durable"),
        (Queue("q", exclusive=True), "queue-not-durable"),
        (Queue("q", auto_delete=True), "queue-deletes-itself"),
        (Queue("q", arguments={"x-expires": 1}), "queue-deletes-itself"),
        (Queue("q", arguments={"x-max-length": 1}), "queue-drops"),
        (Queue("q", arguments={"x-max-length-bytes": 1, "x-overflow": "drop-head"}), "queue-drops"),
        (Queue("q", effective_policy_definition={"max-length": 1}), "queue-drops"),
        (Queue("q", arguments={"x-message-ttl": 1}), "queue-expires-messages"),
        (Queue("q"), "queue-on-one-node"),
        (Queue("q", type="quorum"), "queue-delivery-limit"),
        (Queue("q", type="quorum", arguments={"x-dead-letter-exchange": "d"}), "dead-letter-at-most-once"),
    ],
)
def test_a_queue_that_can_lose_is_found(queue: Queue, code: str) -> None:
    assert f"rabbitmq.{code}" in codes(queue)


def test_a_full_queue_that_refuses_loses_nothing() -> None:
    refusing = Queue("q", arguments={"x-max-length": 1}, effective_policy_definition={"overflow": "reject-publish"})
    assert "rabbitmq.queue-drops" not in codes(refusing)


def test_some_versions_say_no_policy_with_a_list() -> None:
    assert Queue("q", effective_policy_definition=[]).find_argument("max-length") is None


@pytest.mark.parametrize(
    ("exchange", "code"),
    [
        (Exchange("x", "topic", durable=False), "exchange-not-durable"),
        (Exchange("x", "topic", auto_delete=True), "exchange-auto-delete"),
        (Exchange("x", "topic", arguments={"alternate-exchange": "a"}), "alternate-exchange"),
        (Exchange("x", "topic", by_policy={"alternate-exchange": "a"}), "alternate-exchange"),
    ],
)
def test_an_exchange_that_can_lose_is_found(exchange: Exchange, code: str) -> None:
    assert [finding.code for finding in check_exchange(exchange)] == [f"rabbitmq.{code}"]
    assert list(check_exchange(Exchange("x", "topic"))) == []


def test_alarms_are_critical() -> None:
    found = list(check_nodes([Node("a"), Node("b", mem_alarm=True), Node("c", disk_free_alarm=True)]))
    assert [finding.severity for finding in found] == [Severity.CRITICAL] * 2
    assert "memory" in found[0].what
    assert "disk" in found[1].what


@pytest.mark.parametrize(
    ("pattern", "routing_key", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.eu.cz", False),
        ("orders.#", "orders", True),
        ("orders.#", "orders.eu.cz", True),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("#.cz", "cz", True),
        ("*.#.cz", "orders.cz", True),
        ("*.#.cz", "cz", False),
        ("a+", "aa", False),
    ],
)
def test_topic_bindings_match_as_the_broker_matches(pattern: str, routing_key: str, matches: bool) -> None:
    assert bool(match_bindings([Binding("q", "queue", pattern)], routing_key, kind="topic")) is matches


def test_other_kinds_of_exchanges() -> None:
    bindings = [Binding("q", "queue", "a"), Binding("r", "queue", "b")]
    assert match_bindings(bindings, "a", kind="direct") == bindings[:1]
    assert match_bindings(bindings, "a", kind="fanout") == bindings
    assert match_bindings(bindings, "a", kind="headers") is None
