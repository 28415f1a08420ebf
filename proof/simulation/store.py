"""The memory store with checkers: commits are recorded, and every write is checked against the lanes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Action,
    Claim,
    Cursor,
    FailedOutcome,
    Fence,
    IdleLanes,
    Lane,
    QuietLanes,
    ReadResult,
    RecoveredClaim,
    Settlement,
)
from pillarbox.errors import StoreRefused
from pillarbox.message import Message, State, Waits
from pillarbox.stores.memory import LaneRow, MemoryData, MemoryStore, MemoryTransaction
from proof.simulation.checker import DeliveryChecker, FailureChecker, Promise
from proof.simulation.destination import EFFECT_HEADER, REFUSED_BY_STORE, MessageEffect
from proof.simulation.virtual_time import StoreClock

__all__ = ["Refusals", "Server", "WatchedStore", "WatchedTransaction"]


class Server:
    """The server that the tables are on: a failover puts another in its place, which lacks the last commits."""

    def __init__(self, data: MemoryData, deliveries: DeliveryChecker, failures: FailureChecker) -> None:
        self.number = 0
        """Which server it is. A connection through a pooler stays, and only this number tells."""
        self.commits: list[list[Message]] = []
        self.done: dict[tuple[str, int], tuple[int, int]] = {}
        """Lane to the id up to which it is done with, and a transaction that began after that id was read."""
        self._data = data
        self._deliveries = deliveries
        self._failures = failures

    def go_back(self, commits: int, *, keeps_marks: bool) -> list[Message]:
        """Lose the last commits and with them their ids; return the messages that are gone.

        A standby that takes over goes back as a whole. With `keeps_marks` it is a copy of the rows, as logical
        replication makes it: the sequence stands where the rows are, the marks where they were, and the transactions
        are others.
        """
        kept, lost = self.commits[:-commits], self.commits[-commits:]
        gone = [row for rows in lost for row in rows]
        self.commits, self.number = kept, self.number + 1
        self._deliveries.forget(gone)
        self._failures.forget(row.id for row in gone)
        for row in gone:
            self._data.open.drop(row.id)
            self._data.history.pop(row.id, None)
            self._data.due_at.pop(row.id, None)
            self._data.remove_from_claims(row.id)
        transactions = self._data.transactions
        transactions._writers = {row.id: transactions._writers[row.id] for rows in kept for row in rows}
        transactions._last_id = max(transactions._writers, default=0)
        if not keeps_marks:
            transactions._last_tx = transactions._last_ended = max(transactions._writers.values(), default=0)
            self.done = {lane: mark for lane, mark in self.done.items() if mark[1] <= transactions._last_tx}
        return gone


class _Learned:
    """What a connection learned from one server."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.highest = 0
        """The highest id of a message that was read."""
        self.done: tuple[int, int] | None = None
        """An id, and a transaction that began after a message with it was read."""


class WatchedTransaction(MemoryTransaction):
    """Records what is committed, at the moment of the commit."""

    deliveries: DeliveryChecker
    server: Server

    def commit(self) -> None:
        super().commit()
        self.deliveries.record_commit(self._rows)
        if self._rows:
            self.server.commits.append(self._rows)

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
        server: Server,
    ) -> None:
        super().__init__(data, clock=clock)
        self._deliveries = deliveries
        self._failures = failures
        self._refusals = refusals
        self._server = server
        self._learned = _Learned(server.number)
        self._archived: set[tuple[int, State, datetime | None]] | None = None
        """What an archive has taken, while it is deleted."""
        self._fences: dict[tuple[str, int], LaneRow] = {}
        """Lane to the ownership that the last write in it claimed."""

    def forget_session(self) -> None:
        """Invalidate the cursors of this connection."""
        self._session = object()
        self._learned = _Learned(self._server.number)

    def _notice_server(self) -> bool:
        """Return whether another server answers than before, and forget everything about the one before."""
        if self._learned.number == self._server.number:
            return False
        self.forget_session()
        return True

    # --- reading, and how far lanes are done with ---

    async def read(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        cursor: Cursor | None,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> ReadResult:
        self._notice_server()
        if cursor is None or cursor.session is not self._session:
            cursor = Cursor(session=self._session)
        cold = [lane for lane in partitions if lane not in cursor.low and lane not in cursor.whole]
        done = {lane: id for lane in cold if (id := self._find_done(destination, lane))}
        cursor = replace(cursor, low={**cursor.low, **done})
        result = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, max_bytes=max_bytes)
        self._learned.highest = max([self._learned.highest, *(message.id for message in result.messages)])
        return result

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        self._notice_server()
        return await super().peek(idle)

    def _find_done(self, destination: str, partition: int) -> int:
        """Return where the first read of a lane may begin. A mark that cannot be true is removed."""
        done, tx = self._server.done.get((destination, partition), (0, 0))
        if self._is_above(done, tx):
            self._deliveries.seen["mark above the sequence"] += 1
            del self._server.done[destination, partition]
            return 0
        return done

    def _is_above(self, done: int, tx: int) -> bool:
        """Return whether the sequence went back below a mark: it shows, or the first message since then shows it."""
        transactions = self._data.transactions
        since = [
            (transactions.writer(id), id)
            for id in self._data.open.ids()
            if transactions.writer(id) >= tx and _known_row(self._data, id).waits is None
        ]
        return done > transactions.last_id or (bool(since) and min(since)[1] <= done)

    async def mark_lanes(self, relay_id: UUID) -> None:
        if self._notice_server():
            return
        done, transactions = self._learned.done, self._data.transactions
        if done is not None and transactions.snapshot().xmin >= done[1]:
            for (destination, partition), lane in self._data.lanes.items():
                if lane.owner == relay_id:
                    fresh = [row.id for row in self._rows_in_lanes(destination, [partition], (None,))]
                    self._server.done[destination, partition] = (min([done[0], *(id - 1 for id in fresh)]), done[1])
        self._learned.done = (self._learned.highest, transactions._last_tx + 1)

    def transaction(self) -> WatchedTransaction:
        transaction = WatchedTransaction(self._data, clock=self._clock)
        transaction.deliveries, transaction.server = self._deliveries, self._server
        return transaction

    # --- fenced writes ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        self._record_fence(fence)
        self._check_fence(fence)
        self._refusals.check_waits(self._list_parkable(fence, park))
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


def _known_row(data: MemoryData, id: int) -> Message:
    row = data.open.get(id)
    assert row is not None
    return row
