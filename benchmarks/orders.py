"""What the write benchmarks write: an order, and the event that says it was placed; and the same row by hand."""

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
    "INSERT_BY_HAND",
    "INSERT_ORDER",
    "PAYLOAD_BYTES",
    "SCHEMA",
    "TOTAL",
    "ByHand",
    "OrderPlaced",
    "Shop",
    "by_hand",
    "order_ids",
    "placed",
]

SCHEMA: Final = "pillarbox_bench_write"
CUSTOMER: Final = "c-12345"
TOTAL: Final = "129.90"

INSERT_ORDER: Final = f"insert into {SCHEMA}.orders (id, customer, total) values ($1, $2, $3)"
INSERT_BY_HAND: Final = f"""
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
    """Somebody has bought something."""

    order_id: UUID
    customer: str
    total: str
    currency: str
    items: tuple[Item, ...]
    placed_at: datetime


_ITEMS: Final = (Item("A-1001", 2, "49.95"), Item("B-7002", 1, "30.00"))
_PLACED_AT: Final = datetime(2026, 11, 15, 12, tzinfo=UTC)


def order_ids(count: int) -> list[UUID]:
    """The same ones for every slice, so that the rows of any two can be compared."""
    numbers = random.Random(count)
    return [UUID(int=numbers.getrandbits(128)) for _ in range(count)]


def placed(order_id: UUID) -> OrderPlaced:
    """The event of one order."""
    return OrderPlaced(order_id, CUSTOMER, TOTAL, "EUR", _ITEMS, _PLACED_AT)


PAYLOAD_BYTES: Final = len(msgspec.json.encode(placed(UUID(int=0))))


class ByHand(NamedTuple):
    """Those values of an outbox row that differ from message to message, in the order of `INSERT_BY_HAND`."""

    message_id: UUID
    partition: int
    key: str
    payload: bytes
    correlation_id: str
    event_time: datetime


def by_hand(event: OrderPlaced) -> ByHand:
    """What a careful person works out for the row that `publish` writes, and nothing more."""
    message_id, key = new_message_id(), str(event.order_id)
    return ByHand(
        message_id,
        compute_partition(key, message_id),
        key,
        msgspec.json.encode(event),
        str(message_id),
        datetime.now(UTC),
    )


class Shop:
    """The tables that are written to, seen from a connection of their own."""

    def __init__(self, admin: asyncpg.Connection[Any]) -> None:
        self._admin = admin
        self._digests: set[str] = set()

    async def open(self) -> None:
        """Make the business table."""
        await self._admin.execute(f"create table {SCHEMA}.orders (id uuid primary key, customer text, total numeric)")

    async def empty(self) -> None:
        """Let each slice begin with empty tables."""
        await self._admin.execute(f"truncate {SCHEMA}.pillarbox_outbox, {SCHEMA}.orders")

    async def check(self, *, messages: int, orders: int) -> None:
        """Both tables hold what they should, and the outbox what it held after every earlier slice."""
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
