"""Transaction ids and snapshots, as PostgreSQL has them: what a read could not see when it passed by."""

from __future__ import annotations

import msgspec

__all__ = ["Snapshot", "Transactions"]


class Snapshot(msgspec.Struct, frozen=True):
    """Which transactions had ended at one moment: all below `xmin`, none from `xmax` on, between them not `xip`."""

    xmin: int
    xmax: int
    xip: frozenset[int]

    def sees(self, tx: int) -> bool:
        """Whether what that transaction wrote was visible."""
        return tx < self.xmin or (tx < self.xmax and tx not in self.xip)


class Transactions:
    """Hands out transaction ids and message ids, and knows which transactions are in progress."""

    def __init__(self) -> None:
        self._last_tx = 0
        self._last_ended = 0
        self._last_id = 0
        self._running: set[int] = set()
        self._of_message: dict[int, int] = {}
        self._locks: dict[object, int] = {}

    def begin(self) -> int:
        """A new transaction id, in progress from now on."""
        self._last_tx += 1
        self._running.add(self._last_tx)
        return self._last_tx

    def end(self, tx: int) -> None:
        """It committed or rolled back: no longer in progress, its locks free."""
        self._running.discard(tx)
        self._last_ended = max(self._last_ended, tx)
        self._locks = {name: holder for name, holder in self._locks.items() if holder != tx}

    def draw_id(self, tx: int) -> int:
        """The next message id, for a row of this transaction. Never comes again, whatever becomes of it."""
        self._last_id += 1
        self._of_message[self._last_id] = tx
        return self._last_id

    def wrote(self, id: int) -> int:
        """The transaction that wrote this message."""
        return self._of_message[id]

    def snapshot(self) -> Snapshot:
        """What can be seen now. `xmax` follows the last one that ended, so younger ones are not in `xip`."""
        xmax = self._last_ended + 1
        return Snapshot(min(self._running | {xmax}), xmax, frozenset(tx for tx in self._running if tx < xmax))

    def lock(self, name: object, tx: int) -> bool:
        """Hold a name until the transaction ends; False when another one holds it."""
        return self._locks.setdefault(name, tx) == tx
