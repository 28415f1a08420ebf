"""The consumer's own database: what it received, and what it did. One transaction for each message."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.demo.books.sqlite import QUICK
from pillarbox.demo.judge import Failure
from pillarbox.demo.orders import CONSUMER, Received
from pillarbox.errors import MessageRejected
from pillarbox.inbox import Inbox
from pillarbox.names import Names
from pillarbox.stores.schema import schema_at
from pillarbox.stores.urls import store_url

__all__ = ["Ledger"]

# Nothing here forbids a second effect of the same order: only the inbox stands in its way.
_TABLES: Final = """
create table receipt (id integer primary key autoincrement, message_id text not null);
create table effect (id integer primary key autoincrement, order_id text not null, customer text not null,
    number integer not null, amount integer not null);
create table refused (message_id text primary key, order_id text, customer text, error text not null);
"""
_ARRIVED: Final = "select (select count(distinct message_id) from receipt) + (select count(*) from refused)"
_ABSORBED: Final = "select coalesce(sum(duplicates), 0) from pillarbox_inbox where consumer = ?"


class Ledger:
    """Applies each order once, however often its message comes."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute(QUICK)
        self._inbox = Inbox(CONSUMER)

    @classmethod
    async def created(cls, path: Path) -> Self:
        """A new one, with the inbox's tables and its own."""
        await schema_at(store_url(f"sqlite:///{path}"), names=Names()).install()
        ledger = cls(path)
        ledger._connection.executescript(_TABLES)
        return ledger

    def close(self) -> None:
        self._connection.close()

    def apply(self, message: CloudEvent) -> None:
        """Committed when it returns. `MessageRejected` for what is no order; then nothing was written."""
        order = _order_in(message)
        self._connection.execute("begin immediate")
        with self._connection:
            self._connection.execute("insert into receipt (message_id) values (?)", (message.message_id,))
            if self._inbox.accept(self._connection, message):
                self._connection.execute(
                    "insert into effect (order_id, customer, number, amount) values (?, ?, ?, ?)",
                    (order.order_id, order.customer, order.number, order.amount),
                )

    def refuse(self, message: CloudEvent, reason: str) -> None:
        """Committed when it returns: what a broker delivered and nobody can apply is kept here, once."""
        refused = (message.message_id, message.subject, message.key, reason)
        self._connection.execute("insert or ignore into refused values (?, ?, ?, ?)", refused)

    def effects(self) -> Sequence[str]:
        """The orders that were applied, in that order."""
        return [order_id for (order_id,) in self._connection.execute("select order_id from effect order by id")]

    def received(self) -> Sequence[str]:
        """The message id of every message that was applied or absorbed."""
        return [message_id for (message_id,) in self._connection.execute("select message_id from receipt order by id")]

    def refused(self) -> Sequence[Failure]:
        """What was kept as refused."""
        return [Failure(*row) for row in self._connection.execute("select order_id, customer, error from refused")]

    def count(self) -> int:
        """How many different messages have arrived."""
        (count,) = self._connection.execute(_ARRIVED).fetchone()
        return int(count)

    def absorbed(self) -> int:
        """How many repeats the inbox refused."""
        (count,) = self._connection.execute(_ABSORBED, (CONSUMER,)).fetchone()
        return int(count)


def _order_in(message: CloudEvent) -> Received:
    try:
        return msgspec.json.decode(message.payload, type=Received)
    except msgspec.DecodeError as error:
        raise MessageRejected(f"The consumer cannot book {message.subject}: {error}") from error
