"""The harness of the memory transport: the shortest example of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pillarbox.cloudevents import CloudEvent, of
from pillarbox.message import Message
from pillarbox.testing.transport_contract.harness import TransportHarness
from pillarbox.transports.memory import MemoryTransport

__all__ = ["MemoryTransportHarness"]


class MemoryTransportHarness(TransportHarness):
    """A new memory transport, to be opened. `make` may build a variant of it."""

    def __init__(self, make: Callable[[], MemoryTransport] = MemoryTransport) -> None:
        self._memory = make()
        self.transport = self._memory

    async def received(self) -> Sequence[CloudEvent]:
        return [of(message) for message in self._memory.received]

    async def refuse_next(self) -> None:
        self._memory.refuse_next()

    async def reject_next(self, message: Message) -> Message:
        self._memory.reject_next()
        return message

    async def cut_next(self) -> None:
        self._memory.cut_next()

    async def go_down(self) -> None:
        self._memory.go_down()

    async def come_back(self) -> None:
        self._memory.come_back()

    async def hang(self) -> asyncio.Event:
        self._memory.hang()
        return self._memory.arrived
