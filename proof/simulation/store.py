"""The memory store with checkers: commits are recorded, and every write is checked against the lanes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from pillarbox.contracts.store import Action, Claim, FailedOutcome, Fence, Lane, RecoveredClaim, Settlement
from pillarbox.errors import StoreRefused
from pillarbox.message import Message, State, Waits
from pillarbox.stores.memory import LaneRow, MemoryData, MemoryStore, MemoryTransaction
from proof.simulation.checker import DeliveryChecker, FailureChecker, Promise
from proof.simulation.destination import EFFECT_HEADER, REFUSED_BY_STORE, MessageEffect
from proof.simulation.virtual_time import StoreClock

__all__ = ["Refusals", "WatchedStore", "WatchedTransaction"]


class WatchedTransaction(MemoryTransaction):
    """Records what is committed, at the moment of the commit."""

    deliveries: DeliveryChecker

    def commit(self) -> None:
        super().commit()
        self.deliveries.record_commit(self._rows)

    def describe(self) -> str:
        """Describe what it wrote, for the trace."""
        return ", ".join(f"{row.id}:{row.key} to {row.destination}" for row in self._rows)


class Refusals:
    """Refuses writes about some messages for good, as a constraint or an index of a database does."""

    def __init__(self, deliveries: DeliveryChecker) -> None:
        self._deliveries = deliveries
        self._effects: tuple[MessageEffect, ...] = REFUSED_BY_STORE

    def end_faults(self) -> None:
        """Let every message be closed: someone removed the constraint that refused all."""
        self._effects = tuple(effect for effect in REFUSED_BY_STORE if effect is not MessageEffect.UNRECORDABLE)

    def check_deliveries(self, rows: Iterable[Message]) -> None:
        """Raise `StoreRefused` if one of these cannot be recorded as delivered."""
        self._check(rows, MessageEffect.DELIVERY_UNRECORDABLE, MessageEffect.UNRECORDABLE)

    def check_waits(self, rows: Iterable[Message]) -> None:
        """Raise `StoreRefused` if one of these cannot wait."""
        self._check(rows, MessageEffect.UNPARKABLE, MessageEffect.UNRECORDABLE)

    def check_closes(self, rows: Iterable[Message]) -> None:
        """Raise `StoreRefused` if one of these cannot be closed as failed."""
        self._check(rows, MessageEffect.UNRECORDABLE)

    def _check(self, rows: Iterable[Message], *effects: MessageEffect) -> None:
        for row in rows:
            effect = row.headers.get(EFFECT_HEADER)
            if effect in effects and effect in self._effects:
                self._deliveries.seen["refused by store"] += 1
                raise StoreRefused(f"{row.id} cannot be written")


class WatchedStore(MemoryStore):
    """One connection to the tables. It checks every fence itself, whatever the store checks."""

    def __init__(
        self,
        data: MemoryData,
        *,
        clock: StoreClock,
        deliveries: DeliveryChecker,
        failures: FailureChecker,
        refusals: Refusals,
    ) -> None:
        super().__init__(data, clock=clock)
        self._deliveries = deliveries
        self._failures = failures
        self._refusals = refusals
        self._archived: set[tuple[int, State, datetime | None]] | None = None
        """What an archive has taken, while it is deleted."""
        self._fences: dict[tuple[str, int], LaneRow] = {}
        """Lane to the ownership that the last write in it claimed."""

    def forget_session(self) -> None:
        """Invalidate the cursors of this connection."""
        self._session = object()

    def transaction(self) -> WatchedTransaction:
        transaction = WatchedTransaction(self._data, clock=self._clock)
        transaction.deliveries = self._deliveries
        return transaction

    # --- fenced writes ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Sequence[int] = ()) -> Mapping[int, int]:
        self._record_fence(fence)
        self._check_fence(fence)
        self._refusals.check_waits(
            row for row in self._open_in_fence(fence, park) if row.waits in (None, Waits.DEFERRED)
        )
        revisions = await super().claim(fence, claim, park=park)
        for partition in fence.epochs:
            self._check_lane(fence.destination, partition)
        return revisions

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        self._record_fence(fence)
        self._check_fence(fence)
        self._refusals.check_deliveries(self._open_in_fence(fence, settlement.delivered))
        for failure in settlement.failures:
            rows = self._open_in_fence(fence, [failure.message_id])
            (self._refusals.check_waits if failure.state is State.PENDING else self._refusals.check_closes)(rows)
        return await super().settle(fence, settlement)

    def _deliver(self, row: Message) -> None:
        self._check_lane(row.destination, row.partition)
        super()._deliver(row)

    def _record_failure(self, row: Message, failure: FailedOutcome, *, by: UUID) -> None:
        self._check_lane(row.destination, row.partition)
        if not (failure.state is State.FAILED and row.headers.get(EFFECT_HEADER) in REFUSED_BY_STORE):
            self._failures.check(str(by), row, failure, self._clock.monotonic())
        else:
            self._failures.note_attempts(row.id, failure.attempts)
        super()._record_failure(row, failure, by=by)
        if failure.forward_to is not None:
            self._deliveries.seen[Action.REDRIVEN] += 1
            self._deliveries.record_move(row.id, failure.forward_to)
            self._failures.begin_anew(row.id)
        elif failure.state.is_closed:
            self._deliveries.record_close(row.id)

    def _record_fence(self, fence: Fence) -> None:
        for partition, epoch in fence.epochs.items():
            self._fences[fence.destination, partition] = LaneRow(fence.relay_id, epoch)

    def _check_lane(self, destination: str, partition: int) -> None:
        claimed, true = self._fences[destination, partition], self._data.lanes.get((destination, partition))
        if claimed != true:
            text = f"lane {partition} of {destination} written under epoch {claimed.epoch}, and it is another's"
            self._deliveries.report(Promise.FENCE, self._clock.monotonic(), text)

    # --- takeovers, operators, the janitor ---

    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        alone = self._list_lone_claims(relay_id)
        taken = await super().take(relay_id, destination, partitions=partitions, lease=lease, claim_number=claim_number)
        lanes = {(lane.destination, lane.partition) for lane in taken[0]}
        for id, (holder, lane) in alone.items():
            if lane in lanes:
                self._failures.record_lone_death(str(holder), destination, id)
        return taken

    def _list_lone_claims(self, taker: UUID) -> Mapping[int, tuple[UUID, tuple[str, int]]]:
        """Return the messages that other relays have in a claim of their own, with the relay and the lane."""
        alone = [
            (holder, self._data.open.get(claim.message_ids[0]))
            for (holder, _), claim in self._data.claims.items()
            if holder != taker and len(claim.message_ids) == 1
        ]
        return {row.id: (holder, (row.destination, row.partition)) for holder, row in alone if row is not None}

    def _record_operation(self, message: Message, action: Action, *, by: str, reason: str | None) -> None:
        super()._record_operation(message, action, by=by, reason=reason)
        self._deliveries.seen[action] += 1
        if action in (Action.REDRIVEN, Action.REPLAYED):
            self._failures.begin_anew(message.id)
        row = self._data.open.get(message.id) or message
        if row.destination != message.destination:
            self._deliveries.record_move(message.id, row.destination)
        elif action is Action.DISCARDED:
            self._deliveries.record_close(message.id)
        elif not (action is Action.REDRIVEN and message.waits is Waits.HELD):
            # A held message was never closed: it keeps its place in the order, and its key waits behind it.
            self._deliveries.exempt(message.id)

    async def purge_archived(self, messages: Sequence[Message]) -> int:
        self._archived = {(one.id, one.state, one.status_at) for one in messages}
        try:
            return await super().purge_archived(messages)
        finally:
            self._archived = None

    def _delete_closed(self, rows: Sequence[Message]) -> int:
        for row in rows if self._archived is not None else ():
            if (row.id, row.state, row.status_at) not in (self._archived or ()):
                text = f"{row.id} was deleted as {row.state.value}, and the archive has it as it was before"
                self._deliveries.report(Promise.LOST, self._clock.monotonic(), text)
        self._deliveries.purged.update(row.id for row in rows)
        return super()._delete_closed(rows)
