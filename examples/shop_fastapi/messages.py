"""What the services tell each other: the only thing they share."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox import event

__all__ = ["OrderPlaced", "ParcelSent"]


@event("orders.placed", topic="orders", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    article: str


@event("shipping.parcel-sent", topic="shipping", key="order_id")
@dataclass(frozen=True)
class ParcelSent:
    parcel_id: int
    order_id: int
