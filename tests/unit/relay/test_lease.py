"""A relay acts only while its lease surely holds."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.relay.lease import Lease

LEASE = timedelta(seconds=10)


def test_a_relay_that_never_registered_may_not_act() -> None:
    assert not Lease(duration=LEASE).may_act(0.0)


def test_it_stops_before_the_lease_ends() -> None:
    lease = Lease(duration=LEASE)
    lease.extend(100.0)
    assert lease.may_act(108.9)
    assert not lease.may_act(109.0)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """The answer may have taken long; the store's lease began when it was asked, at the earliest."""
    lease = Lease(duration=LEASE)
    lease.extend(100.0)
    lease.extend(103.0)
    assert lease.may_act(111.9)
    assert not lease.may_act(112.0)


def test_an_answer_that_overtook_another_takes_nothing_away() -> None:
    lease = Lease(duration=LEASE)
    lease.extend(103.0)
    lease.extend(100.0)
    assert lease.may_act(111.9)


def test_claim_numbers_never_come_twice() -> None:
    lease = Lease(duration=LEASE)
    first = lease.next_claim_number()
    assert lease.reserve_claim_numbers(3) == first + 1
    assert lease.next_claim_number() == first + 4


def test_every_life_has_a_new_name() -> None:
    assert Lease(duration=LEASE).relay_id != Lease(duration=LEASE).relay_id


# --- recovered messages ---


def test_nothing_is_sent_before_what_was_inherited_is_in_a_claim_again() -> None:
    """Strikes that are in no claim die with the relay: two deadly messages could take turns for ever."""
    lease = Lease(duration=LEASE)
    assert lease.pause_left(100.0) == 0.0
    lease.pause_for_claims([1, 2], now=100.0)
    lease.note_claimed([1])
    assert lease.pause_left(100.1) > 0.0
    lease.note_claimed([2, 3])
    assert lease.pause_left(100.1) == 0.0


def test_what_was_inherited_and_has_to_wait_holds_nobody_up_for_long() -> None:
    lease = Lease(duration=LEASE)
    lease.pause_for_claims([1], now=100.0)
    assert lease.pause_left(100.9) > 0.0
    assert lease.pause_left(101.0) == 0.0
