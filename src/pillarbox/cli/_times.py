"""Times and durations on the command line, as callbacks of click options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from pillarbox.durations import FOREVER, LONGEST, parse_duration, parse_time
from pillarbox.errors import ConfigError

__all__ = ["parse_future_time", "parse_past_time", "parse_wait"]


def parse_wait(_ctx: click.Context, _param: click.Parameter, text: str) -> timedelta:
    """Parse how long to wait: `500ms`, `15s`, `2m`. Neither zero nor forever."""
    try:
        length = parse_duration(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    if not timedelta(0) < length < FOREVER:
        raise click.BadParameter(f"{text!r} is not a time to wait: write for example 500ms, 15s or 2m.")
    return length


def parse_past_time(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """Parse a time, or how long ago it was."""
    if text is None:
        return None
    try:
        return parse_time(text) or datetime.now(UTC) - parse_duration(text)
    except (ConfigError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00:00+01:00, or how long ago: 30m, 2h, 7d."
        ) from None


def parse_future_time(_ctx: click.Context, _param: click.Parameter, text: str) -> datetime:
    """Parse a time in the future, or how long it is from now."""
    now = datetime.now(UTC)
    try:
        at = parse_time(text) or now + min(parse_duration(text), LONGEST)
    except ConfigError:
        raise click.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00Z, or how long from now: 2h."
        ) from None
    if at <= now:
        raise click.BadParameter(f"{text!r} is not in the future: write 2026-01-31T12:00Z, or how long from now: 2h.")
    return at
