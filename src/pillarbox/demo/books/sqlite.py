"""The order service's tables in SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from pillarbox.demo.books import Entries, RolledBack
from pillarbox.demo.judge import Order
from pillarbox.demo.orders import order_placed, outbox
from pillarbox.demo.story import Attempt
from pillarbox.names import Names

__all__ = ["QUICK", "SqliteBook"]

QUICK: Final = "pragma synchronous = normal"
"""A commit does not wait for the disk: it outlives every process that is killed, though not a power cut."""

_TABLES: Final = """
create table shop_customer (name text primary key, orders integer not null);
create table shop_order (order_id text primary key, customer text not null, number integer not null,
    amount integer not null);
create table shop_rolled_back (order_id text primary key);
"""
_NEXT_NUMBER: Final = """
insert into shop_customer values (?, 1) on conflict (name) do update set orders = orders + 1 returning orders
"""


class SqliteBook:
    """One writer at a time, as SQLite has it. Calls block: whoever places orders does nothing else."""

    writers = 1

    def __init__(self, path: str, *, names: Names) -> None:
        self._path = Path(path)
        self._outbox = outbox(names)
        self._connection: sqlite3.Connection | None = None

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "open() comes first"  # noqa: S101
        return self._connection

    async def open(self) -> None:
        self._connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        self._connection.execute(QUICK)

    async def close(self) -> None:
        self._open.close()

    async def create(self) -> None:
        self._open.executescript(_TABLES)

    async def remove(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    async def place(self, attempt: Attempt) -> None:
        try:
            self._open.execute("begin immediate")
            with self._open:
                self._write(attempt)
                if not attempt.commits:
                    raise RolledBack
        except RolledBack:
            self._open.execute("insert into shop_rolled_back values (?)", (attempt.order_id,))

    def _write(self, attempt: Attempt) -> None:
        (number,) = self._open.execute(_NEXT_NUMBER, (attempt.customer,)).fetchone()
        order = (attempt.order_id, attempt.customer, number, attempt.amount)
        self._open.execute("insert into shop_order values (?, ?, ?, ?)", order)
        self._outbox.publish(self._open, order_placed(attempt, number=number))

    async def counts(self) -> tuple[int, int]:
        (committed,) = self._open.execute("select count(*) from shop_order").fetchone()
        (rolled_back,) = self._open.execute("select count(*) from shop_rolled_back").fetchone()
        return committed, rolled_back

    async def entries(self) -> Entries:
        orders = self._open.execute("select order_id, customer, number from shop_order").fetchall()
        rolled_back = self._open.execute("select order_id from shop_rolled_back").fetchall()
        return Entries([Order(*row) for row in orders], [order_id for (order_id,) in rolled_back])
