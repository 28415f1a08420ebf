"""Database that a store over a blocking driver supplies: transactions, statements by name, bound selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from pillarbox.contracts.store import Order, Selection
from pillarbox.stores.sql import build_conditions
from pillarbox.stores.sync_sql.rows import to_microseconds

__all__ = ["Database", "SelectionParameters", "Transaction"]

T = TypeVar("T")


class Transaction(Protocol):
    """One transaction, in a thread. Statements go by their names; `now` is always bound.

    A list among the values stands for the `in` list of a statement. It may have UUIDs, which are stored as texts.
    """

    @property
    def now(self) -> int:
        """Microseconds since 1970, by the store's clock."""

    def query(
        self,
        name: str,
        values: Mapping[str, object] = {},
        *,
        selection: Selection | None = None,
        order: Order = Order.ID,
        counted: bool = False,
    ) -> list[Any]:
        """Run a statement and return its rows, or their number. A selection narrows them down, except by state."""

    def union(self, name: str, each: Sequence[Mapping[str, object]]) -> list[Any]:
        """Return the rows of one statement for several sets of values, in as few round trips as possible."""

    def execute(self, name: str, values: Mapping[str, object] = {}) -> int:
        """Run a statement that changes rows, and return how many."""


class Database(Protocol):
    """Runs transactions, none of them in the event loop."""

    async def open(self) -> None:
        """Connect. Opening twice is harmless."""

    async def close(self) -> None:
        """Disconnect. Closing twice is harmless."""

    async def query(self, name: str, values: Mapping[str, object] = {}) -> list[Any]:
        """Run one statement that only reads."""

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work in one snapshot, without a lock."""

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in one write transaction, on disk when this returns. A conflict may run the work again."""

    async def write_relaxed(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a write transaction that need not wait for the disk: losing it costs only a repeat."""

    async def write_heartbeat(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write_relaxed` does, and wait for no other call where the database serves several at once."""

    def use_version(self, version: int) -> None:
        """Run the statements for tables of this version from now on."""

    def limit_answers(self, *, lease: timedelta) -> None:
        """Wait for answers at most so long that a connection which was dropped silently is replaced within a lease."""


class SelectionParameters:
    """Named parameters that collect the values of a selection: a `Binder`.

    `fold_column` is the SQL that removes letter case from the column `{}`, `fold` does the same in Python.
    """

    def __init__(self, *, fold_column: str, fold: Callable[[str], str]) -> None:
        self.values: dict[str, object] = {}
        self._fold_column = fold_column
        self._fold = fold

    def build_conditions(self, selection: Selection) -> str:
        """Return every condition but the state's, and collect their values."""
        # `key` is a reserved word of MySQL; SQLite takes its quotes too.
        return build_conditions(selection, self, key="`key`")

    def value(self, value: object) -> str:
        name = f"selected_{len(self.values)}"
        self.values[name] = [_to_stored(one) for one in value] if isinstance(value, list) else _to_stored(value)
        return f":{name}"

    def equals(self, column: str, value: object) -> str:
        return f"{column} = {self.value(value)}"

    def any_of(self, column: str, values: Sequence[object]) -> str:
        return f"{column} in {self.value(list(values))}"

    def contains(self, column: str, text: str) -> str:
        return f"instr({self._fold_column.format(column)}, {self.value(self._fold(text))}) > 0"


def _to_stored(value: object) -> object:
    match value:
        case datetime():
            return to_microseconds(value)
        case UUID():
            return str(value)
    return value
