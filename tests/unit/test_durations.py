"""Durations as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.durations import FOREVER, format_duration, parse_duration, parse_time
from pillarbox.errors import ConfigError

UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1),
         "ms": timedelta(milliseconds=1)}  # fmt: skip
YEARS = 200 * 365 * 86_400_000


@given(st.integers(0, YEARS))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    length = timedelta(milliseconds=milliseconds)

    assert parse_duration(format_duration(length)) == length


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(sorted(UNITS))), min_size=1, max_size=5))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in parts)

    assert parse_duration(text) == sum((count * UNITS[unit] for count, unit in parts), timedelta(0))


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("0", timedelta(0)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        (" 30S ", timedelta(seconds=30)),
        ("forever", FOREVER),
        ("Forever", FOREVER),
    ],
)
def test_ways_to_write_one(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1s 2m", "1.s", ".5s", "1x", "1ss", "1s,", "never"])
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="30s"):
        parse_duration(text)


def test_the_shortest_way_is_written() -> None:
    assert format_duration(timedelta(minutes=90)) == "1h30m"
    assert format_duration(timedelta(0)) == "0"
    assert format_duration(FOREVER) == "forever"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("9999-12-31T23:59:59-12:00", None),
        ("0001-01-01T00:00:00+12:00", None),
        ("30m", None),
        ("", None),
    ],
)
def test_a_time_is_in_utc_or_none(text: str, at: datetime | None) -> None:
    assert parse_time(text) == at
