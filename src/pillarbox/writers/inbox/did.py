"""What goes back and forth between a program and a handle."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from pillarbox.writers.statements import Statement

__all__ = ["Did", "Program"]


class Did(NamedTuple):
    """What a statement did."""

    changed: int
    """How many rows."""
    rows: Sequence[Sequence[Any]] = ()


Program = Generator[Statement, Did, Any]
