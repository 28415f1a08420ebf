"""Durations as people write them: `250ms`, `30s`, `5m`, `1h30m`, `7d`, `forever`; and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from pillarbox.errors import ConfigError, PillarboxError

__all__ = [
    "FOREVER",
    "LONGEST",
    "check_duration",
    "format_age",
    "format_duration",
    "format_latency",
    "parse_duration",
    "parse_time",
    "shorten",
]

FOREVER: Final = timedelta.max
"""Longer than every other duration."""
LONGEST: Final = timedelta(days=36_500)
"""Longest duration that can be added to a date: Python's calendar ends with the year 9999."""

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""Units in milliseconds, the largest first."""
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[dhms])")
_MAX_TEXT: Final = 64
"""Characters. Searching a long row of digits for a unit would take time with its square."""


def parse_duration(text: str) -> timedelta:
    """Parse a duration; `0` is zero and `forever` is `FOREVER`. One too long for a `timedelta` is just below that."""
    word = text.strip().lower()
    if word == "forever":
        return FOREVER
    if word == "0":
        return timedelta(0)
    parts = _PART.findall(word) if len(word) <= _MAX_TEXT else []
    if not parts or "".join(number + unit for number, unit in parts) != word:
        shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
        raise ConfigError(f"{shown!r} is not a duration: write for example 250ms, 30s, 5m, 1h30m, 7d or forever.")
    try:
        return timedelta(milliseconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        return FOREVER - timedelta.resolution


def parse_time(text: str) -> datetime | None:
    """Parse an ISO time, UTC where it has no zone; None for another text, and for a time that UTC does not have."""
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_duration(length: timedelta) -> str:
    """Format a duration in whole milliseconds, so that `parse_duration` reads it back."""
    if length == FOREVER:
        return "forever"
    rest = round(length.total_seconds() * 1_000)
    parts = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def format_age(since: datetime | None, now: datetime) -> str:
    """Format the time since then in at most two units; nothing for None."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    step = 1 if seconds < 3600 else 60 if seconds < 86_400 else 3600
    return format_duration(timedelta(seconds=seconds - seconds % step)) if seconds else "0s"


def format_latency(length: timedelta) -> str:
    """Format a short time: milliseconds, tenths of a second, or whole seconds."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:.1f}s" if seconds < 60 else format_duration(timedelta(seconds=round(seconds)))


# --- durations that Python code passes ---


def shorten(value: object) -> str:
    """Write a value as Python does, cut where it is long."""
    shown = repr(value)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…"


def check_duration(value: object, name: str, *, error: type[PillarboxError] = ConfigError) -> None:
    """Raise an error that says what to pass, unless the value is a `timedelta`. None is for the caller to allow."""
    if isinstance(value, timedelta):
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    seconds = f"{value}" if is_number else "5"
    raise error(f"{name}={shorten(value)} is not a duration: pass a timedelta, such as timedelta(seconds={seconds}).")
