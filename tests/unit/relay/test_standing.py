"""A relay acts only while its lease surely holds."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.relay.standing import Standing

LEASE = timedelta(seconds=10)


def test_a_relay_that_never_registered_may_not_act() -> None:
    assert not Standing(lease=LEASE).may_act(0.0)


def test_it_stops_before_the_lease_ends() -> None:
    standing = Standing(lease=LEASE)
    standing.renewed(100.0)
    assert standing.may_act(108.9)
    assert not standing.may_act(109.0)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """The answer may have taken long; the store's lease began when it was asked, at the earliest."""
    standing = Standing(lease=LEASE)
    standing.renewed(100.0)
    standing.renewed(103.0)
    assert standing.may_act(111.9)
    assert not standing.may_act(112.0)


def test_an_answer_that_overtook_another_takes_nothing_away() -> None:
    standing = Standing(lease=LEASE)
    standing.renewed(103.0)
    standing.renewed(100.0)
    assert standing.may_act(111.9)


def test_claim_numbers_never_come_twice() -> None:
    standing = Standing(lease=LEASE)
    first = standing.next_claim()
    assert standing.next_claims(3) == first + 1
    assert standing.next_claim() == first + 4


def test_every_life_has_a_new_name() -> None:
    assert Standing(lease=LEASE).relay_id != Standing(lease=LEASE).relay_id


# --- what was inherited ---


def test_nothing_is_sent_before_what_was_inherited_is_in_a_claim_again() -> None:
    """Strikes that are in no claim die with the relay: two deadly messages could take turns for ever."""
    standing = Standing(lease=LEASE)
    assert standing.hold(100.0) == 0.0
    standing.inherited([1, 2], now=100.0)
    standing.claimed([1])
    assert standing.hold(100.1) > 0.0
    standing.claimed([2, 3])
    assert standing.hold(100.1) == 0.0


def test_what_was_inherited_and_has_to_wait_holds_nobody_up_for_long() -> None:
    standing = Standing(lease=LEASE)
    standing.inherited([1], now=100.0)
    assert standing.hold(100.9) > 0.0
    assert standing.hold(101.0) == 0.0
