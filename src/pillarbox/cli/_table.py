"""Tables that fit a terminal: which columns there is room for, and long texts on lines below their row.

On a terminal columns are cut and left out until a row fits one line. What is piped is as
wide as it is, and so is everything with `--wide`. The layout is pure; `draw_table` adds borders if rich is installed.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from pillarbox.redaction import escape_controls

__all__ = [
    "Column",
    "align_columns",
    "cut",
    "draw_table",
    "find_width",
    "fit_columns",
    "is_wide",
    "to_line",
    "wide_option",
    "wrap",
]

F = TypeVar("F", bound=Callable[..., Any])

_WIDE: Final = "pillarbox.wide"
_BELOW_LINES: Final = 2
"""Lines that a long text below its row takes at most; `--wide` shows the rest."""
_INDENT: Final = "  "
_NARROWEST: Final = 20
"""Columns below which no terminal is served."""


def wide_option(command: F) -> F:
    """Add `--wide`, which `find_width` reads."""

    def keep(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
        ctx.find_root().meta[_WIDE] = given

    option = click.option(
        "--wide", is_flag=True, expose_value=False, callback=keep, envvar="PILLARBOX_WIDE", show_envvar=True,
        help="Show every column and every text in full, however narrow the terminal.",
    )  # fmt: skip
    return option(command)


def is_wide() -> bool:
    """Return whether `--wide` was given to the command that runs."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().meta.get(_WIDE))


def find_width() -> int | None:
    """Return the columns that output must fit in; None if it is piped, or with `--wide`."""
    if is_wide() or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


# --- texts ---


def to_line(text: str) -> str:
    r"""Write a text on one line: line breaks as `\n`, and what else is not printable as an escape."""
    return escape_controls(text).replace("\n", "\\n")


def measure(text: str) -> int:
    """Count the cells of a text on a terminal: two for a wide letter, none for one that combines."""
    if text.isascii():
        return len(text)
    return sum(_measure_letter(letter) for letter in text)


def _measure_letter(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, limit: int) -> str:
    """Cut a text to that many cells; `…` stands for the rest."""
    if measure(text) <= limit:
        return text
    kept, room = "", limit - 1
    for letter in text:
        room -= _measure_letter(letter)
        if room < 0:
            break
        kept += letter
    return f"{kept}…"


def wrap(text: str, width: int | None, *, indent: str = "", first: str = "", limit: int | None = None) -> list[str]:
    """Break a text between words into lines of that width; a word longer than a line is broken.

    `first` begins the first line and `indent` the others. Of more lines than `limit` the rest is cut.
    """
    if width is None:
        return [first + text]
    width = max(width, _NARROWEST)
    lines, line, is_empty = [], first, True
    for word in _split_words(text, width - measure(indent)):
        fits_a_line = measure(indent) + measure(word) <= width
        if not is_empty and fits_a_line and measure(line) + 1 + measure(word) > width:
            lines.append(line)
            line, is_empty = indent, True
        line += word if is_empty else f" {word}"
        is_empty = False
        while measure(line) > width:
            kept = cut(line, width + 1).removesuffix("…")
            lines.append(kept)
            line = indent + line[len(kept) :]
    lines.append(line)
    if limit is not None and len(lines) > limit:
        return [*lines[: limit - 1], cut(f"{lines[limit - 1]} {lines[limit].strip()} …", width)]
    return lines


def _split_words(text: str, room: int) -> list[str]:
    """Split at spaces, but not within backticks: a command that fits a line can be copied from it."""
    words: list[str] = []
    is_open = False
    for word in text.split(" "):
        if is_open and measure(words[-1]) + 1 + measure(word) <= room:
            words[-1] += f" {word}"
        else:
            words.append(word)
        is_open ^= word.count("`") % 2 == 1
    return words


# --- the layout ---


class Column(NamedTuple):
    """A column and how it gives way where there is no room."""

    heading: str
    rank: int = 0
    """Columns of the highest rank are left out first. Those of rank 0 never are."""
    least: int | None = None
    """Cells that it may be cut to; None if it is never cut."""
    is_below: bool = False
    """A long text: where a row has no room for it, it stands on lines below the row."""


