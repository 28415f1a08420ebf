"""A selection, bound as PyMySQL takes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from pillarbox.protocols import Selection
from pillarbox.stores.selection import conditions
from pillarbox.stores.stepwise.rows import microseconds

__all__ = ["selected"]


class _Parameters:
    """Named parameters that grow as conditions are written."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def value(self, value: object) -> str:
        name = f"selected_{len(self.values)}"
        self.values[name] = _bound(value)
        return f"%({name})s"

    def any_of(self, column: str, values: Sequence[object]) -> str:
        return f"{column} in {self.value([_bound(value) for value in values])}"

    def contains(self, column: str, text: str) -> str:
        return f"instr(lower({column}), {self.value(text.lower())}) > 0"


def selected(selection: Selection) -> tuple[str, dict[str, object]]:
    """All conditions but the state's, and their values."""
    parameters = _Parameters()
    return conditions(selection, parameters, key="`key`"), parameters.values


def _bound(value: object) -> object:
    match value:
        case datetime():
            return microseconds(value)
        case UUID():
            return str(value)
    return value
