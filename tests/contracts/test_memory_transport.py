"""The memory transport keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.testing.transport_contract import MemoryTransportHarness, TransportContract


class TestMemoryTransport(TransportContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[MemoryTransportHarness]:
        harness = MemoryTransportHarness()
        await harness.transport.open()
        yield harness
        await harness.transport.close()


class TestMemoryTransportOneByOne(TransportContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[MemoryTransportHarness]:
        harness = MemoryTransportHarness(lambda: MemoryTransport(batch=1))
        await harness.transport.open()
        yield harness
        await harness.transport.close()
