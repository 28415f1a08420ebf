"""What the order service publishes and the consumer receives."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pillarbox.demo.story import Attempt
from pillarbox.events import Types
from pillarbox.names import Names
from pillarbox.outbox import Outbox

__all__ = ["CONSUMER", "DESTINATION", "OrderPlaced", "Received", "order_placed", "outbox"]

DESTINATION: Final = "orders"
CONSUMER: Final = "demo"
_TYPES: Final = Types()


@_TYPES.event("demo.order_placed", topic="orders", key="customer", subject="order_id")
class OrderPlaced(msgspec.Struct, frozen=True):
    """The event. Orders of one customer are delivered in order."""

    order_id: str
    customer: str
    number: int
    amount: int


class Received(msgspec.Struct, frozen=True):
    """The same as the consumer understands it: it takes no amount below 1."""

    order_id: str
    customer: str
    number: int
    amount: Annotated[int, msgspec.Meta(ge=1)]


def outbox(names: Names) -> Outbox:
    """The order service's."""
    return Outbox(routes=DESTINATION, source="/demo/shop", schema=names.schema, prefix=names.prefix, types=_TYPES)


def order_placed(attempt: Attempt, *, number: int) -> OrderPlaced:
    return OrderPlaced(attempt.order_id, attempt.customer, number, attempt.amount)
