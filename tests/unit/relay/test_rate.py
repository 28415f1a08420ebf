"""The rate limit counts exactly, on the caller's clock."""

from __future__ import annotations

import pytest

from pillarbox.relay.sender import RateLimit


def sent_in(rate: RateLimit, *, seconds: int, every: float = 0.01) -> int:
    """How many go in that time when there is always more to send."""
    sent = 0
    for step in range(int(seconds / every) + 1):
        allowed = rate.allow(step * every, 1_000)
        rate.spend(allowed)
        sent += allowed
    return sent


def test_without_a_limit_everything_goes() -> None:
    rate = RateLimit(None)
    rate.spend(1_000_000)
    assert rate.allow(0.0, 500) == 500
    assert rate.wait() == 0.0


@pytest.mark.parametrize(("per_second", "seconds", "most"), [(10.0, 10, 110), (0.5, 20, 11), (1_000.0, 3, 4_000)])
def test_no_more_than_a_burst_and_the_rate(per_second: float, seconds: int, most: int) -> None:
    sent = sent_in(RateLimit(per_second), seconds=seconds)
    assert most - 1 <= sent <= most


def test_a_pause_saves_up_one_second_and_no_more() -> None:
    rate = RateLimit(10.0)
    rate.spend(rate.allow(0.0, 100))
    assert rate.allow(3_600.0, 100) == 10


def test_it_says_how_long_to_wait_for_one_more() -> None:
    rate = RateLimit(4.0)
    assert rate.allow(0.0, 4) == 4
    rate.spend(4)
    assert rate.allow(0.0, 1) == 0
    assert rate.wait() == 0.25
    assert rate.allow(0.25, 1) == 1


def test_whoever_waited_as_long_as_told_may_go() -> None:
    """Whatever rounding does: a wait that is too short for the clock to move would be repeated for ever."""
    for seed in range(1_000):
        rate = RateLimit(0.7 + seed / 37)
        now = 9_000.0 + seed / 7
        rate.spend(rate.allow(now, 1_000))
        now += seed / 1_000
        rate.allow(now, 1)
        assert rate.allow(now + rate.wait(), 1) == 1
        assert rate.wait() == 0.0
