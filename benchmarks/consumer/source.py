"""What a broker must bring to be consumed from: messages that wait, our receiver, and its bare client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from pillarbox.contracts.receiver import Receiver

__all__ = ["Handle", "Source"]

Handle = Callable[[bytes], Awaitable[None]]
"""What is done with a message's body, commit and all."""


class Source(Protocol):
    """One broker. Everything it makes there is its own, and gone when it is closed."""

    name: str
    """As in `make bench ONLY=consumer.…`, without the beginning."""

    async def open(self) -> None:
        """Connect, and make the place where messages wait."""

    async def close(self) -> None:
        """Remove that place, and disconnect."""

    async def fill(self, messages: int) -> None:
        """Have so many wait, and nothing else: those that CloudEvents producers send, the keys taking turns."""

    def receiver(self) -> Receiver:
        """Ours, with default settings."""

    async def bare(self, handle: Handle, *, messages: int, concurrency: int) -> None:
        """Connect, have the broker's own client handle so many messages, so many at once, acknowledging each after it
        was handled; disconnect. With the prefetch that our receiver has."""
