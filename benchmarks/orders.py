"""What the write benchmarks write: an order, and its event; and the same outbox row built by hand."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from pillarbox import event
from pillarbox.message import compute_partition, new_message_id

__all__ = [
    "CUSTOMER",
    "INSERT_ORDER",
    "INSERT_ROW",
    "PAYLOAD_BYTES",
    "SCHEMA",
    "TOTAL",
    "OrderPlaced",
    "OutboxRow",
    "Shop",
    "build_event",
    "build_row",
    "order_ids",
]

SCHEMA: Final = "pillarbox_bench_write"
CUSTOMER: Final = "c-12345"
TOTAL: Final = "129.90"

INSERT_ORDER: Final = f"insert into {SCHEMA}.orders (id, customer, total) values ($1, $2, $3)"
INSERT_ROW: Final = f"""
    insert into {SCHEMA}.pillarbox_outbox (message_id, destination, partition, kind, type, topic, key, payload,
                                           content_type, source, correlation_id, event_time)
    values ($1, 'default', $2, 'event', 'orders.placed', 'orders', $3, $4, 'application/json', '/shop', $5, $6)"""


class Item(msgspec.Struct, frozen=True):
    """One line of an order."""

    sku: str
    qty: int
    price: str


@event("orders.placed", topic="orders", key="order_id")
class OrderPlaced(msgspec.Struct, frozen=True):
    """An order was placed."""

    order_id: UUID
    customer: str
    total: str
    currency: str
    items: tuple[Item, ...]
    placed_at: datetime


_ITEMS: Final = (Item("A-1001", 2, "49.95"), Item("B-7002", 1, "30.00"))
_PLACED_AT: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)


def order_ids(count: int) -> list[UUID]:
    """Return ids that are the same for every slice, so that the rows of any two can be compared."""
    numbers = random.Random(count)
    return [UUID(int=numbers.getrandbits(128)) for _ in range(count)]


def build_event(order_id: UUID) -> OrderPlaced:
    """Build the event of one order."""
    return OrderPlaced(order_id, CUSTOMER, TOTAL, "EUR", _ITEMS, _PLACED_AT)


PAYLOAD_BYTES: Final = len(msgspec.json.encode(build_event(UUID(int=0))))


class OutboxRow(NamedTuple):
    """The values of an outbox row that differ from message to message, in the order of `INSERT_ROW`."""

    message_id: UUID
    partition: int
    key: str
    payload: bytes
    correlation_id: str
    event_time: datetime


def build_row(event: OrderPlaced) -> OutboxRow:
    """Build by hand the row that `publish` writes, and nothing more."""
    message_id, key = new_message_id(), str(event.order_id)
    return OutboxRow(
        message_id,
        compute_partition(key, message_id),
        key,
        msgspec.json.encode(event),
        str(message_id),
        datetime.now(UTC),
    )


class Shop:
    """The tables that are written to, checked over a connection of their own."""

    def __init__(self, admin: asyncpg.Connection[Any]) -> None:
        self._admin = admin
        self._digests: set[str] = set()

    async def open(self) -> None:
        """Create the business table."""
        await self._admin.execute(f"create table {SCHEMA}.orders (id uuid primary key, customer text, total numeric)")

    async def empty(self) -> None:
        """Empty the tables, before each slice."""
        await self._admin.execute(f"truncate {SCHEMA}.pillarbox_outbox, {SCHEMA}.orders")

    async def check(self, *, messages: int, orders: int) -> None:
        """Check that both tables hold what they should, and the outbox the same as after every earlier slice."""
        assert await self._admin.fetchval(f"select count(*) from {SCHEMA}.orders") == orders
        row = await self._admin.fetchrow(_DIGEST)
        assert row is not None
        digest, *counts = row
        assert counts == [messages, messages]
        self._digests.add(digest)
        assert len(self._digests) == 1, "The hand-written rows differ from the published ones."


_DIGEST: Final = f"""
    select md5(string_agg(row(destination, partition, kind, type, topic, key, payload, content_type, headers, source,
                              subject, correlation_id = message_id::text, causation_id, available_at, waits)::text,
                          '' order by id)),
           count(*), count(distinct message_id)
      from {SCHEMA}.pillarbox_outbox"""
