"""Scheduler of a consumer: one message of a key at a time, in order; different keys at once, up to a bound. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from pillarbox.cloudevents import CloudEvent
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


class KeyScheduler:
    """Pending messages in the order they came.

    A key belongs to its first message until that is finished. While a message waits for its next attempt its key waits
    with it, and another key may run in its place.
    """

    def __init__(self, *, concurrency: int) -> None:
        self._concurrency = concurrency
        self._ready: deque[PendingMessage] = deque()
        self._behind: dict[str, deque[PendingMessage]] = {}
        """Key to what waits behind its first message."""
        self._running = 0
        self._is_exclusive = False
        """The message that runs must be alone."""
        self.count = 0
        """How many messages there are: running, ready or waiting."""

    @property
    def is_idle(self) -> bool:
        """Nothing runs."""
        return self._running == 0

    def add(self, pending: PendingMessage) -> None:
        """Queue a message that was received."""
        self.count += 1
        key = pending.key
        if key is None:
            self._ready.append(pending)
        elif key in self._behind:
            self._behind[key].append(pending)
        else:
            self._behind[key] = deque()
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

    def suspend(self) -> None:
        """Stop running a message that waits for its next attempt. Its key waits for it."""
        self._running -= 1
        self._is_exclusive = False

    def resume(self, pending: PendingMessage) -> None:
        """Queue a suspended message again, before the others."""
        self._ready.appendleft(pending)

    def finish(self, pending: PendingMessage) -> None:
        """Remove a message that is acknowledged or kept, and let the next of its key run."""
        self._running -= 1
        self._is_exclusive = False
        self.count -= 1
        key = pending.key
        if key is None:
            return
        behind = self._behind[key]
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[key]

    def list_waiting(self) -> list[PendingMessage]:
        """Return everything that has not started, those of a key in order."""
        return [*self._ready, *(pending for behind in self._behind.values() for pending in behind)]

    def remove_waiting(self) -> list[PendingMessage]:
        """Remove and return everything that has not started."""
        waiting = self.list_waiting()
        self.count -= len(waiting)
        self._ready.clear()
        for behind in self._behind.values():
            behind.clear()
        return waiting
