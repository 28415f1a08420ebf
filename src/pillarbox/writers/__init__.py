"""Putting rows into the caller's transaction, whatever handle the caller has. Nothing here begins or ends one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from pillarbox.protocols import InboxAsk, Insert
from pillarbox.writers.finding import WriterClass, writer_class

__all__ = ["ask", "insert", "is_async"]


def is_async(tx: object) -> bool:
    """Whether the handle's methods are awaited. `UnsupportedHandle` when no writer can join it."""
    return _class(tx).is_async


def insert(tx: object, batch: Insert) -> Awaitable[None] | None:
    """Write the batch into the transaction of `tx`; on an async handle the result must be awaited.

    `NotInTransaction` when the handle would commit on its own, `UnsupportedHandle` when it is no handle.
    """
    return _class(tx)(tx).insert(batch)


def ask(tx: object, ask: InboxAsk) -> Any:
    """Do what is asked of the inbox, and answer as it says. Awaitable and errors as in `insert`."""
    return _class(tx)(tx).ask(ask)


def _class(tx: object) -> WriterClass:
    return writer_class(type(tx))  # type: ignore[arg-type]  # a class has a hash, whatever its instances have
