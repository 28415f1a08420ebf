"""A selection, bound as PyMySQL takes it."""

from __future__ import annotations

from collections.abc import Sequence

from pillarbox.stores.stepwise.selection import Parameters

__all__ = ["MariadbParameters"]


class MariadbParameters(Parameters):
    """Lists are written out, and one of our columns has the name of a word of MySQL's."""

    key = "`key`"

    def mark(self, name: str) -> str:
        return f"%({name})s"

    def any_of(self, column: str, values: Sequence[object]) -> str:
        return f"{column} in {self.value(list(values))}"

    def contains(self, column: str, text: str) -> str:
        return f"instr(lower({column}), {self.value(text.lower())}) > 0"
