"""Writers join the caller's transaction, whatever handle the caller has. None of them begins or ends one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar, cast

from pillarbox.contracts.writer import AsyncWriter, InboxCommand, Insert, Writer
from pillarbox.writers.hints import hint_at_tables
from pillarbox.writers.registry import WriterClass, find_writer_class

__all__ = ["execute", "insert", "is_async"]

R = TypeVar("R")


def is_async(tx: object) -> bool:
    """Return True when the handle's methods are awaited; raise `UnsupportedHandle` when no writer can join it."""
    return _find_class(tx).is_async


def insert(tx: object, batch: Insert) -> Awaitable[None] | None:
    """Write the batch into the transaction of `tx`; on an async handle the result must be awaited.

    Raises `NotInTransaction` when the handle would commit on its own, `UnsupportedHandle` when it is no handle.
    """
    found = _find_class(tx)
    writer = found(tx)
    if found.is_async:
        return _insert_async(cast("AsyncWriter", writer), batch)
    try:
        cast("Writer", writer).insert(batch)
    except Exception as error:
        hint_at_tables(error, batch.names)
        raise
    return None


async def _insert_async(writer: AsyncWriter, batch: Insert) -> None:
    try:
        await writer.insert(batch)
    except Exception as error:
        hint_at_tables(error, batch.names)
        raise


def execute(tx: object, command: InboxCommand[R]) -> R | Awaitable[R]:
    """Execute an inbox command in the transaction of `tx` and return its result. Awaitable and errors as `insert`."""
    found = _find_class(tx)
    writer = found(tx)
    if found.is_async:
        return _execute_async(cast("AsyncWriter", writer), command)
    try:
        return cast("Writer", writer).execute(command)
    except Exception as error:
        hint_at_tables(error, command.names)
        raise


async def _execute_async(writer: AsyncWriter, command: InboxCommand[R]) -> R:
    try:
        return await writer.execute(command)
    except Exception as error:
        hint_at_tables(error, command.names)
        raise


def _find_class(tx: object) -> WriterClass:
    return find_writer_class(type(tx))  # type: ignore[arg-type]  # a class has a hash, whatever its instances have
