"""A destination is asked whether it is there only when nothing else tells."""

from __future__ import annotations

from datetime import timedelta

from pillarbox.relay.breaker import PingTimer


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
