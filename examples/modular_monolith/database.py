"""One SQLite file, and one outbox in it. Each module has tables of its own."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from pillarbox import Outbox, Route

__all__ = ["FILE", "outbox", "transaction"]

FILE: Final = os.environ.get("SHOP_FILE", "modular_monolith.db")

outbox = Outbox(
    source="/shop",
    routes=[
        Route(to="stock", type="orders.placed"),
        Route(to="billing", type="stock.reserved"),
        Route(to="orders", type="billing.written"),
    ],
)
"""Who hears what. A module is a destination: when it fails, it alone is tried again."""


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """Commits at the end of its block, or rolls back."""
    with closing(sqlite3.connect(FILE, isolation_level="IMMEDIATE", timeout=30)) as connection, connection:
        yield connection
