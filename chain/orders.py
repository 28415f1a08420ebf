"""What the programs of the chain are told."""

from __future__ import annotations

import msgspec

from crash.mine import Trap

__all__ = ["ConsumerOrder", "Order", "RelayOrder"]


class _Order(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    backend: str
    """Of the crash matrix: `postgres` or `sqlite`."""
    store: str
    schema: str | None
    trap: Trap | None = None
    """Where it dies."""


class RelayOrder(_Order, frozen=True, kw_only=True):
    """For a relay."""

    to: str
    """The transport's URL."""


class ConsumerOrder(_Order, frozen=True, kw_only=True):
    """For a consumer."""

    name: str
    url: str | None = None
    """What its receiver reads. None: it is sent requests."""
    port: int = 0
    """Where it is sent them."""
    onward: bool
    """It publishes what it handles."""
    broken: str | None = None
    """A mistake to make."""


Order = RelayOrder | ConsumerOrder
