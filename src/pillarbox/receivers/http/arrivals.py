"""What came and waits for the consumer, who may live in another thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from pillarbox.protocols import Received

__all__ = ["Arrivals", "settle"]


class Arrivals:
    """From the web service's loop to the consumer's, in order. Made in the consumer's loop.

    The token of each message is the future that its request waits for: true when it is handled.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._guard = threading.Lock()
        self._waiting: dict[Received, None] = {}
        self._out: set[Received] = set()
        """In the consumer's hands, as long as a request waits for it."""
        self._is_closed = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    # --- from any thread ---

    def put(self, received: Received) -> bool:
        """False: there is no room, or nobody who will take it."""
        with self._guard:
            if self._is_closed or len(self._waiting) >= self._most:
                return False
            self._waiting[received] = None
        return self.wake()

    def drop(self, received: Received) -> None:
        """Its request was answered, or its sender hung up. If it still waits, it is not handed out any more."""
        with self._guard:
            self._waiting.pop(received, None)
            self._out.discard(received)

    def wake(self) -> bool:
        """Whoever waits looks again. False: the consumer's loop is gone."""
        try:
            self._loop.call_soon_threadsafe(self._came.set)
        except RuntimeError:
            return False
        return True

    # --- from the consumer's ---

    async def wait(self) -> None:
        """Until something came, or `wake`."""
        self._came.clear()
        if not self._waiting:
            await self._came.wait()

    def take(self, limit: int) -> list[Received]:
        """What waits, at most so many."""
        with self._guard:
            taken = list(self._waiting)[:limit]
            for received in taken:
                del self._waiting[received]
            self._out.update(taken)
        return taken

    def close(self) -> None:
        """Whoever waits for an answer is told that it was not handled."""
        with self._guard:
            self._is_closed = True
            left = [*self._out, *self._waiting]
            self._waiting.clear()
            self._out.clear()
        for received in left:
            settle(received, handled=False)
        self._came.set()


def settle(received: Received, *, handled: bool) -> None:
    """Answer the request, in its own loop. When nobody waits for it any more, nothing happens."""
    future: asyncio.Future[bool] = received.token

    def set_result() -> None:
        if not future.done():
            future.set_result(handled)

    with contextlib.suppress(RuntimeError):  # its loop is gone, and whoever waited with it
        future.get_loop().call_soon_threadsafe(set_result)
