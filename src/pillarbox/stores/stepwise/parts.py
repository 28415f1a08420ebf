"""What the parts of such a store stand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from pillarbox.protocols import Selection
from pillarbox.stores.keeping import Keep

__all__ = ["Database", "Parts", "Transaction"]

T = TypeVar("T")


class Transaction(Protocol):
    """One transaction in the store's thread. Statements go by the names of their files; `now` is always bound.

    A list among the values stands for `in` a list.
    """

    @property
    def now(self) -> int:
        """Microseconds since 1970, by the store's clock."""

    def rows(self, name: str, values: Mapping[str, object] = {}, *, selection: Selection | None = None) -> list[Any]:
        """Run a statement and fetch what it returns. A selection narrows it down, but for the state."""

    def run(self, name: str, values: Mapping[str, object] = {}) -> int:
        """Run a statement that changes rows, and say how many."""


class Database(Protocol):
    """Runs transactions, none of them in the event loop."""

    async def rows(self, name: str, values: Mapping[str, object] = {}) -> list[Any]:
        """One statement that only reads."""

    async def reading(self, work: Callable[[Transaction], T]) -> T:
        """One snapshot, no lock."""

    async def writing(self, work: Callable[[Transaction], T]) -> T:
        """One write transaction, on disk when this returns. The work may be begun again after a conflict."""

    async def relaxed(self, work: Callable[[Transaction], T]) -> T:
        """One write transaction that need not wait for the disk: losing it in a power cut costs only a repeat."""


class Parts:
    """The database and what the store was told: what each part stands on."""

    _database: Database
    _keep: Keep
