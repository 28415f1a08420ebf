"""A selection, bound by names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from pillarbox.protocols import Selection
from pillarbox.stores.selection import conditions
from pillarbox.stores.stepwise.rows import microseconds

__all__ = ["Parameters"]


class Parameters:
    """Named parameters that grow as conditions are written: SQLite's. Others say what they write differently."""

    key = "key"
    """How the column of that name is written."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def selected(self, selection: Selection) -> tuple[str, dict[str, object]]:
        """All conditions but the state's, and their values."""
        return conditions(selection, self, key=self.key), self.values

    def value(self, value: object) -> str:
        name = f"selected_{len(self.values)}"
        self.values[name] = [_bound(one) for one in value] if isinstance(value, list) else _bound(value)
        return self.mark(name)

    def mark(self, name: str) -> str:
        """Where the value of that name stands."""
        return f":{name}"

    def any_of(self, column: str, values: Sequence[object]) -> str:
        return f"{column} in (select value from json_each({self.value(list(values))}))"

    def contains(self, column: str, text: str) -> str:
        return f"instr(casefolded({column}), {self.value(text.casefold())}) > 0"


def _bound(value: object) -> object:
    match value:
        case datetime():
            return microseconds(value)
        case UUID():
            return str(value)
    return value
