"""The contract of a writer: what it inserts, and the inbox commands it executes, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from pillarbox.message import Message, Names

__all__ = [
    "Accept",
    "AsyncWriter",
    "Fail",
    "Forget",
    "InboxCommand",
    "Insert",
    "ListOpen",
    "Start",
    "TakeRedriven",
    "Writer",
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Insert(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to write into the caller's transaction, as one statement."""

    names: Names
    messages: Sequence[Message]
    """In order. `available_at` is set on those with a fixed time."""
    delay: timedelta | None = None
    """Counted from the database's now, for all of them."""
    serialize_keys: bool = False
    """Lock the keys first, in sorted order, so that ids follow commit order."""


class InboxCommand(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """A command to the inbox of one consumer. The type parameter is the type of its result."""

    names: Names
    consumer: str


class _MessageCommand(InboxCommand[R_co], Generic[R_co], frozen=True, kw_only=True):
    """A command about one received message."""

    source: str
    message_id: str


class Accept(_MessageCommand[bool], frozen=True, kw_only=True):
    """Record a received message as done. Results in True when it is new, and in False when it was done before."""


class Start(_MessageCommand[int], frozen=True, kw_only=True):
    """Record that a message is about to be handled again. Results in the number of starts; 0 when it is done."""


class Fail(_MessageCommand[None], frozen=True, kw_only=True):
    """Record a message as failed and store its content, unless it is done."""

    attempts: int
    error: str
    message: bytes | None
    """The whole message as it was received, so that it can be handled again; None when the database refuses it."""


class TakeRedriven(InboxCommand[Sequence[bytes]], frozen=True, kw_only=True):
    """Read failed messages that an operator has redriven. Results in the `Fail.message` of each."""

    limit: int


class Forget(InboxCommand[int], frozen=True, kw_only=True):
    """Delete old records, at most `limit` of each kind. Results in the number of deleted records."""

    older_than: timedelta
    """The dedup window: for those that are done, and for starts that never ended."""
    limit: int
    failed_older_than: timedelta | None = None
    """For those that failed, and those that were redriven and never handled; None keeps them."""


class ListOpen(InboxCommand[Sequence[Sequence[Any]]], frozen=True, kw_only=True):
    """Read the open messages that the caller's transaction sees, its own included, by id. For tests.

    Results in rows of the outbox's columns, from the id to `status_at`, with times in microseconds since 1970.
    """

    consumer: str = ""


class Writer(Protocol):
    """Joins a transaction that the caller began on a synchronous handle; never begins, commits or ends one."""

    def insert(self, batch: Insert) -> None:
        """Write the rows, or stage them so that they are written before the transaction can commit.

        Raises `NotInTransaction` when the handle would commit on its own; then nothing was written.
        """

    def execute(self, command: InboxCommand[R]) -> R:
        """Execute an inbox command and return its result.

        Waits for another transaction that is handling the same message. Raises `NotInTransaction` as `insert` does.
        """


class AsyncWriter(Protocol):
    """`Writer` for handles that must be awaited."""

    async def insert(self, batch: Insert) -> None:
        """Write or stage the rows, as `Writer.insert` does."""

    async def execute(self, command: InboxCommand[R]) -> R:
        """Execute an inbox command, as `Writer.execute` does."""
