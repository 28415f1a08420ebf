"""The memory receiver keeps the contract, and is the shortest harness of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.contracts.receiver import Receiver
from pillarbox.message import Message
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness


class MemoryHarness(ReceiverHarness):
    def __init__(self) -> None:
        self._queue = MemoryQueue()
        self.receiver: MemoryReceiver = MemoryReceiver(self._queue)

    async def publish(self, message: Message) -> None:
        self._queue.put(message)

    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        self._queue.put_raw(dict(headers), body)

    async def open_another(self) -> Receiver:
        other = MemoryReceiver(self._queue)
        await other.open()
        return other

    async def die(self) -> None:
        self._queue.drop(self.receiver)

    async def go_down(self) -> None:
        self._queue.is_up = False
        self._queue.changed.set()
        self._queue.drop(self.receiver)

    async def come_back(self) -> None:
        self._queue.is_up = True


class TestMemoryReceiver(ReceiverContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[MemoryHarness]:
        harness = MemoryHarness()
        await harness.receiver.open()
        yield harness
        await harness.receiver.close()
