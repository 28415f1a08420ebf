"""The consumer, a process of its own: receives orders and applies each once, in one transaction with its inbox."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.demo.result import Failure
from pillarbox.demo.shop import CONSUMER, NO_SYNC, AcceptedOrder
from pillarbox.demo.target import Target, open_endpoint
from pillarbox.errors import MessageRejected
from pillarbox.inbox import Inbox
from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url

__all__ = ["MODULE", "ConsumerDatabase", "arguments", "settings"]

MODULE: Final = "pillarbox.demo.consumer"
_TARGET: Final = "PILLARBOX_DEMO_TARGET"
# No constraint forbids a second effect of an order: only the inbox prevents it.
_TABLES: Final = """
create table receipt (id integer primary key autoincrement, message_id text not null);
create table effect (id integer primary key autoincrement, order_id text not null, customer text not null,
    number integer not null, amount integer not null);
create table refused (message_id text primary key, order_id text, customer text, error text not null);
"""
_ARRIVED: Final = "select (select count(distinct message_id) from receipt) + (select count(*) from refused)"
_ABSORBED: Final = "select coalesce(sum(duplicates), 0) from pillarbox_inbox where consumer = ?"


class ConsumerDatabase:
    """Applies each order once, however often its message comes."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._connection.execute(NO_SYNC)
        self._inbox = Inbox(CONSUMER)

    @classmethod
    async def create(cls, path: Path) -> Self:
        """Create the file with the tables of the inbox and its own."""
        await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
        database = cls(path)
        # Without a write-ahead log the director's counts wait for the consumer's commits, on a busy machine for seconds
        # in which no relay is killed.
        database._connection.execute("pragma journal_mode = wal")
        database._connection.executescript(_TABLES)
        return database

    def close(self) -> None:
        self._connection.close()

    def apply(self, message: CloudEvent) -> None:
        """Apply an order and commit. `MessageRejected` for what is no order; then nothing was written."""
        order = _decode_order(message)
        self._connection.execute("begin immediate")
        with self._connection:
            self._connection.execute("insert into receipt (message_id) values (?)", (message.message_id,))
            if self._inbox.accept(self._connection, message):
                self._connection.execute(
                    "insert into effect (order_id, customer, number, amount) values (?, ?, ?, ?)",
                    (order.order_id, order.customer, order.number, order.amount),
                )

    def refuse(self, message: CloudEvent, reason: str) -> None:
        """Record a message that can never be applied, once, and commit."""
        refused = (message.message_id, message.subject, message.key, reason)
        self._connection.execute("insert or ignore into refused values (?, ?, ?, ?)", refused)

    def list_effects(self) -> Sequence[str]:
        """Return the ids of the applied orders, in that order."""
        return [order_id for (order_id,) in self._connection.execute("select order_id from effect order by id")]

    def list_received(self) -> Sequence[str]:
        """Return the id of every message that was applied or absorbed."""
        return [message_id for (message_id,) in self._connection.execute("select message_id from receipt order by id")]

    def list_refused(self) -> Sequence[Failure]:
        """Return the orders that were kept as refused."""
        return [Failure(*row) for row in self._connection.execute("select order_id, customer, error from refused")]

    def count_arrived(self) -> int:
        """Count the different messages that have arrived."""
        (count,) = self._connection.execute(_ARRIVED).fetchone()
        return int(count)

    def count_absorbed(self) -> int:
        """Count the repeats that the inbox refused."""
        (count,) = self._connection.execute(_ABSORBED, (CONSUMER,)).fetchone()
        return int(count)


def _decode_order(message: CloudEvent) -> AcceptedOrder:
    try:
        return msgspec.json.decode(message.payload, type=AcceptedOrder)
    except msgspec.DecodeError as error:
        raise MessageRejected(f"The consumer cannot read {message.subject}: {error}") from error


def arguments(file: Path) -> list[str]:
    """Return the arguments of this program."""
    return [str(file)]


def settings(target: Target) -> dict[str, str]:
    """Return its environment. The target goes there, because a broker's URL may hold a password."""
    return {_TARGET: msgspec.json.encode(target).decode()}


def main(file: str) -> None:
    target = msgspec.json.decode(os.environ[_TARGET], type=Target)
    asyncio.run(open_endpoint(target).serve(ConsumerDatabase(Path(file))))


if __name__ == "__main__":
    main(*sys.argv[1:])
