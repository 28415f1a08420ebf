"""How long a NATS receiver waits for what somebody else had in hand."""

from __future__ import annotations

import pytest

from pillarbox.receivers.nats.absence import Absence, Standing

FIVE_OUT = Standing(floor=10, delivered=15, out=5, waiting=0)


@pytest.fixture
def absence() -> Absence:
    return Absence(FIVE_OUT, now=100.0, ack_wait=10.0, expires=30.0)


def is_over(absence: Absence, standing: Standing = FIVE_OUT, *, in_hand: int = 0, asked: int = 0, now: float) -> bool:
    return absence.is_over(standing, in_hand=in_hand, asked=asked, now=now)


def test_it_lasts_while_somebody_else_has_a_message(absence: Absence) -> None:
    assert not is_over(absence, now=101)
    assert not is_over(absence, FIVE_OUT._replace(out=7), in_hand=6, now=111)


def test_it_is_over_when_all_that_is_out_is_in_our_hands(absence: Absence) -> None:
    assert is_over(absence, FIVE_OUT._replace(out=7), in_hand=7, now=101)


def test_it_is_over_when_the_others_have_acknowledged(absence: Absence) -> None:
    assert not is_over(absence, FIVE_OUT._replace(floor=14), now=101)
    assert is_over(absence, FIVE_OUT._replace(floor=15), now=101)


def test_whoever_has_a_message_long_after_the_ack_wait_is_alive(absence: Absence) -> None:
    assert not is_over(absence, now=119.9)
    assert is_over(absence, now=120)


def test_whoever_asks_for_messages_after_all_requests_of_the_dead_have_ended_is_alive() -> None:
    absence = Absence(FIVE_OUT, now=100.0, ack_wait=600.0, expires=30.0)
    others = FIVE_OUT._replace(waiting=1)
    assert not is_over(absence, others, now=134.9)
    assert not is_over(absence, others, asked=1, now=135)
    assert is_over(absence, others, now=135)


def test_after_a_newer_message_nothing_is_asked_for_until_the_server_has_taken_the_rest_back(absence: Absence) -> None:
    assert absence.may_ask(newest=0, in_hand=0, limit=40, now=101)
    assert absence.may_ask(newest=15, in_hand=4, limit=40, now=101)
    assert not absence.may_ask(newest=16, in_hand=1, limit=40, now=109)
    assert absence.may_ask(newest=16, in_hand=1, limit=40, now=110)


def test_what_is_collected_has_a_bound(absence: Absence) -> None:
    assert absence.may_ask(newest=99, in_hand=84, limit=40, now=111)
    assert not absence.may_ask(newest=99, in_hand=85, limit=40, now=111)
