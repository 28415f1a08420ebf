"""What commands print: text for people, JSON for programs. Results on stdout, talk on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import click
import msgspec

__all__ = ["OutputFormat", "output_option", "say", "show", "show_rows", "table"]

OutputFormat = Literal["text", "json", "jsonl"]

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Adds `-o text|json|jsonl` as the argument `output`."""
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
    """Print a result: the value as one JSON document, or on one line, or the text."""
    if output != "text":
        document = msgspec.json.encode(value)
        text = (msgspec.json.format(document) if output == "json" else document).decode()
    if text:
        click.echo(text.rstrip("\n"))


def show_rows(name: str, rows: Sequence[Mapping[str, object]], *, text: str, output: OutputFormat) -> None:
    """Print a list: one JSON document that holds it under its name, or one line for each, or the text."""
    if output == "jsonl":
        for row in rows:
            click.echo(msgspec.json.encode(row).decode())
    else:
        show({name: rows}, text=text, output=output)


def say(text: str) -> None:
    """Talk to the person at the terminal, out of the way of the result."""
    click.echo(text, err=True)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; with borders and colours where rich is installed and a person is looking."""
    drawn = _drawn_by_rich(headings, rows) if sys.stdout.isatty() else None
    return _aligned(headings, rows) if drawn is None else drawn


def _aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    lines = (zip(row, widths, strict=True) for row in (headings, *rows))
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines)


def _drawn_by_rich(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str | None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return None
    drawing = Table(*headings)
    for row in rows:
        drawing.add_row(*(Text(cell) for cell in row))
    console = Console()
    with console.capture() as captured:
        console.print(drawing)
    return captured.get().rstrip("\n")
