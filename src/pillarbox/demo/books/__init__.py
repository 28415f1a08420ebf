"""The order service's own tables: one file for each kind of store. They stand where the outbox stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pillarbox.demo.judge import Order
from pillarbox.demo.story import Attempt
from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.stores.urls import StoreUrl

__all__ = ["Book", "Entries", "RolledBack", "book_at"]


class RolledBack(Exception):
    """Thrown in the middle of a transaction, after publishing."""


class Entries(msgspec.Struct, frozen=True):
    """What became of the orders."""

    committed: Sequence[Order]
    rolled_back: Sequence[str]


class Book(Protocol):
    """Orders, their customers, and which orders were rolled back."""

    writers: int
    """How many transactions make sense at once."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Let go."""

    async def create(self) -> None:
        """Make the tables."""

    async def remove(self) -> None:
        """Remove the tables, and everything else that the demo made in the store."""

    async def place(self, attempt: Attempt) -> None:
        """Write the order and publish it, in one transaction that commits or is rolled back."""

    async def counts(self) -> tuple[int, int]:
        """How many orders are committed, and how many were rolled back."""

    async def entries(self) -> Entries:
        """Everything."""


def book_at(url: StoreUrl, *, names: Names) -> Book:
    """The book beside the store at this URL."""
    match url.scheme:
        case "sqlite":
            from pillarbox.demo.books.sqlite import SqliteBook

            return SqliteBook(url.path, names=names)
        case "postgresql":
            from pillarbox.demo.books.postgres import PostgresBook

            return PostgresBook(url, names=names)
        case "mysql":
            from pillarbox.demo.books.mariadb import MariadbBook

            return MariadbBook(url, names=names)
    raise ConfigError(f"The demo runs on sqlite://, postgresql:// and mysql:// stores, not on {url.scheme}://.")
