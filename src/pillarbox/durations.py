"""Durations as people write them: `250ms`, `30s`, `5m`, `1h30m`, `7d`, `forever`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from pillarbox.errors import ConfigError

__all__ = ["FOREVER", "duration", "duration_text"]

FOREVER: Final = timedelta.max
"""Longer than anything."""

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")


def duration(text: str) -> timedelta:
    """Read a duration; `0` is none at all, `forever` is `FOREVER`. What is longer than can be counted is just below."""
    word = text.strip().lower()
    if word == "forever":
        return FOREVER
    if word == "0":
        return timedelta(0)
    parts = _PART.findall(word)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        raise ConfigError(f"{text!r} is not a duration: write for example 250ms, 30s, 5m, 1h30m, 7d or forever.")
    try:
        return timedelta(milliseconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        return FOREVER - timedelta.resolution


def duration_text(length: timedelta) -> str:
    """Write a duration so that `duration` reads it back."""
    if length == FOREVER:
        return "forever"
    left = round(length.total_seconds() * 1_000)
    words = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count:
            words.append(f"{count}{unit}")
    return "".join(words) or "0"
