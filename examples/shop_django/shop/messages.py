"""What the shop announces."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox import event

__all__ = ["OrderCancelled", "OrderPlaced"]


@event("orders.placed", topic="orders", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    article: str


@event("orders.cancelled", topic="orders", key="order_id")
@dataclass(frozen=True)
class OrderCancelled:
    order_id: int
