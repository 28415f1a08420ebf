"""When to try again, and when to give up."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.durations import parse_duration
from pillarbox.errors import ConfigError
from pillarbox.retry import DEFAULT_RETRY, RetryPolicy

SCHEDULES = {
    ("30s", "1m", "2m", "5m"): ["30s", "1m", "2m", "5m", "5m", "5m"],
    ("10s", "5m", "10m", "30m", "1h"): ["10s", "5m", "10m", "30m", "1h", "1h", "1h"],
}
EXACT = RetryPolicy(jitter=0)


def test_the_default_is_two_to_the_n_seconds_up_to_five_minutes() -> None:
    waits = [EXACT.delay(spent, dice=0.9).total_seconds() for spent in range(1, 12)]

    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert RetryPolicy(attempts=5, jitter=0.2) == DEFAULT_RETRY


def test_the_default_gives_up_after_the_first_and_four_retries() -> None:
    assert [DEFAULT_RETRY.gives_up(spent) for spent in range(7)] == [False] * 5 + [True] * 2


@given(st.integers(1, 60), st.floats(0, 1))
def test_jitter_spreads_each_wait_by_a_fifth_up_and_down(spent: int, dice: float) -> None:
    plain = EXACT.delay(spent, dice=dice)

    assert plain * 0.8 <= DEFAULT_RETRY.delay(spent, dice=dice) <= plain * 1.2


def test_jitter_reaches_both_ends() -> None:
    waits = [DEFAULT_RETRY.delay(1, dice=dice) for dice in (0.0, 0.5, 1.0)]

    assert waits == [timedelta(seconds=1.6), timedelta(seconds=2), timedelta(seconds=2.4)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_followed_and_its_last_delay_repeats(schedule: tuple[str, ...]) -> None:
    policy = RetryPolicy(schedule=[parse_duration(text) for text in schedule], jitter=0)
    expected = [parse_duration(text) for text in SCHEDULES[schedule]]

    assert [policy.delay(spent, dice=0.3) for spent in range(1, len(expected) + 1)] == expected


@given(st.integers(1, 10_000))
def test_forever_never_gives_up(spent: int) -> None:
    forever = RetryPolicy(attempts=None)

    assert not forever.gives_up(spent)
    assert forever.delay(spent, dice=1.0) <= timedelta(minutes=6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"jitter": 1.0},
        {"jitter": -0.1},
        {"first": timedelta(0)},
        {"schedule": [timedelta(seconds=-1)]},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="retry policy"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_a_delay_that_cannot_be_counted_is_a_very_long_one() -> None:
    endless = RetryPolicy(schedule=[timedelta.max], attempts=None)
    doubled = RetryPolicy(first=timedelta(days=1), longest=timedelta.max, attempts=None)
    for policy in (endless, doubled):
        assert timedelta(days=365) < policy.delay(1_000, dice=1.0) < timedelta(days=36_500)
