"""Circuit breaker of a destination, and the timer of its pings."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from pillarbox.relay.breaker import AddressBreakers, Breaker, BreakerState, FailureRow, PingTimer

# --- breaker ---


def opened(times: int, *, dice: float = 1.0) -> tuple[Breaker, list[float]]:
    breaker = Breaker()
    return breaker, [breaker.open(0.0, reason="away", dice=dice) for _ in range(times)]


def test_it_starts_closed() -> None:
    breaker = Breaker()
    assert breaker.is_closed
    assert breaker.wait(0.0) == 0.0
    assert not breaker.half_open(1_000.0)


def test_the_wait_doubles_up_to_half_a_minute() -> None:
    _, waits = opened(8)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_it_never_overflows_in_a_week_of_outage() -> None:
    _, waits = opened(20_000)
    assert waits[-1] == 30


@pytest.mark.parametrize(("dice", "wait"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_the_dice_spread_the_wait_over_its_upper_half(dice: float, wait: float) -> None:
    assert opened(1, dice=dice)[1] == [wait]


def test_the_broker_may_ask_for_more_time_but_not_for_less() -> None:
    breaker = Breaker()
    assert breaker.open(0.0, reason="slow down", dice=1.0, at_least=timedelta(minutes=2)) == 120
    assert breaker.open(0.0, reason="slow down", dice=1.0, at_least=timedelta(seconds=1)) == 2


def test_it_probes_when_the_wait_is_over_and_not_before() -> None:
    breaker = Breaker()
    breaker.open(10.0, reason="away", dice=1.0)
    assert not breaker.half_open(10.9)
    assert breaker.wait(10.4) == pytest.approx(0.6)
    assert breaker.half_open(11.0)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.wait(11.0) == 0.0
    assert not breaker.is_closed


def test_a_probe_that_fails_waits_longer() -> None:
    breaker = Breaker()
    breaker.open(0.0, reason="away", dice=1.0)
    breaker.half_open(1.0)
    assert breaker.open(1.0, reason="still away", dice=1.0) == 2
    assert (breaker.state, breaker.reason) == (BreakerState.OPEN, "still away")


def test_closing_forgets_the_outage_and_is_news_once() -> None:
    breaker, _ = opened(5)
    assert breaker.close()
    assert not breaker.close()
    assert (breaker.is_closed, breaker.reason) == (True, None)
    assert breaker.open(0.0, reason="away", dice=1.0) == 1


def test_it_tells_how_long_it_has_been_open_through_failed_probes() -> None:
    breaker = Breaker()
    assert breaker.open_for(5.0) == 0.0
    breaker.open(10.0, reason="down", dice=1.0)
    assert breaker.half_open(20.0)
    breaker.open(20.0, reason="down", dice=1.0)
    assert breaker.open_for(25.0) == 15.0
    breaker.close()
    assert breaker.open_for(30.0) == 0.0


def test_after_a_ping_alone_the_next_wait_is_as_long_as_if_it_had_stayed_open() -> None:
    breaker, _ = opened(4)
    assert breaker.close(is_proven=False)
    assert breaker.open(0.0, reason="away", dice=1.0) == 16


# --- addresses ---


def refused(
    addresses: AddressBreakers, *, times: int = 1, now: float = 0.0, missing: bool = False, first_id: int = 1
) -> list[float | None]:
    """Note refusals of different messages."""
    return [
        addresses.refuse("orders", now, message_id=UUID(int=message_id), reason="full", dice=1.0, is_missing=missing)
        for message_id in range(first_id, first_id + times)
    ]


def test_three_different_messages_that_are_refused_in_a_row_block_an_address() -> None:
    addresses = AddressBreakers()
    assert refused(addresses, times=2) == [None, None]
    assert addresses.may_send("orders", 0.0)
    assert refused(addresses, first_id=3) == [1.0]
    assert not addresses.may_send("orders", 0.9)
    assert addresses.describe() == {"orders": "full"}


def test_one_message_that_is_refused_again_and_again_blocks_no_address() -> None:
    addresses = AddressBreakers()
    for second in range(60):
        assert refused(addresses, now=float(second)) == [None]
    assert addresses.may_send("orders", 60.0)


def test_a_missing_address_is_blocked_at_once() -> None:
    addresses = AddressBreakers()
    assert refused(addresses, missing=True) == [1.0]


def watch(addresses: AddressBreakers, *, since: float, until: float) -> list[tuple[float, str]]:
    """Look for unused addresses every second; return when which ones were found."""
    found = []
    for second in range(int(until - since)):
        found += [(since + second, address) for address in addresses.forget_unused(since + second)]
    return found


def test_a_blocked_address_is_forgotten_when_nothing_comes_for_it() -> None:
    """What waited for it was discarded, or its lane is another relay's: nothing would ever unblock it."""
    addresses = AddressBreakers()
    refused(addresses, missing=True)
    pause, _ = addresses.hold("orders", 0.0, dice=1.0)
    ((at, address),) = watch(addresses, since=1.0, until=300.0)
    assert (address, pause.total_seconds() + 60 <= at <= 80) == ("orders", True)
    assert not addresses.has_blocked


def test_a_blocked_address_is_kept_while_messages_come_for_it() -> None:
    addresses = AddressBreakers()
    refused(addresses, missing=True)
    for now in range(0, 600, 30):
        addresses.hold("orders", float(now), dice=0.0)
        assert watch(addresses, since=float(now), until=now + 30.0) == []