class Fit(NamedTuple):
    """A table that fits: its visible columns with their cells, and the lines below each row."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    widths: Sequence[int]
    below: Sequence[Sequence[str]]
    """Texts below each row, not yet wrapped."""
    left_out: Sequence[str]
    """Headings of the columns that have no room."""


def fit_columns(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None, gap: int = 2, frame: int = 0
) -> Fit:
    """Choose columns and their widths. `gap` cells stand between two columns, `frame` around all of them."""
    rows = [[to_line(cell) for cell in row] for row in rows]
    natural = [
        max([measure(column.heading), *(measure(row[place]) for row in rows)]) for place, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    below: list[int] = []

    def count_cells(widths: Sequence[int]) -> int:
        return sum(widths) + gap * (len(widths) - 1) + frame

    if width is not None and count_cells(natural) > width:
        below = [place for place in shown if columns[place].is_below and any(row[place] for row in rows)]
        shown = [place for place in shown if not columns[place].is_below]
        least = [max(columns[i].least or natural[i], measure(columns[i].heading)) for i in range(len(columns))]
        least = [min(pair) for pair in zip(least, natural, strict=True)]
        while count_cells([least[place] for place in shown]) > width:
            # An empty column says least of all.
            given = [(not any(row[i] for row in rows), columns[i].rank, i) for i in shown if columns[i].rank]
            if not given:
                break
            shown.remove(max(given)[2])
        widths = {place: natural[place] for place in shown}
        while count_cells(list(widths.values())) > width:
            able = [place for place in shown if widths[place] > least[place]]
            if not able:
                break
            widths[max(able, key=lambda place: widths[place])] -= 1
    else:
        widths = {place: natural[place] for place in shown}

    def name(place: int) -> str:  # of one text the table itself says what it is
        return f"{columns[place].heading}: " if len(below) > 1 else ""

    return Fit(
        headings=[columns[place].heading for place in shown],
        rows=[[cut(row[place], widths[place]) for place in shown] for row in rows],
        widths=[widths[place] for place in shown],
        below=[[name(place) + row[place] for place in below if row[place]] for row in rows],
        left_out=[
            column.heading
            for place, column in enumerate(columns)
            if place not in shown and place not in below and any(row[place] for row in rows)
        ],
    )


# --- drawing ---


def align_columns(
    columns: Sequence[Column | str], rows: Sequence[Sequence[str]], *, width: int | None = None
) -> list[list[str]]:
    """Align rows in columns without borders: the lines of the headings, then those of each row."""
    fit = fit_columns([_to_column(one) for one in columns], rows, width=width)
    lines = [[_join(fit.headings, fit.widths)]]
    for row, texts in zip(fit.rows, fit.below, strict=True):
        lines.append([_join(row, fit.widths), *_wrap_below(texts, width)])
    return lines


def draw_table(columns: Sequence[Column | str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a table for the terminal that reads it, with borders on one if rich is installed."""
    width, ready = find_width(), [_to_column(one) for one in columns]
    drawn = _draw_with_rich(ready, rows, width=width) if sys.stdout.isatty() else None
    if drawn is not None:
        return drawn
    lines = [line for group in align_columns(ready, rows, width=width) for line in group]
    return "\n".join([*lines, *_note_left_out(fit_columns(ready, rows, width=width).left_out, width)])


def _draw_with_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None) -> str | None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return None
    fit = fit_columns(columns, rows, width=width, gap=3, frame=4)
    widths = list(fit.widths)
    if width is not None and any(
        fit.below
    ):  # the last column takes the rest of the line, so that the texts have it too
        widths[-1] += max(width - _measure_frame(widths), 0)
    total = _measure_frame(widths)
    drawing = Table()
    for heading, cells in zip(fit.headings, widths, strict=True):
        drawing.add_column(Text(heading), no_wrap=True, min_width=cells)
    for row in fit.rows:
        # `Text`, because rich takes brackets in a plain string for markup.
        drawing.add_row(*(Text(cell) for cell in row))
    console = Console(color_system=None, width=total)  # without colours, `echo` finds no escape that it must not touch
    drawn = "".join(segment.text for segment in console.render(drawing)).rstrip("\n").split("\n")
    # After the border, the headings and their rule, each row is one line.
    lines = drawn[:3]
    for line, texts in zip(drawn[3:-1], fit.below, strict=True):
        side = line[0]
        inner = _wrap_below(texts, total - 4)
        lines += [line, *(f"{side} {text}{' ' * (total - 4 - measure(text))} {side}" for text in inner)]
    return "\n".join([*lines, drawn[-1], *_note_left_out(fit.left_out, width)])


def _measure_frame(widths: Sequence[int]) -> int:
    return sum(widths) + 3 * len(widths) + 1


def _to_column(column: Column | str) -> Column:
    return Column(column) if isinstance(column, str) else column


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - measure(cell)) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _wrap_below(texts: Sequence[str], width: int | None) -> list[str]:
    return [line for text in texts for line in wrap(text, width, first=_INDENT, indent=_INDENT, limit=_BELOW_LINES)]


def _note_left_out(headings: Sequence[str], width: int | None) -> list[str]:
    return wrap(f"Left out: {', '.join(headings)}. --wide shows everything.", width) if headings else []
