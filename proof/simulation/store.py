"""The memory store, watched: what it writes goes into the ledger, and every write is checked against the lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from pillarbox.contracts.store import Action, Claim, FailedOutcome, Fence, Lane, RecoveredClaim, Settlement
from pillarbox.message import Message, Waits
from pillarbox.stores.memory import LaneRow, MemoryData, MemoryStore, MemoryTransaction
from proof.simulation.checker import Breach, Evidence, Ledger
from proof.simulation.virtual_time import StoreClock

__all__ = ["WatchedStore", "WatchedTransaction"]


class WatchedTransaction(MemoryTransaction):
    """Tells the ledger what is committed, at the moment it is."""

    ledger: Ledger

    def commit(self) -> None:
        super().commit()
        self.ledger.committed(self._rows)

    def told(self) -> str:
        """What it wrote, for the trace."""
        return ", ".join(f"{row.id}:{row.key} to {row.destination}" for row in self._rows)


class WatchedStore(MemoryStore):
    """One connection to the tables. Whatever the store itself checks, this one looks again."""

    def __init__(self, data: MemoryData, *, clock: StoreClock, ledger: Ledger, evidence: Evidence) -> None:
        super().__init__(data, clock=clock)
        self._ledger = ledger
        self._evidence = evidence
        self._fences: dict[tuple[str, int], LaneRow] = {}
        """Lane to the ownership that the last write in it claimed."""

    def forget_session(self) -> None:
        """The connection was lost: cursors of it mean nothing any more."""
        self._session = object()

    def transaction(self) -> WatchedTransaction:
        transaction = WatchedTransaction(self._data, clock=self._clock)
        transaction.ledger = self._ledger
        return transaction

    # --- fenced writes ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Sequence[int] = ()) -> None:
        self._shown(fence)
        await super().claim(fence, claim, park=park)
        for partition in fence.epochs:
            self._look_at(fence.destination, partition)

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        self._shown(fence)
        await super().settle(fence, settlement)

    def _deliver(self, row: Message) -> None:
        self._look_at(row.destination, row.partition)
        super()._deliver(row)

    def _record_failure(self, row: Message, trouble: FailedOutcome, *, by: UUID) -> None:
        self._look_at(row.destination, row.partition)
        self._evidence.recorded(str(by), row, trouble, self._clock.monotonic())
        super()._record_failure(row, trouble, by=by)
        if trouble.state.is_closed:
            self._ledger.closed(row.id)

    def _shown(self, fence: Fence) -> None:
        for partition, epoch in fence.epochs.items():
            self._fences[fence.destination, partition] = LaneRow(fence.relay_id, epoch)

    def _look_at(self, destination: str, partition: int) -> None:
        claimed, true = self._fences[destination, partition], self._data.lanes.get((destination, partition))
        if claimed != true:
            text = f"lane {partition} of {destination} written under epoch {claimed.epoch}, and it is another's"
            self._ledger.fault(Breach.FENCE, self._clock.monotonic(), text)

    # --- takeovers, people, the janitor ---

    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        alone = self._alone(relay_id)
        taken = await super().take(relay_id, destination, partitions=partitions, lease=lease, claim_number=claim_number)
        lanes = {(lane.destination, lane.partition) for lane in taken[0]}
        for id, lane in alone.items():
            if lane in lanes:
                self._evidence.died_alone(id)
        return taken

    def _alone(self, taker: UUID) -> Mapping[int, tuple[str, int]]:
        """What other relays have in a claim of its own, and its lane."""
        claims = [claim for (holder, _), claim in self._data.claims.items() if holder != taker]
        rows = [self._data.open.get(claim.message_ids[0]) for claim in claims if len(claim.message_ids) == 1]
        return {row.id: (row.destination, row.partition) for row in rows if row is not None}

    def _record_operation(self, message: Message, action: Action, *, by: str, reason: str | None) -> None:
        super()._record_operation(message, action, by=by, reason=reason)
        self._ledger.seen[action] += 1
        row = self._data.open.get(message.id) or message
        if row.destination != message.destination:
            self._ledger.moved(message.id, row.destination)
        elif action is Action.DISCARDED:
            self._ledger.closed(message.id)
        elif not (action is Action.REDRIVEN and message.waits is Waits.HELD):
            # A held one was never closed: it still stands in its place, and its key behind it.
            self._ledger.freed(message.id)

    def _delete_closed(self, rows: Sequence[Message]) -> int:
        self._ledger.purged.update(row.id for row in rows)
        return super()._delete_closed(rows)
