"""What programs are told."""

from __future__ import annotations

from typing import Literal

import msgspec

from pillarbox.contracts.store import BulkResult, Selection, Store
from pillarbox.message import State
from proof.kill_points import Trap

__all__ = ["Action", "OperatorOrder", "Order", "RelayOrder", "WriterOrder", "redrive_all_failed"]


class _Order(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    backend: str
    store: str
    schema: str | None
    trap: Trap | None = None
    """Where it dies."""


class RelayOrder(_Order, frozen=True, kw_only=True):
    """For a relay."""

    to: str
    """The consumer's URL."""
    arrivals: str
    """The consumer's record."""
    archive: str | None = None
    """A file that takes what is purged."""
    lease: float
    batch: int
    window: int
    after_failure: Literal["continue", "hold"]
    purges: bool
    """Delivered messages are cleaned away at once, and often."""
    forwards: bool
    """Failed messages go to a dead-letter destination."""
    lone_cap: int
    through: int | None
    """So many messages are sent and no more."""


class WriterOrder(_Order, frozen=True, kw_only=True):
    """For a writer: transactions to make, of so many parcels each."""

    key: str
    transactions: int
    parcels: int


class OperatorOrder(_Order, frozen=True, kw_only=True):
    """For an operator: what to do with all failed messages, in batches."""

    action: Literal["redrive", "discard"]
    batch: int


Order = RelayOrder | WriterOrder | OperatorOrder


Action = Literal["redrive", "discard"]


async def redrive_all_failed(store: Store, action: Action, *, batch: int) -> None:
    """Redrive or discard every failed message, in batches, in id order."""
    after = 0
    while (moved := await _act(store, action, Selection(states=[State.FAILED], after=after), batch)).count:
        after = moved.last_id


async def _act(store: Store, action: Action, selection: Selection, batch: int) -> BulkResult:
    if action == "redrive":
        return await store.redrive(selection, by="the matrix", limit=batch)
    return await store.discard(selection, by="the matrix", reason="nobody wants it", limit=batch)
