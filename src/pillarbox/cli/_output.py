"""Output of commands: text for people, JSON for programs. Results go to stdout, everything else to stderr.

Rows, brokers and configuration hold text that others wrote. `echo` writes what is not printable as an escape, so none
of it can move the cursor, change colours or hide a line; in a table and in one-line values that includes line breaks.
A command prints through this module alone.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Self, TypeVar

import click

from pillarbox.cli._table import find_width, is_wide, to_line, wrap
from pillarbox.contracts.finding import Severity
from pillarbox.contracts.store import Tries
from pillarbox.durations import format_age, format_duration
from pillarbox.message import Message
from pillarbox.operations.documents import encode_json
from pillarbox.redaction import escape_controls

__all__ = [
    "OutputFormat",
    "Progress",
    "echo",
    "echo_control",
    "echo_painted",
    "encode_json",
    "format_age",
    "format_fields",
    "format_progress",
    "format_time",
    "format_tries",
    "output_option",
    "say",
    "show",
    "show_rows",
]

OutputFormat = Literal["text", "json", "jsonl"]

F = TypeVar("F", bound=Callable[..., Any])


def format_tries(tries: Tries | None, message: Message, now: datetime) -> str:
    """Format how often a message was tried, and for how long: `7 in 3m`; nothing for one that was not."""
    return "" if tries is None else f"{tries.count:,} in {format_age(tries.first_at, tries.find_end(message, now))}"


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


def echo_control(sequence: str) -> None:
    """Write a sequence for the terminal itself."""
    click.echo(sequence, nl=False)


def say(text: str) -> None:
    """Print a note for the person at the terminal, on stderr. No word of it is broken at the end of a line."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() and not is_wide() else None
    echo("\n".join(line for part in text.split("\n") for line in wrap(part, width)), err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text. What is not printable is written as an escape; line breaks stay."""
    click.echo(escape_controls(text), err=err)


_SHORT_CHANGE: Final = 1_000
"""Up to this many records are changed in a moment: no progress is shown."""
_FIRST_RATE: Final = 1.0
"""Seconds after which a rate can be told from the first answers."""


class Progress:
    """Shows how much of a change is done: one line on stderr, drawn again. Only on a terminal, if it takes long.

    Of a change that is interrupted it says how much is done, also without a terminal.
    """

    def __init__(
        self, total: int, *, again: str = "Run the same command again for the rest.",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._total = total
        self._again = again
        self._clock = clock
        self._started_at = clock()
        self._done = 0
        self._is_shown = total > _SHORT_CHANGE and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._draw("")
        if kind is not None and issubclass(kind, (KeyboardInterrupt, asyncio.CancelledError, click.Abort)):
            total = max(self._done, self._total)
            # A commit may come through although nobody waits for its answer any more.
            say(
                f"{self._done:,} of {total:,} are done, and stay done; a batch under way may be done too. {self._again}"
            )

    def show(self, done: int) -> None:
        """Draw the line. What others write meanwhile is changed too, so it may be more than the total."""
        self._done = done
        self._draw(format_progress(done, max(done, self._total), seconds=self._clock() - self._started_at))

    def _draw(self, text: str) -> None:
        if self._is_shown:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)


def format_progress(done: int, total: int, *, seconds: float) -> str:
    """Write how much is done, and after a moment how fast and how long the rest will take at that rate."""
    text = f"{done:,} of {total:,} done"
    if seconds < _FIRST_RATE or not done:
        return text
    rate = done / seconds
    left = timedelta(seconds=math.ceil((total - done) / rate))
    return f"{text}, {rate:,.0f}/s" + (f", {format_duration(left)} left" if left else "")


_COLOURS: Final = {Severity.CRITICAL: "red", Severity.WARNING: "yellow"}


def echo_painted(lines: Sequence[tuple[str, Severity | None]]) -> None:
    """Print lines, each in the colour of its severity. Without a terminal, or with NO_COLOR set, there is no colour."""
    for text, severity in lines:
        colour = None if os.environ.get("NO_COLOR") or severity is None else _COLOURS.get(severity)
        escaped = escape_controls(text)  # first: what the text holds must not pass for a colour
        click.echo(escaped if colour is None else click.style(escaped, fg=colour))


def format_fields(fields: Sequence[tuple[str, str]], *, body: str | None = None) -> str:
    """Write a field per line, names aligned, and at last a body of several lines. Long values fit the terminal."""
    named = [(to_line(name).replace("_", " "), to_line(value)) for name, value in fields]
    room = max([len(name) for name, _ in named] + ([len("payload")] if body is not None else [])) + 2
    # Indented, so that no line of a payload can pass for a field.
    indent, width = " " * room, find_width()
    lines = [line for name, value in named for line in wrap(value, width, first=f"{name:{room}}", indent=indent)]
    if body is not None:
        lines.append(f"{'payload':{room}}{body}".replace("\n", f"\n{indent}"))
    return "\n".join(lines)


def format_time(at: datetime | None) -> str:
    """Format a time in UTC; nothing for None."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
