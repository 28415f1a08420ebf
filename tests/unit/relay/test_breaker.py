"""Circuit breaker of a destination, and the timer of its pings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pillarbox.relay.breaker import Breaker, BreakerState, PingTimer

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
