"""Durations as flags."""

from __future__ import annotations

from datetime import timedelta

import click

from pillarbox.durations import FOREVER, duration
from pillarbox.errors import ConfigError

__all__ = ["as_duration"]


def as_duration(_ctx: click.Context, _param: click.Parameter, text: str) -> timedelta:
    """For `callback=`: how long to wait, written `500ms`, `15s` or `2m`."""
    try:
        found = duration(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    if not timedelta(0) < found < FOREVER:
        raise click.BadParameter(f"{text!r} is not a time to wait: write for example 500ms, 15s or 2m.")
    return found
