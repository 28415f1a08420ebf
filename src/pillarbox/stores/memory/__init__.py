"""The memory store: the reference that other stores are compared with, and what simulations and tests run on."""

from __future__ import annotations

from pillarbox.stores.memory.data import MemoryData
from pillarbox.stores.memory.selection import matches
from pillarbox.stores.memory.store import MemoryStore
from pillarbox.stores.memory.transaction import MemoryTransaction

__all__ = ["MemoryData", "MemoryStore", "MemoryTransaction", "matches"]
