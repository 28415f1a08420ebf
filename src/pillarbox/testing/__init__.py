"""Everything for tests: a frozen clock, the memory store, sample messages, a fault proxy, and the contract suites.

Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.stores.memory import MemoryData, MemoryStore, MemoryTransaction

# Before the suites are imported: a third party's failing assertion should show its values.
pytest.register_assert_rewrite(
    "pillarbox.testing.store_contract", "pillarbox.testing.transport_contract", "pillarbox.testing.receiver_contract"
)

from pillarbox.testing.fault_proxy import FaultProxy  # noqa: E402
from pillarbox.testing.harness import HarnessTakeover, HarnessTransaction, StoreHarness  # noqa: E402
from pillarbox.testing.kit import OutboxKit  # noqa: E402
from pillarbox.testing.memory_harness import MemoryHarness  # noqa: E402
from pillarbox.testing.receiver_contract import ReceiverContract, ReceiverHarness  # noqa: E402
from pillarbox.testing.samples import find_key, sample, sample_relay  # noqa: E402
from pillarbox.testing.store_contract import StoreContract  # noqa: E402
from pillarbox.testing.transport_contract import TransportContract, TransportHarness  # noqa: E402

__all__ = [
    "FaultProxy",
    "FrozenClock",
    "HarnessTakeover",
    "HarnessTransaction",
    "MemoryData",
    "MemoryHarness",
    "MemoryStore",
    "MemoryTransaction",
    "OutboxKit",
    "ReceiverContract",
    "ReceiverHarness",
    "StoreContract",
    "StoreHarness",
    "TransportContract",
    "TransportHarness",
    "find_key",
    "sample",
    "sample_relay",
]
