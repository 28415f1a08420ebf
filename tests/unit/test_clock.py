"""Clocks: the machine's, and one that stands still."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pillarbox.clock import FrozenClock, SystemClock


def test_the_system_clock_tells_utc_and_a_count_that_grows() -> None:
    clock = SystemClock()
    before = datetime.now(UTC)
    assert before <= clock.now() <= datetime.now(UTC)
    assert clock.now().utcoffset() == timedelta(0)
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_a_frozen_clock_stands_still_until_moved() -> None:
    clock = FrozenClock(datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 3, 1, 12, tzinfo=UTC), 0.0)
    assert clock.now() == clock.now()
    assert clock.advance(timedelta(seconds=90)) == datetime(2026, 3, 1, 12, 1, 30, tzinfo=UTC)
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 3, 1, 12, 1, 30, tzinfo=UTC), 90.0)


def test_a_frozen_clock_needs_a_zone_and_tells_utc() -> None:
    with pytest.raises(ValueError, match="aware"):
        FrozenClock(datetime(2026, 3, 1))  # noqa: DTZ001
    east = FrozenClock(datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=3))))
    assert east.now().isoformat() == "2026-03-01T09:00:00+00:00"


def test_time_does_not_go_backwards_by_accident() -> None:
    with pytest.raises(ValueError, match="jump"):
        FrozenClock().advance(timedelta(seconds=-1))


def test_a_jump_moves_the_time_of_day_alone() -> None:
    clock = FrozenClock(datetime(2026, 3, 1, tzinfo=UTC))
    clock.jump(datetime(2020, 1, 1, tzinfo=UTC))
    assert (clock.now().year, clock.monotonic()) == (2020, 0.0)
