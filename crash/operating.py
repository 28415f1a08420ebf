"""What an operator does with failed messages."""

from __future__ import annotations

from typing import Literal

from pillarbox.message import State
from pillarbox.protocols import Moved, Selection, Store

__all__ = ["Action", "all_failed"]

Action = Literal["redrive", "discard"]


async def all_failed(store: Store, action: Action, *, batch: int) -> None:
    """Redrive or discard every failed message, in batches, in id order."""
    after = 0
    while (moved := await _act(store, action, Selection(states=[State.FAILED], after=after), batch)).count:
        after = moved.last_id


async def _act(store: Store, action: Action, selection: Selection, batch: int) -> Moved:
    if action == "redrive":
        return await store.redrive(selection, by="the matrix", limit=batch)
    return await store.discard(selection, by="the matrix", reason="nobody wants it", limit=batch)
