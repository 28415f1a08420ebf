"""Receiving once: a consumer records, in its own transaction, which messages it has handled."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar, cast, overload
from uuid import UUID

from pillarbox import writers
from pillarbox.arguments import check_argument
from pillarbox.contracts.writer import Accept, Fail, Forget, InboxCommand, Start, TakeRedriven
from pillarbox.durations import check_duration
from pillarbox.errors import ConfigError, DecodeError
from pillarbox.message import Names
from pillarbox.outbox import AsyncHandle, SyncHandle
from pillarbox.redaction import redact_line
from pillarbox.writers.awaitable import MustAwait

__all__ = ["Inbox"]

R = TypeVar("R")
_LONGEST_NAME: Final = 200
_LONGEST_ERROR: Final = 600


class _HasMessageId(Protocol):
    """A `pillarbox.Message`, for example."""

    @property
    def source(self) -> str: ...

    @property
    def message_id(self) -> UUID | str: ...


class _HasId(Protocol):
    """A CloudEvents event, for example."""

    @property
    def source(self) -> Any: ...

    @property
    def id(self) -> Any: ...


class Inbox:
    """Records of one consumer about what it has handled. Holds no connection; make one per consumer and share it."""

    def __init__(self, consumer: str, *, schema: str | None = None, prefix: str = "pillarbox_") -> None:
        check_argument(consumer, "consumer", str)
        if not consumer or len(consumer) > _LONGEST_NAME:
            raise ConfigError(
                f"The consumer {consumer!r} is not usable: write a name of 1 to {_LONGEST_NAME} characters."
            )
        self.consumer = consumer
        self.names = Names(schema, prefix)

    @overload
    def accept(self, tx: SyncHandle, message: _HasMessageId | _HasId) -> bool: ...
    @overload
    def accept(self, tx: AsyncHandle, message: _HasMessageId | _HasId) -> Coroutine[Any, Any, bool]: ...

    def accept(self, tx: SyncHandle | AsyncHandle, message: _HasMessageId | _HasId) -> bool | Coroutine[Any, Any, bool]:
        """Record the message as handled, in the transaction of `tx`, and return True when it is new.

        True: do the work in this same transaction. False: it was done before; do nothing, and commit, so that the
        duplicate is counted. When another transaction is handling the same message, this one waits for it,
        and handles the message itself if that one rolled back. On an async handle the result must be awaited.
        Raises `NotInTransaction` when the handle would commit on its own.
        """
        source, message_id = _get_identity(message)
        command = Accept(names=self.names, consumer=self.consumer, source=source, message_id=message_id)
        return _execute(tx, command, what=f"Inbox.accept of message {message_id}")

    @overload
    def start(self, tx: SyncHandle, message: _HasMessageId | _HasId) -> int: ...
    @overload
    def start(self, tx: AsyncHandle, message: _HasMessageId | _HasId) -> Coroutine[Any, Any, int]: ...

    def start(self, tx: SyncHandle | AsyncHandle, message: _HasMessageId | _HasId) -> int | Coroutine[Any, Any, int]:
        """Record, in a transaction of its own, that a message which came again is about to be handled.

        Returns how often it was started without an end; 0 when it is done already. By a count that grows, a message
        is found that kills its consumer each time.
        """
        source, message_id = _get_identity(message)
        command = Start(names=self.names, consumer=self.consumer, source=source, message_id=message_id)
        return _execute(tx, command, what=f"Inbox.start of message {message_id}")

    @overload
    def fail(
        self, tx: SyncHandle, message: _HasMessageId | _HasId, *, error: str, attempts: int, content: bytes | None
    ) -> None: ...
    @overload
    def fail(
        self, tx: AsyncHandle, message: _HasMessageId | _HasId, *, error: str, attempts: int, content: bytes | None
    ) -> Coroutine[Any, Any, None]: ...

    def fail(
        self,
        tx: SyncHandle | AsyncHandle,
        message: _HasMessageId | _HasId,
        *,
        error: str,
        attempts: int,
        content: bytes | None,
    ) -> Coroutine[Any, Any, None] | None:
        """Record a message that cannot be handled as failed, with the reason and its whole content, unless it is done.

        It is handled again when an operator redrives it, or when its producer sends it again. The reason is stored on
        one line, redacted, without characters that a database refuses. Without `content`, or with more of it than a
        server of MariaDB or MySQL takes, it cannot be redriven; the reason then says so.
        """
        check_argument(error, "error", str)
        check_argument(attempts, "attempts", int)
        source, message_id = _get_identity(message)
        command = Fail(
            names=self.names, consumer=self.consumer, source=source, message_id=message_id,
            attempts=attempts, error=redact_line(error, limit=_LONGEST_ERROR), message=content,
        )  # fmt: skip
        return _execute(tx, command, what=f"Inbox.fail of message {message_id}")

    @overload
    def redriven(self, tx: SyncHandle, *, limit: int = 100) -> Sequence[bytes]: ...
    @overload
    def redriven(self, tx: AsyncHandle, *, limit: int = 100) -> Coroutine[Any, Any, Sequence[bytes]]: ...

    def redriven(
        self, tx: SyncHandle | AsyncHandle, *, limit: int = 100
    ) -> Sequence[bytes] | Coroutine[Any, Any, Sequence[bytes]]:
        """Return the `content` of failed messages that an operator has redriven, longest waiting first."""
        check_argument(limit, "limit", int)
        command = TakeRedriven(names=self.names, consumer=self.consumer, limit=limit)
        return _execute(tx, command, what="Inbox.redriven")

    @overload
    def forget(
        self, tx: SyncHandle, *, older_than: timedelta, limit: int = 1_000, failed_older_than: timedelta | None = None
    ) -> int: ...
    @overload
    def forget(
        self, tx: AsyncHandle, *, older_than: timedelta, limit: int = 1_000, failed_older_than: timedelta | None = None
    ) -> Coroutine[Any, Any, int]: ...

    def forget(
        self,
        tx: SyncHandle | AsyncHandle,
        *,
        older_than: timedelta,
        limit: int = 1_000,
        failed_older_than: timedelta | None = None,
    ) -> int | Coroutine[Any, Any, int]:
        """Delete old records of this consumer, at most `limit` of each kind, and return their number.

        `older_than` is the dedup window: for those that are done, and for starts that never ended.
        `failed_older_than` is for messages that failed, and those that were redriven and never handled; without it
        they are kept.
        """
        check_argument(limit, "limit", int)
        check_duration(older_than, "older_than")
        if failed_older_than is not None:
            check_duration(failed_older_than, "failed_older_than")
        if min(older_than, failed_older_than or older_than) < timedelta(0):
            raise ConfigError("An age below zero would forget everything: pass a duration of zero or longer.")
        command = Forget(
            names=self.names, consumer=self.consumer, older_than=older_than, limit=limit,
            failed_older_than=failed_older_than,
        )  # fmt: skip
        return _execute(tx, command, what="Inbox.forget")


def _execute(tx: SyncHandle | AsyncHandle, command: InboxCommand[R], *, what: str) -> R | Coroutine[Any, Any, R]:
    if not writers.is_async(tx):
        return cast("R", writers.execute(tx, command))

    async def execute() -> R:
        return await cast("Awaitable[R]", writers.execute(tx, command))

    return MustAwait(execute, what)


def _get_identity(message: _HasMessageId | _HasId) -> tuple[str, str]:
    source = getattr(message, "source", None)
    message_id = getattr(message, "message_id", None) or getattr(message, "id", None)
    if not source or not message_id:
        raise DecodeError(
            f"This {type(message).__name__} cannot be told from others, because it lacks a source or a "
            "message id: give something with .source and .message_id, or .source and .id."
        )
    return str(source), str(message_id)
