"""What tests are made of: a frozen clock, the memory store, sample messages, and the contract suites.

Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import pytest

from pillarbox.clock import FrozenClock
from pillarbox.stores.memory import MemoryData, MemoryStore, MemoryTransaction

# Before the suites are imported: a third party's failing assertion should show its values.
pytest.register_assert_rewrite("pillarbox.testing.store_contract", "pillarbox.testing.transport_contract")

from pillarbox.testing.harness import HarnessTransaction, StoreHarness  # noqa: E402
from pillarbox.testing.memory_harness import MemoryHarness  # noqa: E402
from pillarbox.testing.samples import key_in, sample, sample_relay  # noqa: E402
from pillarbox.testing.store_contract import StoreContract  # noqa: E402
from pillarbox.testing.transport_contract import TransportContract, TransportHarness  # noqa: E402

__all__ = [
    "FrozenClock",
    "HarnessTransaction",
    "MemoryData",
    "MemoryHarness",
    "MemoryStore",
    "MemoryTransaction",
    "StoreContract",
    "StoreHarness",
    "TransportContract",
    "TransportHarness",
    "key_in",
    "sample",
    "sample_relay",
]
