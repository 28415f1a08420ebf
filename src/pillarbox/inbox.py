"""Receiving once: a consumer remembers, in its own transaction, which messages it has handled."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, overload
from uuid import UUID

from pillarbox import writers
from pillarbox.errors import ConfigError, DecodeError
from pillarbox.names import Names
from pillarbox.outbox import AsyncHandle, SyncHandle
from pillarbox.protocols import Accept, Fail, Forget, InboxAsk, Redriven, Start
from pillarbox.writers.awaiting import MustAwait

__all__ = ["Inbox"]

_LONGEST: Final = 200


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
    """One consumer's memory of what it has handled. Holds no connection; make one per consumer and share it."""

    def __init__(self, consumer: str, *, schema: str | None = None, prefix: str = "pillarbox_") -> None:
        if not consumer or len(consumer) > _LONGEST:
            raise ConfigError(f"The consumer {consumer!r} is not usable: write a name of 1 to {_LONGEST} characters.")
        self.consumer = consumer
        self.names = Names(schema, prefix)

    @overload
    def accept(self, tx: SyncHandle, message: _HasMessageId | _HasId) -> bool: ...
    @overload
    def accept(self, tx: AsyncHandle, message: _HasMessageId | _HasId) -> Awaitable[bool]: ...

    def accept(self, tx: SyncHandle | AsyncHandle, message: _HasMessageId | _HasId) -> bool | Awaitable[bool]:
        """Record the message as handled, in the transaction of `tx`, and say whether it is new.

        True: do the work in this same transaction. False: it was done before; do nothing, and commit, so that the
        duplicate is counted. When another transaction is just handling the same message, this one waits for it,
        and handles the message itself if that one rolled back. On an async handle the result must be awaited.
        `NotInTransaction` when the handle would commit on its own.
        """
        source, message_id = _identity(message)
        ask = Accept(names=self.names, consumer=self.consumer, source=source, message_id=message_id)
        answer: bool | Awaitable[bool] = self._ask(tx, ask, what=f"Inbox.accept of message {message_id}")
        return answer

    @overload
    def start(self, tx: SyncHandle, message: _HasMessageId | _HasId) -> int: ...
    @overload
    def start(self, tx: AsyncHandle, message: _HasMessageId | _HasId) -> Awaitable[int]: ...

    def start(self, tx: SyncHandle | AsyncHandle, message: _HasMessageId | _HasId) -> int | Awaitable[int]:
        """Record, in a transaction of its own, that a message which came again is about to be handled.

        Answers how often it was started without an end; 0 when it is done already. A message that kills its consumer
        each time is known by a count that grows.
        """
        source, message_id = _identity(message)
        ask = Start(names=self.names, consumer=self.consumer, source=source, message_id=message_id)
        answer: int | Awaitable[int] = self._ask(tx, ask, what=f"Inbox.start of message {message_id}")
        return answer

    @overload
    def fail(
        self, tx: SyncHandle, message: _HasMessageId | _HasId, *, error: str, attempts: int, content: bytes
    ) -> None: ...
    @overload
    def fail(
        self, tx: AsyncHandle, message: _HasMessageId | _HasId, *, error: str, attempts: int, content: bytes
    ) -> Awaitable[None]: ...

    def fail(
        self,
        tx: SyncHandle | AsyncHandle,
        message: _HasMessageId | _HasId,
        *,
        error: str,
        attempts: int,
        content: bytes,
    ) -> Awaitable[None] | None:
        """Keep a message that cannot be handled as failed, with the reason and all that came.

        Not if it is done. A person can have it handled again, and so can the producer by sending it again.
        """
        source, message_id = _identity(message)
        ask = Fail(
            names=self.names, consumer=self.consumer, source=source, message_id=message_id,
            attempts=attempts, error=error, message=content,
        )  # fmt: skip
        answer: Awaitable[None] | None = self._ask(tx, ask, what=f"Inbox.fail of message {message_id}")
        return answer

    @overload
    def redriven(self, tx: SyncHandle, *, limit: int = 100) -> Sequence[bytes]: ...
    @overload
    def redriven(self, tx: AsyncHandle, *, limit: int = 100) -> Awaitable[Sequence[bytes]]: ...

    def redriven(
        self, tx: SyncHandle | AsyncHandle, *, limit: int = 100
    ) -> Sequence[bytes] | Awaitable[Sequence[bytes]]:
        """The `content` of failed messages that a person wants handled again, longest waiting first."""
        ask = Redriven(names=self.names, consumer=self.consumer, limit=limit)
        answer: Sequence[bytes] | Awaitable[Sequence[bytes]] = self._ask(tx, ask, what="Inbox.redriven")
        return answer

    @overload
    def forget(self, tx: SyncHandle, *, older_than: timedelta, limit: int = 1_000) -> int: ...
    @overload
    def forget(self, tx: AsyncHandle, *, older_than: timedelta, limit: int = 1_000) -> Awaitable[int]: ...

    def forget(
        self, tx: SyncHandle | AsyncHandle, *, older_than: timedelta, limit: int = 1_000
    ) -> int | Awaitable[int]:
        """Delete records of this consumer that are done and older than the dedup window; how many it were."""
        ask = Forget(names=self.names, consumer=self.consumer, older_than=older_than, limit=limit)
        answer: int | Awaitable[int] = self._ask(tx, ask, what="Inbox.forget")
        return answer

    def _ask(self, tx: SyncHandle | AsyncHandle, ask: InboxAsk, *, what: str) -> Any:
        if writers.is_async(tx):
            return MustAwait(lambda: _answered(tx, ask), what)
        return writers.ask(tx, ask)


def _identity(message: _HasMessageId | _HasId) -> tuple[str, str]:
    source = getattr(message, "source", None)
    message_id = getattr(message, "message_id", None) or getattr(message, "id", None)
    if not source or not message_id:
        raise DecodeError(
            f"This {type(message).__name__} cannot be told from others, because it lacks a source or a "
            "message id: give something with .source and .message_id, or .source and .id."
        )
    return str(source), str(message_id)


async def _answered(tx: object, ask: InboxAsk) -> Any:
    return await writers.ask(tx, ask)
