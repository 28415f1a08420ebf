"""The stores of the matrix. One more is one file with the shape of `sqlite`, and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from crash.backends import mariadb, postgres, sqlite
from crash.mine import Mine
from crash.parcels import Parcel
from pillarbox.names import Names

__all__ = ["BACKENDS", "Backend", "MakePlace", "Place"]


class Place(Protocol):
    """One store with its tables, and the business table beside them."""

    names: Names

    def url(self, *, in_transactions: bool = False) -> str:
        """The store's URL; one under which every call is a transaction of its own, if the store has the choice."""

    def rows(self, sql: str, *values: object) -> Sequence[Any]:
        """Ask the tables. `?` stands for a value."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A handle that `Outbox.publish` takes. Commits at the end of the block, or rolls back on an error."""

    def book(self, handle: Any, parcel: Parcel) -> None:
        """Write the business row of a parcel."""

    def close(self) -> None:
        """Let go."""


MakePlace = Callable[[Path], AbstractContextManager[Place]]
"""A new place; the folder is for files. It is removed afterwards."""


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of store."""

    served: Callable[[], AbstractContextManager[MakePlace]]
    """Finds the server. Raises `Unserved` with a sentence for people where there is none."""
    reopened: Callable[[str, str | None], Place]
    """The place at this URL and schema again, in another process."""
    wire: Callable[[Mine], None]
    """Have the driver of this process tell the mine of statements and commits."""


BACKENDS: Final[Mapping[str, Backend]] = MappingProxyType(
    {
        "sqlite": Backend(served=sqlite.served, reopened=sqlite.SqlitePlace, wire=sqlite.wire),
        "postgres": Backend(served=postgres.served, reopened=postgres.PostgresPlace, wire=postgres.wire),
        "mariadb": Backend(served=mariadb.served, reopened=mariadb.MariadbPlace, wire=mariadb.wire),
    }
)
"""By the name that people type."""
