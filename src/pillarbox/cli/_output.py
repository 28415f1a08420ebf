"""Output of commands: text for people, JSON for programs. Results go to stdout, everything else to stderr.

Rows, brokers and configuration hold text that others wrote. `echo` writes what is not printable as an escape, so none
of it can move the cursor, change colours or hide a line; in a table and in one-line values that includes line breaks.
A command prints through this module alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self, TypeVar

import click

from pillarbox.contracts.finding import Severity
from pillarbox.durations import format_age
from pillarbox.operations.documents import encode_json
from pillarbox.redaction import escape_controls

__all__ = [
    "OutputFormat",
    "Progress",
    "align_columns",
    "echo",
    "echo_painted",
    "encode_json",
    "format_age",
    "format_fields",
    "format_table",
    "format_time",
    "output_option",
    "say",
    "shorten",
    "show",
    "show_rows",
    "to_line",
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
        text = encode_json(value, indent=output == "json")
    if text:
        echo(text.rstrip("\n"))


def show_rows(name: str, rows: Sequence[Mapping[str, object]], *, text: str, output: OutputFormat) -> None:
    """Print a list: the text, or one JSON document that holds it under its name, or a line for each row."""
    if output == "jsonl":
        for row in rows:
            echo(encode_json(row))
    else:
        show({name: rows}, text=text, output=output)


def say(text: str) -> None:
    """Print a note for the person at the terminal, on stderr."""
    echo(text, err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text. What is not printable is written as an escape; line breaks stay."""
    click.echo(escape_controls(text), err=err)


_SHORT_CHANGE: Final = 1_000
"""So many records are changed in a moment: no progress is shown."""


class Progress:
    """Shows how much of a change is done: one line on stderr, drawn anew. Only on a terminal, if it takes long."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._is_shown = total > _SHORT_CHANGE and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._draw("")

    def show(self, done: int) -> None:
        """Draw the line. What others write meanwhile is changed too, so it may be more than the total."""
        self._draw(f"{done:,} of {max(done, self._total):,} done")

    def _draw(self, text: str) -> None:
        if self._is_shown:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)


_COLOURS: Final = {Severity.CRITICAL: "red", Severity.WARNING: "yellow"}


def echo_painted(lines: Sequence[tuple[str, Severity | None]]) -> None:
    """Print lines, each in the colour of its severity. Without a terminal, or with NO_COLOR set, there is no colour."""
    for text, severity in lines:
        colour = None if os.environ.get("NO_COLOR") or severity is None else _COLOURS.get(severity)
        escaped = escape_controls(text)  # first: what the text holds must not pass for a colour
        click.echo(escaped if colour is None else click.style(escaped, fg=colour))


def to_line(text: str) -> str:
    r"""Write a text on one line: line breaks as `\n`, and what else is not printable as an escape."""
    return escape_controls(text).replace("\n", "\\n")


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns; with borders on a terminal if rich is installed. Each cell is put on one line."""
    rows = [[to_line(cell) for cell in row] for row in rows]
    drawn = _draw_with_rich(headings, rows) if sys.stdout.isatty() else None
    return align_columns(headings, rows) if drawn is None else drawn


def align_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, without borders: a line for the headings, and one for each row."""
    rows = [[to_line(cell) for cell in row] for row in rows]
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
    console = Console(color_system=None)  # so that `echo` finds no escape that it must not touch
    with console.capture() as captured:
        console.print(drawing)
    return captured.get().rstrip("\n")


def format_fields(fields: Sequence[tuple[str, str]], *, body: str | None = None) -> str:
    """Write a field per line, names aligned, and at last a body of several lines."""
    lines = [(to_line(name).replace("_", " "), to_line(value)) for name, value in fields]
    if body is not None:
        lines.append(("payload", body))
    width = max(len(name) for name, _ in lines)
    # Indented, so that no line of a payload can pass for a field.
    return "\n".join(f"{name:{width}}  {value}".replace("\n", f"\n{' ' * (width + 2)}") for name, value in lines)


def format_time(at: datetime | None) -> str:
    """Format a time in UTC; nothing for None."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shorten(text: str, limit: int) -> str:
    """Cut a text to one line of that length, without characters that control a terminal."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