def test_a_blocked_address_is_kept_over_a_pause() -> None:
    """Nothing was read in the pause, so nothing could come."""
    addresses = AddressBreakers()
    refused(addresses, missing=True)
    addresses.hold("orders", 0.0, dice=1.0)
    assert watch(addresses, since=0.0, until=10.0) == []
    assert watch(addresses, since=3_600.0, until=3_630.0) == []
    assert addresses.is_blocked("orders")


def test_a_blocked_address_that_is_forgotten_for_another_is_reported() -> None:
    addresses = AddressBreakers()
    for number in range(10_001):
        addresses.refuse(str(number), 0.0, message_id=UUID(int=1), reason="none", dice=1.0, is_missing=True)
    assert addresses.forget_unused(0.0) == ["0"]


def test_the_other_addresses_are_not() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    assert addresses.has_blocked
    assert (addresses.is_blocked("orders"), addresses.is_blocked("mails")) == (True, False)
    assert addresses.may_send("mails", 0.0)


def test_an_acknowledgement_between_them_begins_the_count_anew() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=2)
    assert not addresses.acknowledge("orders")
    assert refused(addresses, times=2) == [None, None]


def test_one_probe_goes_when_its_time_has_come() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    assert [addresses.may_send("orders", 1.0), addresses.may_send("orders", 1.0)] == [True, False]


def test_a_probe_that_is_refused_is_followed_by_a_longer_wait_and_is_no_news() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    assert addresses.may_send("orders", 1.0)
    assert refused(addresses, now=1.1) == [None]
    assert [addresses.may_send("orders", 3.0), addresses.may_send("orders", 3.2)] == [False, True]


def test_answers_to_what_was_sent_before_it_was_blocked_change_nothing() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=50)
    assert addresses.may_send("orders", 1.0)


def test_a_probe_that_is_never_answered_is_followed_by_another() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    assert addresses.may_send("orders", 1.0)
    assert [addresses.may_send("orders", 2.5), addresses.may_send("orders", 3.0)] == [False, True]


def test_the_first_acknowledgement_unblocks_it() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    assert addresses.acknowledge("orders")
    assert not addresses.acknowledge("orders")
    assert addresses.may_send("orders", 0.0)
    assert not addresses.has_blocked
    assert not addresses.has_refusals


def test_what_is_held_waits_for_the_next_probe() -> None:
    addresses = AddressBreakers()
    minute = timedelta(minutes=1)
    addresses.refuse("orders", 0.0, message_id=UUID(int=1), reason="429", dice=1.0, is_missing=True, at_least=minute)
    pause, reason = addresses.hold("orders", 10.0, dice=0.0)
    assert (pause, reason) == (timedelta(seconds=50), "429")


def test_the_more_are_held_the_further_apart_they_come_back() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    pauses = [addresses.hold("orders", 0.0, dice=1.0)[0] for _ in range(20_000)]
    assert pauses[0] < timedelta(seconds=1.2)
    assert timedelta(seconds=20) < pauses[-1] < timedelta(seconds=22)


def test_after_a_probe_the_count_of_what_is_held_begins_again() -> None:
    """The thousands that waited for the last probe do not put off those that wait for the next one."""
    addresses = AddressBreakers()
    refused(addresses, times=3)
    for _ in range(20_000):
        addresses.hold("orders", 0.0, dice=1.0)
    assert addresses.may_send("orders", 1.0)
    refused(addresses, now=1.0)
    assert addresses.hold("orders", 1.0, dice=1.0)[0] < timedelta(seconds=3)


def test_a_probe_that_a_person_asked_for_goes_though_another_is_not_answered_yet() -> None:
    addresses = AddressBreakers()
    refused(addresses, times=3)
    assert addresses.may_send("orders", 1.0)
    assert not addresses.may_send("orders", 1.5)
    addresses.hurry(1.5)
    assert addresses.may_send("orders", 1.5)


def test_it_remembers_a_bounded_number_of_them() -> None:
    addresses = AddressBreakers()
    for number in range(30_000):
        addresses.refuse(f"orders.{number}", 0.0, message_id=UUID(int=number), reason="full", dice=1.0, is_missing=True)
    assert len(addresses.describe()) == 10_000
    for number in range(30_000):
        addresses.acknowledge(f"orders.{number}")
    assert not addresses.has_blocked


# --- failures in a row ---


def test_three_different_messages_in_a_row_are_an_outage() -> None:
    row = FailureRow()
    for number in (1, 2, 2, 1, 2):
        row.add(UUID(int=number))
    assert (bool(row), row.is_outage) == (True, False)
    row.add(UUID(int=3))
    assert row.is_outage
    row.clear()
    assert (bool(row), row.is_outage) == (False, False)


def test_a_long_outage_remembers_no_more_messages_than_it_needs() -> None:
    row = FailureRow()
    for number in range(10_000):
        row.add(UUID(int=number))
    assert row.message_ids == {UUID(int=number) for number in range(3)}


# --- ping timer ---


def test_it_is_asked_each_time_so_long_has_passed() -> None:
    timer = PingTimer(interval=timedelta(seconds=30))
    assert [now for now in range(0, 100, 5) if timer.is_due(float(now), acknowledged=0)] == [30, 60, 90]


def test_whatever_was_acknowledged_is_answer_enough() -> None:
    timer = PingTimer(interval=timedelta(seconds=30))
    asked = [now for now in range(0, 100, 5) if timer.is_due(float(now), acknowledged=now // 20 if now < 60 else 3)]
    assert asked == [90]


def test_forever_is_never() -> None:
    timer = PingTimer(interval=timedelta.max)
    assert not any(timer.is_due(float(now), acknowledged=0) for now in range(0, 1_000_000, 1_000))
