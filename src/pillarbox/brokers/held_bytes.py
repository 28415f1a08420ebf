"""The bytes that a receiver holds: received, and neither acknowledged nor given back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

__all__ = ["DEFAULT_LIMIT", "GROWTH", "BatchSize", "HeldBytes", "count_bytes"]

DEFAULT_LIMIT: Final = 128 * 1024 * 1024
GROWTH: Final = 8
"""Factor by which a number of messages grows at most, while their sizes are being learned."""


def count_bytes(headers: Mapping[str, object], body: bytes) -> int:
    """Return about how many bytes a message takes."""
    texts = sum(len(name) + len(value) for name, value in headers.items() if isinstance(value, (str, bytes)))
    return len(body) + texts


class HeldBytes:
    """Counts bytes by message. A receiver that is full reads nothing more from its broker.

    The count may exceed the limit by one message: otherwise a message larger than the limit would stop the queue.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.size = 0
        self.highest = 0
        """The highest count so far."""
        self.on_room: Callable[[], None] | None = None
        """Called when there is room again."""
        self._sizes: dict[Hashable, int] = {}

    @property
    def room(self) -> int:
        """Bytes below the limit; 0 if it is reached."""
        return max(0, self.limit - self.size)

    @property
    def count(self) -> int:
        """Messages that are held."""
        return len(self._sizes)

    @property
    def mean(self) -> float:
        """Bytes of a message on average."""
        return self.size / len(self._sizes) if self._sizes else 0.0

    @property
    def is_full(self) -> bool:
        return self.size >= self.limit

    def add(self, message: Hashable, size: int) -> None:
        """Count a message that was received."""
        self.size += size - self._sizes.get(message, 0)
        self._sizes[message] = size
        self.highest = max(self.highest, self.size)

    def remove(self, message: Hashable) -> None:
        """Stop counting a message. Does nothing for one that is not counted."""
        was_full = self.is_full
        self.size -= self._sizes.pop(message, 0)
        if was_full and not self.is_full and self.on_room is not None:
            self.on_room()

    def clear(self) -> None:
        """Stop counting every message: the receiver is closed."""
        self._sizes.clear()
        self.size = 0


class BatchSize:
    """Number of messages to read at once, from the sizes seen, where only a number can be given. It begins with one."""

    def __init__(self) -> None:
        self._count = 1
        self._largest = 0

    def choose(self, limit: int, room: int) -> int:
        """Return how many messages to read, at least one and at most `limit`, so that they should fit into `room`."""
        self._count = max(1, min(limit, self._count, room // max(1, self._largest)))
        return self._count

    def learn(self, sizes: Sequence[int]) -> None:
        """Learn from the messages that came: larger ones count at once, smaller ones by and by."""
        if sizes:
            self._largest = max(self._largest // 2, *sizes)
            self._count *= GROWTH
