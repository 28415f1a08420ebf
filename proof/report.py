"""Tables and counts, as the simulation, the crash matrix and the chain print them. Pure."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from proof.judge import Verdict

__all__ = ["count_verdicts", "format_columns", "format_markdown", "parse_names"]

T = TypeVar("T")


def format_columns(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns for a terminal."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def format_markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int) -> str:
    """Format a table for a page of the docs; from column `right` on it is aligned to the right."""
    marks = ["---"] * right + ["---:"] * (len(head) - right)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def count_verdicts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Sum the counts of several runs."""
    return {
        "lost": sum(verdict.lost for verdict in verdicts),
        "ghosts": sum(verdict.ghosts for verdict in verdicts),
        "twice": sum(verdict.twice for verdict in verdicts),
        "out_of_order": sum(verdict.out_of_order for verdict in verdicts),
        "duplicates": sum(verdict.duplicates for verdict in verdicts),
        "faults": sum(len(verdict.faults) for verdict in verdicts),
    }


def parse_names(known: Iterable[str], convert: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Return a parser of `NAME,NAME` for argparse. It answers an unknown name with all known ones."""
    names = list(known)

    def parse(text: str) -> list[T]:
        for name in text.split(","):
            if name not in names:
                raise ArgumentTypeError(f"there is no {name!r}; there are {', '.join(names)}")
        return [convert(name) for name in text.split(",")]

    return parse
