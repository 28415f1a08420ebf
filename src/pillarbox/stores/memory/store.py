"""The memory store: the parts, assembled."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pillarbox.clock import Clock, SystemClock
from pillarbox.protocols import StoreFeatures
from pillarbox.stores.keeping import Keep
from pillarbox.stores.memory.asking import Asking
from pillarbox.stores.memory.data import MemoryData
from pillarbox.stores.memory.membership import Membership
from pillarbox.stores.memory.operating import Operating
from pillarbox.stores.memory.reading import ReadingLanes
from pillarbox.stores.memory.settling import Settling
from pillarbox.stores.memory.transaction import MemoryTransaction
from pillarbox.stores.memory.waking import Waking

__all__ = ["MemoryStore"]


class MemoryStore(ReadingLanes, Settling, Membership, Operating, Asking, Waking):
    """`Store` in plain data structures: no I/O, no waiting, nothing random, gone with the process.

    Stores given the same `data` are connections to one database; each method is one transaction because none of
    them ever suspends. Messages are written through `transaction()`.
    """

    features: Final = StoreFeatures(name="memory", late_rows=True, notifies=False, shared=False, skips_keys=True)

    def __init__(self, data: MemoryData | None = None, *, clock: Clock | None = None, keep: Keep = "full") -> None:
        self._data = MemoryData() if data is None else data
        self._clock = SystemClock() if clock is None else clock
        self._keep = keep
        self._session = object()

    @property
    def data(self) -> MemoryData:
        """The tables, for another store to share."""
        return self._data

    async def open(self) -> None:
        self._session = object()

    async def close(self) -> None:
        self._session = object()

    async def now(self) -> datetime:
        return self._clock.now()

    def transaction(self) -> MemoryTransaction:
        """A new transaction to write messages in: `with store.transaction() as tx`, or commit it by hand."""
        return MemoryTransaction(self._data, clock=self._clock)
