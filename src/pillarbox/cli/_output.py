"""Output of commands: text for people, JSON for programs. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import click
import msgspec

from pillarbox.durations import format_duration

__all__ = [
    "OutputFormat",
    "format_age",
    "format_table",
    "format_time",
    "output_option",
    "say",
    "shorten",
    "show",
    "show_rows",
]

OutputFormat = Literal["text", "json", "jsonl"]

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Add `-o text|json|jsonl` as the argument `output`."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json", "jsonl"]),
        default="text",
        show_default=True,
        envvar="PILLARBOX_OUTPUT",
        show_envvar=True,
        help="How the result is printed.",
    )
    return option(command)


def show(value: Mapping[str, object], *, text: str, output: OutputFormat) -> None:
    """Print a result: the text, or the value as an indented JSON document, or as one on a single line."""
    if output != "text":
        document = msgspec.json.encode(value)
        text = (msgspec.json.format(document) if output == "json" else document).decode()
    if text:
        click.echo(text.rstrip("\n"))


def show_rows(name: str, rows: Sequence[Mapping[str, object]], *, text: str, output: OutputFormat) -> None:
    """Print a list: the text, or one JSON document that holds it under its name, or a line for each row."""
    if output == "jsonl":
        for row in rows:
            click.echo(msgspec.json.encode(row).decode())
    else:
        show({name: rows}, text=text, output=output)


def say(text: str) -> None:
    """Print a note for the person at the terminal, on stderr."""
    click.echo(text, err=True)


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns; with borders on a terminal if rich is installed."""
    drawn = _draw_with_rich(headings, rows) if sys.stdout.isatty() else None
    if drawn is not None:
        return drawn
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    lines = (zip(row, widths, strict=True) for row in (headings, *rows))
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines)


def _draw_with_rich(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str | None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return None
    drawing = Table(*headings)
    for row in rows:
        # `Text`, because rich takes brackets in a plain string for markup.
        drawing.add_row(*(Text(cell) for cell in row))
    console = Console()
    with console.capture() as captured:
        console.print(drawing)
    return captured.get().rstrip("\n")


def format_time(at: datetime | None) -> str:
    """Format a time in UTC; nothing for None."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_age(since: datetime | None, now: datetime) -> str:
    """Format the time since then in at most two units."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    step = 1 if seconds < 3600 else 60 if seconds < 86_400 else 3600
    return format_duration(timedelta(seconds=seconds - seconds % step)) if seconds else "0s"


def shorten(text: str, limit: int) -> str:
    """Cut a text to one line of that length, without characters that control a terminal."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
