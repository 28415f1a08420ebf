"""Messages from a list: for tests, and the shortest example of a receiver."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from pillarbox.cloudevents import HTTP, CloudEvent, to_binary
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Plain, Received, ReceiverFeatures

__all__ = ["MemoryQueue", "MemoryReceiver"]


class MemoryQueue:
    """What a broker would keep. Several receivers over one of these share the work."""

    def __init__(self) -> None:
        self.waiting: deque[Received] = deque()
        self.out: dict[Received, MemoryReceiver] = {}
        """Delivered and not acknowledged, and who has it."""
        self.acknowledged: list[Received] = []
        self.is_up = True
        self.came = asyncio.Event()
        self._count = 0

    def put(self, message: Message | CloudEvent) -> None:
        """A producer published this."""
        headers, body = to_binary(message, binding=HTTP)
        self.put_raw(headers, body)

    def put_raw(self, headers: dict[str, str], body: bytes) -> None:
        """A producer that is not us published this."""
        self._count += 1
        plain = Plain(message_id=str(self._count), source="memory:", type="memory", topic="memory")
        self.waiting.append(Received(headers=headers, body=body, binding=HTTP, plain=plain))
        self.came.set()

    def take(self, receiver: MemoryReceiver, limit: int) -> list[Received]:
        """Hand out what waits."""
        taken = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        self.out.update(dict.fromkeys(taken, receiver))
        return taken

    def take_back(self, received: Received) -> None:
        """It was not acknowledged: it comes again, before what has not come yet."""
        del self.out[received]
        again = Received(
            headers=received.headers, body=received.body, binding=received.binding, plain=received.plain,
            redelivered=True,
        )  # fmt: skip
        self.waiting.appendleft(again)
        self.came.set()

    def drop(self, receiver: MemoryReceiver) -> None:
        """The receiver is gone: all it had comes again."""
        for received in reversed([one for one, holder in self.out.items() if holder is receiver]):
            self.take_back(received)


class MemoryReceiver:
    """Reads a `MemoryQueue`."""

    def __init__(self, queue: MemoryQueue) -> None:
        self.features = ReceiverFeatures(name="memory")
        self.queue = queue
        self._is_open = False

    async def open(self) -> None:
        self._is_open = True
        await self.ping()

    async def close(self) -> None:
        self._is_open = False
        self.queue.drop(self)

    async def ping(self) -> None:
        if not self._is_open:
            raise TransportUnavailable("The memory receiver is closed; open it first.")
        if not self.queue.is_up:
            raise TransportUnavailable("The memory queue is down.")

    async def receive(self, *, limit: int) -> Sequence[Received]:
        while True:
            await self.ping()
            taken = self.queue.take(self, limit)
            if taken:
                return taken
            self.queue.came.clear()
            await self.queue.came.wait()

    async def acknowledge(self, received: Received) -> None:
        if self._has(received):
            del self.queue.out[received]
            self.queue.acknowledged.append(received)

    async def give_back(self, received: Received) -> None:
        if self._has(received):
            self.queue.take_back(received)

    def _has(self, received: Received) -> bool:
        return self.queue.is_up and self.queue.out.get(received) is self
