"""What a line consists of: three databases, and between them the orders for whoever works there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from chain.orders import Order
from crash.backends import Place

__all__ = ["Line"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One way from A to C."""

    a: Place
    b: Place
    c: Place
    roles: Mapping[str, Order]
    """Who works, by the name that people read: `relay A`, `consumer B`, `relay B`, `consumer C`."""
