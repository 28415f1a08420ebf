"""Which message is handled next: one of a key at a time, in order; different keys at once, up to a bound. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from pillarbox.cloudevents import CloudEvent
from pillarbox.protocols import Received

__all__ = ["Line", "Piece"]


class Piece(msgspec.Struct, kw_only=True, eq=False):
    """A message in hand, until it is acknowledged or given back."""

    received: Received
    event: CloudEvent | None
    """None: it cannot be read."""
    trouble: str | None = None
    """Why not."""
    attempts: int = 0
    """How often a handler failed on it."""
    started: bool = False
    """Its start is recorded, because it came before."""
    alone: bool = False
    """It is handled while nothing else is: it may be what kills."""
    redriven: bool = False
    """It was kept as failed, and a person wants it handled again. No broker waits for it."""

    @property
    def key(self) -> str | None:
        return None if self.event is None else self.event.key

    @property
    def identity(self) -> tuple[str, str]:
        """As the inbox knows it."""
        known = self.event or self.received.plain
        return known.source, known.message_id


class Line:
    """Messages in hand, in the order they came.

    A key belongs to its first message until that is `done`. While one waits for its next attempt its key waits with it,
    and its place is free for another.
    """

    def __init__(self, *, concurrency: int) -> None:
        self._concurrency = concurrency
        self._ready: deque[Piece] = deque()
        self._behind: dict[str, deque[Piece]] = {}
        """Key in hand to what waits behind its first message."""
        self._running = 0
        self._lone = False
        self.in_hand = 0
        """How many messages there are, running, ready or waiting."""

    @property
    def is_idle(self) -> bool:
        """Nothing runs."""
        return self._running == 0

    def put(self, piece: Piece) -> None:
        """A message has come."""
        self.in_hand += 1
        key = piece.key
        if key is None:
            self._ready.append(piece)
        elif key in self._behind:
            self._behind[key].append(piece)
        else:
            self._behind[key] = deque()
            self._ready.append(piece)

    def take(self) -> Piece | None:
        """The next to handle; None when there is none, or no place for it."""
        if not self._ready or self._lone or self._running >= self._concurrency:
            return None
        if self._ready[0].alone and self._running:
            return None
        piece = self._ready.popleft()
        self._running += 1
        self._lone = piece.alone
        return piece

    def put_off(self) -> None:
        """One that ran does so no longer, and is `again` later. Its key waits for it."""
        self._running -= 1
        self._lone = False

    def again(self, piece: Piece) -> None:
        """Its time has come. It goes before the others."""
        self._ready.appendleft(piece)

    def done(self, piece: Piece) -> None:
        """It is acknowledged or kept: the next of its key may go."""
        self._running -= 1
        self._lone = False
        self._leave(piece)

    def _leave(self, piece: Piece) -> None:
        self.in_hand -= 1
        key = piece.key
        if key is None:
            return
        behind = self._behind[key]
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[key]

    def waiting(self) -> list[Piece]:
        """Everything that has its turn still to come, those of a key in order."""
        return [*self._ready, *(piece for behind in self._behind.values() for piece in behind)]

    def left(self) -> list[Piece]:
        """`waiting`, taken out: to be given back."""
        pieces = self.waiting()
        self.in_hand -= len(pieces)
        self._ready.clear()
        for behind in self._behind.values():
            behind.clear()
        return pieces
