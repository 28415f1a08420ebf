"""How much may be under way at once: the client itself would put all of it into memory."""

from __future__ import annotations

import asyncio

__all__ = ["Window"]


class Window:
    """Counts messages and bytes that wait for an answer. One that is larger than the window goes alone."""

    def __init__(self, *, messages: int, size: int) -> None:
        self._messages = messages
        self._size = size
        self._taken = 0
        self._taken_size = 0
        self._left = asyncio.Event()

    def has_room(self, size: int) -> bool:
        """Whether a message of so many bytes may go now."""
        return self._taken < self._messages and (self._taken_size + size <= self._size or not self._taken)

    def enter(self, size: int) -> None:
        self._taken += 1
        self._taken_size += size

    def leave(self, size: int) -> None:
        self._taken -= 1
        self._taken_size -= size
        self._left.set()

    async def room(self, size: int) -> None:
        """Wait until a message of so many bytes may go."""
        while not self.has_room(size):
            self._left.clear()
            await self._left.wait()
