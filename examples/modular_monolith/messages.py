"""What the modules tell each other: the only thing they share, beside the file they write to."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox import event

__all__ = ["GoodsReserved", "InvoiceWritten", "OrderPlaced"]


@event("orders.placed", key="order_id")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    article: str


@event("stock.reserved", key="order_id")
@dataclass(frozen=True)
class GoodsReserved:
    order_id: int
    article: str


@event("billing.written", key="order_id")
@dataclass(frozen=True)
class InvoiceWritten:
    order_id: int
    invoice_id: int
