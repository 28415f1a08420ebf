"""How long a NATS receiver waits for what somebody else had in hand."""

from __future__ import annotations

import pytest

from pillarbox.brokers.nats.receiver import RedeliveryBarrier
from pillarbox.brokers.nats.streams import ConsumerState

FIVE_OUT = ConsumerState(floor=10, delivered=15, unacknowledged=5, waiting=0)


@pytest.fixture
def barrier() -> RedeliveryBarrier:
    return RedeliveryBarrier(FIVE_OUT, now=100.0, ack_wait=10.0, expires=30.0)


def is_over(
    barrier: RedeliveryBarrier, state: ConsumerState = FIVE_OUT, *, in_hand: int = 0, requests: int = 0, now: float
) -> bool:
    return barrier.is_over(state, in_hand=in_hand, requests=requests, now=now)


def test_it_lasts_while_somebody_else_has_a_message(barrier: RedeliveryBarrier) -> None:
    assert not is_over(barrier, now=101)
    assert not is_over(barrier, FIVE_OUT._replace(unacknowledged=7), in_hand=6, now=111)


def test_it_is_over_when_all_that_is_out_is_in_our_hands(barrier: RedeliveryBarrier) -> None:
    assert is_over(barrier, FIVE_OUT._replace(unacknowledged=7), in_hand=7, now=101)


def test_it_is_over_when_the_others_have_acknowledged(barrier: RedeliveryBarrier) -> None:
    assert not is_over(barrier, FIVE_OUT._replace(floor=14), now=101)
    assert is_over(barrier, FIVE_OUT._replace(floor=15), now=101)


def test_whoever_has_a_message_long_after_the_ack_wait_is_alive(barrier: RedeliveryBarrier) -> None:
    assert not is_over(barrier, now=119.9)
    assert is_over(barrier, now=120)


def test_whoever_asks_for_messages_after_all_requests_of_the_dead_have_ended_is_alive() -> None:
    barrier = RedeliveryBarrier(FIVE_OUT, now=100.0, ack_wait=600.0, expires=30.0)
    others = FIVE_OUT._replace(waiting=1)
    assert not is_over(barrier, others, now=134.9)
    assert not is_over(barrier, others, requests=1, now=135)
    assert is_over(barrier, others, now=135)


def test_after_a_newer_message_nothing_is_asked_for_until_the_server_has_taken_the_rest_back(
    barrier: RedeliveryBarrier,
) -> None:
    assert barrier.may_pull(newest=0, in_hand=0, limit=40, now=101)
    assert barrier.may_pull(newest=15, in_hand=4, limit=40, now=101)
    assert not barrier.may_pull(newest=16, in_hand=1, limit=40, now=109)
    assert barrier.may_pull(newest=16, in_hand=1, limit=40, now=110)


def test_what_is_collected_has_a_bound(barrier: RedeliveryBarrier) -> None:
    assert barrier.may_pull(newest=99, in_hand=84, limit=40, now=111)
    assert not barrier.may_pull(newest=99, in_hand=85, limit=40, now=111)
