"""Scheduler of a consumer: one message of a key at a time, in order; different keys at once, up to a bound. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.transaction_retry import Losses
from pillarbox.contracts.receiver import IncomingMessage

__all__ = ["KeyScheduler", "PendingMessage"]


class PendingMessage(msgspec.Struct, kw_only=True, eq=False):
    """A received message that is neither acknowledged nor given back."""

    received: IncomingMessage
    event: CloudEvent | None
    """None if it cannot be decoded."""
    decode_error: str | None = None
    attempts: int = 0
    """How often a handler failed on it."""
    place: str = ""
    """Line of code that raised the last error, for the log."""
    losses: Losses = msgspec.field(default_factory=Losses)
    is_started: bool = False
    """Its start is recorded in the inbox, because it was delivered before."""
    is_alone: bool = False
    """It is handled while no other is: it may be the one that kills the consumer."""
    is_redriven: bool = False
    """It was kept as failed, and a person redrove it. No broker waits for its acknowledgement."""

    @property
    def key(self) -> str | None:
        return None if self.event is None else self.event.key

    @property
    def identity(self) -> tuple[str, str]:
        """Source and message id, as the inbox records them."""
        identity = self.event or self.received.fallback
        return identity.source, identity.message_id


class _Key(msgspec.Struct):
    """One key: what waits behind its first message."""

    behind: deque[PendingMessage] = msgspec.field(default_factory=deque)
    is_suspended: bool = False
    """Its first message waits for its next attempt."""


class KeyScheduler:
    """Pending messages in the order they came.

    A key belongs to its first message until that is finished. While a message waits for its next attempt its key waits
    with it, and another key may run in its place.

    No key takes the place of the others: of a key that waits nothing counts as active, and of any other at most
    `key_limit` messages. The rest is set aside.
    """

    def __init__(self, *, concurrency: int, key_limit: int) -> None:
        self._concurrency = concurrency
        self._key_limit = key_limit
        self._ready: deque[PendingMessage] = deque()
        self._keys: dict[str, _Key] = {}
        self._running = 0
        self._is_exclusive = False
        """The message that runs must be alone."""
        self.count = 0
        """How many messages there are: running, ready or waiting."""
        self.active = 0
        """How many of them are about to run, or run."""
        self.size = 0
        """Bytes of all their bodies."""

    @property
    def set_aside(self) -> int:
        """How many messages wait behind others of their key, or for their next attempt."""
        return self.count - self.active

    @property
    def is_idle(self) -> bool:
        """Nothing runs."""
        return self._running == 0

    def add(self, pending: PendingMessage) -> None:
        """Queue a message that was received."""
        self.count += 1
        self.size += len(pending.received.body)
        if pending.key is None:
            self.active += 1
            self._ready.append(pending)
        elif (key := self._keys.get(pending.key)) is not None:
            before = self._weigh(key)
            key.behind.append(pending)
            self.active += self._weigh(key) - before
        else:
            self._keys[pending.key] = _Key()
            self.active += 1
            self._ready.append(pending)

    def start_next(self) -> PendingMessage | None:
        """Return the next message to handle; None if there is none, or no place for it."""
        if not self._ready or self._is_exclusive or self._running >= self._concurrency:
            return None
        if self._ready[0].is_alone and self._running:
            return None
        pending = self._ready.popleft()
        self._running += 1
        self._is_exclusive = pending.is_alone
        return pending

    def suspend(self, pending: PendingMessage) -> None:
        """Stop running a message that waits for its next attempt. Its key waits for it."""
        self._end_run()
        self._set_suspended(pending, is_suspended=True)

    def resume(self, pending: PendingMessage) -> None:
        """Queue a suspended message again, behind those that are ready: many that fail must not come first always."""
        self._set_suspended(pending, is_suspended=False)
        self._ready.append(pending)

    def finish(self, pending: PendingMessage) -> None:
        """Remove a message that is acknowledged or kept, and let the next of its key run."""
        self._end_run()
        self.count -= 1
        self.size -= len(pending.received.body)
        if pending.key is None:
            self.active -= 1
            return
        key = self._keys[pending.key]
        before = self._weigh(key)
        if key.behind:
            self._ready.append(key.behind.popleft())
            self.active += self._weigh(key) - before
        else:
            del self._keys[pending.key]
            self.active -= before

    def list_waiting(self) -> list[PendingMessage]:
        """Return everything that has not started, those of a key in order."""
        return [*self._ready, *(pending for key in self._keys.values() for pending in key.behind)]

    def _end_run(self) -> None:
        self._running -= 1
        self._is_exclusive = False

    def _set_suspended(self, pending: PendingMessage, *, is_suspended: bool) -> None:
        if pending.key is None:
            self.active += -1 if is_suspended else 1
            return
        key = self._keys[pending.key]
        before = self._weigh(key)
        key.is_suspended = is_suspended
        self.active += self._weigh(key) - before

    def _weigh(self, key: _Key) -> int:
        """Return how many messages of a key count as active."""
        return 0 if key.is_suspended else min(1 + len(key.behind), self._key_limit)
