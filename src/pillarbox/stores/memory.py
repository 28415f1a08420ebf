"""Memory store: the reference that other stores are compared with, and what simulations and tests run on.

`MemoryStore` is a connection, `MemoryTransaction` writes messages, `MemoryData` holds the tables. Transactions have
ids and snapshots as in PostgreSQL, so that rows which become visible late can be tested without a server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, zip_longest
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Action,
    BlockedKey,
    BlockedKeyCount,
    BulkResult,
    Claim,
    Count,
    Cursor,
    DestinationRequest,
    DueMark,
    DueMessage,
    FailedOutcome,
    FailureGroup,
    Fence,
    IdleLanes,
    InboxActivity,
    InboxCount,
    InboxFailure,
    InboxRecord,
    InboxSelection,
    JournalEntry,
    KeyMessages,
    Lane,
    LaneBacklog,
    OpenClaim,
    Order,
    Pause,
    Phase,
    PhaseCount,
    QuietLanes,
    ReadResult,
    RecoveredClaim,
    Registry,
    RelayInfo,
    Rollup,
    Selection,
    Settlement,
    StoreFacts,
    StoreFeatures,
    TableStatus,
    Tries,
    Wakeups,
)
from pillarbox.contracts.writer import Accept, Fail, Forget, InboxCommand, Insert, Start, TakeRedriven
from pillarbox.durations import LONGEST
from pillarbox.errors import Fenced, NotInTransaction, StoreUnavailable
from pillarbox.message import Message, State, Waits
from pillarbox.stores.rules import (
    MOVED_IDS,
    Keep,
    add_strikes,
    attach_messages,
    build_failure_group,
    build_inbox_counts,
    build_inbox_entry,
    choose_ids,
    cut_by_bytes,
    describe_closing,
    eligible_states,
    explain_empty_batch,
    find_fingerprint,
    group_by_strikes,
    list_phases,
    list_purged_statuses,
    matches,
    select_missing,
    sort_failure_groups,
)
from pillarbox.stores.statistics import (
    RecordedTries,
    add_rollups,
    add_tries,
    attach_tries,
    build_tries,
    classify_failure,
    count_deliveries,
)
from pillarbox.stores.waiting import split_by_key

__all__ = ["InboxRow", "LaneRow", "MemoryData", "MemoryStore", "MemoryTransaction", "Snapshot", "Transactions"]

T = TypeVar("T")

InboxKey = tuple[str, str, str]
"""Consumer, source, message id."""

_BY_ID: Final = attrgetter("id")
_BY_TIME: Final = attrgetter("available_at", "id")
_TIMED: Final = (Waits.DEFERRED, Waits.RETRY)
_BLOCKING: Final = (Waits.RETRY, Waits.PARKED, Waits.HELD)


class MemoryStore:
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

    def __str__(self) -> str:
        return "memory://"

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
        """Begin a transaction to write messages in: `with store.transaction() as tx`, or commit it by hand."""
        return MemoryTransaction(self._data, clock=self._clock)

    # --- reading ---

    async def read(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        cursor: Cursor | None,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> ReadResult:
        if cursor is None or cursor.session is not self._session:
            cursor = Cursor(session=self._session)
        lanes = [self._rows_in_lanes(destination, [partition], (None,)) for partition in partitions]
        above = [[row for row in lane if row.id > cursor.low.get(row.partition, 0)] for lane in lanes]
        fresh = [[row for row in lane if row.key not in cursor.skip] for lane in above]
        late = [row for lane in lanes for row in lane if self._is_late(row, cursor)]
        if len(late) > 1 and sum(len(row.payload) for row in late) >= max_bytes:
            return ReadResult((), Cursor({}, self._data.transactions.snapshot(), self._session))
        messages = sorted([*cut_by_bytes(_take_turns(fresh, limit), max_bytes), *late], key=_BY_ID)
        advanced = self._advance(cursor, partitions, messages)
        complete = _complete_lanes(partitions, fresh, advanced)
        # Keys that were skipped are passed over for good: the mark of a lane read to its end stands above them.
        ends = {lane: rows[-1].id for lane, rows in zip(partitions, above, strict=True) if rows and lane in complete}
        return ReadResult(messages, replace(advanced, low={**advanced.low, **ends}), complete)

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        return {
            destination: QuietLanes(
                self._advance(lanes.cursor, lanes.partitions, ()),
                has_blocked=bool(self._rows_in_lanes(destination, lanes.partitions, _BLOCKING)),
            )
            for destination, lanes in idle.items()
            if lanes.cursor.session is self._session and not self._has_something(destination, lanes)
        }

    def _has_something(self, destination: str, lanes: IdleLanes) -> bool:
        cursor = lanes.cursor
        fresh = self._rows_in_lanes(destination, lanes.partitions, (None,))
        timed = self._rows_in_lanes(destination, lanes.partitions, _TIMED)
        return any(row.id > cursor.low.get(row.partition, 0) or self._is_late(row, cursor) for row in fresh) or any(
            map(self._is_due, timed)
        )

    def _is_late(self, row: Message, cursor: Cursor) -> bool:
        """Return whether the row is below the mark, and was invisible when the mark passed it."""
        passed = row.id <= cursor.low.get(row.partition, 0)
        snapshot = cursor.snapshot
        return passed and isinstance(snapshot, Snapshot) and not snapshot.sees(self._data.transactions.writer(row.id))

    def _advance(self, cursor: Cursor, partitions: Sequence[int], messages: Sequence[Message]) -> Cursor:
        """Return marks for the lanes just read and no others: the snapshot is true of these alone."""
        low = {partition: cursor.low[partition] for partition in partitions if partition in cursor.low}
        for message in messages:
            low[message.partition] = max(message.id, low.get(message.partition, 0))
        return Cursor(low, self._data.transactions.snapshot(), self._session)

    async def find_due(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        limit: int,
        after: DueMark | None = None,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[DueMessage]:
        timed = self._rows_in_lanes(destination, partitions, _TIMED)
        due = sorted(filter(self._is_due, timed), key=_BY_TIME)
        beyond = [row for row in due if after is None or _BY_TIME(row) > after]
        return [
            DueMessage(row.id, row.partition, row.key, row.waits, row.available_at, len(row.payload))
            for row in cut_by_bytes(beyond[:limit], max_bytes)
            if row.waits is not None
        ]

    async def read_due(self, destination: str, ids: Sequence[int]) -> Sequence[Message]:
        rows = [row for message_id in sorted(ids) if (row := self._data.open.get(message_id)) is not None]
        return [row for row in rows if row.destination == destination and self._is_due(row)]

    def _is_due(self, row: Message) -> bool:
        return row.waits in _TIMED and _known(row.available_at) <= self._clock.now()

    async def read_keys(
        self,
        destination: str,
        keys: Sequence[tuple[int, str]],
        *,
        key_limit: int,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[KeyMessages]:
        found = [
            ((row.partition, key), row)
            for partition, key in keys
            for row in self._rows_of_key(destination, partition, key)[:key_limit]
        ][:limit]
        fitting = cut_by_bytes([row for _, row in found], max_bytes)
        return split_by_key(keys, found[: len(fitting)], key_limit=key_limit, limit=limit, max_bytes=max_bytes)

    def _rows_of_key(self, destination: str, partition: int, key: str) -> list[Message]:
        return [row for row in self._rows_in_lanes(destination, [partition], _BLOCKING) if row.key == key]

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        fronts: dict[tuple[int, str], Waits] = {}
        for row in self._rows_in_lanes(destination, partitions, _BLOCKING):
            if row.key is not None and row.waits is not None:
                fronts.setdefault((row.partition, row.key), row.waits)
        return [BlockedKey(partition, key, front) for (partition, key), front in fronts.items()]

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        timed = self._rows_in_lanes(destination, partitions, _TIMED)
        return min((_known(row.available_at) for row in timed), default=None)

    def _rows_in_lanes(
        self, destination: str, partitions: Sequence[int], waits: Sequence[Waits | None]
    ) -> Sequence[Message]:
        rows = self._data.open
        return [row for lane in partitions for row in rows.in_lane(destination, lane) if row.waits in waits]

    async def tried_for(self, destination: str, *, message_ids: Sequence[UUID]) -> Mapping[UUID, timedelta]:
        now = self._clock.now()
        return {
            message_id: now - one.unspent_at
            for (message_id, served), one in self._read_tries(message_ids).items()
            if served == destination and one.unspent_at is not None
        }

    def _read_tries(self, message_ids: Collection[UUID]) -> Mapping[tuple[UUID, str], RecordedTries]:
        return add_tries(entry for entry in self._data.journal if entry.message_id in message_ids)

    # --- claims ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        self._check_fence(fence)
        if claim.message_ids:
            self._data.claims.setdefault((fence.relay_id, claim.number), claim)
            self._data.claimed_at[fence.relay_id, claim.number] = self._clock.now()
        for row in self._list_parkable(fence, park):
            self._data.due_at[row.id] = self._data.first_due_at(row)
            self._data.open.put(replace(row, waits=Waits.PARKED, available_at=None, status_at=self._clock.now()))
        return {partition: self._data.revisions[fence.destination, partition] for partition in fence.epochs}

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        for failure in settlement.failures:
            failure.check()
        self._check_fence(fence)
        unclaimed: list[int] = []
        claimed: set[int] = set()
        if settlement.claims:
            claims = [self._data.claims.get((fence.relay_id, number)) for number in settlement.claims]
            claimed = {id_ for claim in claims if claim is not None for id_ in claim.message_ids}
            unclaimed, settlement = settlement.list_unclaimed(claimed), settlement.narrow(claimed)
        sent = settlement.message_ids
        delivered = [
            row
            for row in self._open_in_fence(fence, settlement.delivered)
            if sent.get(row.id, row.message_id) == row.message_id
        ]
        self._count_deliveries(fence.destination, delivered)
        for row in delivered:
            self._deliver(row)
        for failure in settlement.failures:
            for row in self._open_in_fence(fence, [failure.message_id]):
                if sent.get(row.id, row.message_id) == row.message_id and not self._is_recorded(row, failure):
                    self._record_failure(row, failure, by=fence.relay_id)
        if returned := settlement.list_returned(claimed):
            self._count(fence.destination, "returned", len(returned))
        self._trim_claims(fence.relay_id, settlement)
        return unclaimed

    def _count_deliveries(self, destination: str, rows: Sequence[Message]) -> None:
        now = self._clock.now()
        times = [
            ((now - self._data.first_due_at(row)).total_seconds(), (now - row.event_time).total_seconds())
            for row in rows
        ]
        if times:
            rollup = self._data.rollup(destination, now)
            self._data.rollups[rollup.minute, destination] = count_deliveries(rollup, times)

    def _count(self, destination: str, column: str, number: int = 1) -> None:
        rollup = self._data.rollup(destination, self._clock.now())
        counted = replace(rollup, **{column: getattr(rollup, column) + number})
        self._data.rollups[rollup.minute, destination] = counted

    def _is_recorded(self, row: Message, failure: FailedOutcome) -> bool:
        """Return whether the row waits as the failure says: a repeat changes nothing until the first one's time."""
        waits_on = row.available_at is None or row.available_at > self._clock.now()
        last_error = row.last_error if failure.error is None else failure.error
        known = (row.waits, row.attempts, row.last_error)
        return failure.waits is not None and waits_on and known == (failure.waits, failure.attempts, last_error)

    def _check_fence(self, fence: Fence) -> None:
        """Raise `Fenced` with the lanes that are not this relay's at this epoch."""
        lanes = self._data.lanes
        lost = [
            partition
            for partition, epoch in fence.epochs.items()
            if lanes.get((fence.destination, partition)) != LaneRow(fence.relay_id, epoch)
        ]
        if lost:
            raise Fenced(fence.destination, lost)

    def _open_in_fence(self, fence: Fence, ids: Iterable[int]) -> Sequence[Message]:
        """Return the messages that are open and in the lanes of the fence: a repeated settlement finds none."""
        rows = [row for id in ids if (row := self._data.open.get(id)) is not None]
        return [row for row in rows if row.destination == fence.destination and row.partition in fence.epochs]

    def _list_parkable(self, fence: Fence, park: Mapping[int, UUID]) -> Sequence[Message]:
        """Return the messages to park that do not wait in the table yet, without others that got their ids."""
        return [
            row
            for row in self._open_in_fence(fence, park)
            if row.waits in (None, Waits.DEFERRED) and row.message_id == park[row.id]
        ]

    def _deliver(self, row: Message) -> None:
        closed = replace(row, state=State.DELIVERED, waits=None, status_at=self._clock.now())
        if self._keep == "off":
            self._data.open.drop(row.id)
            self._data.due_at.pop(row.id, None)
            self._drop_journal({(row.message_id, row.destination)})
        elif self._keep == "no-payload":
            self._data.put(replace(closed, payload=b"", payload_kept=False))
        else:
            self._data.put(closed)

    def _record_failure(self, row: Message, failure: FailedOutcome, *, by: UUID) -> None:
        now = self._clock.now()
        self._data.due_at[row.id] = self._data.first_due_at(row)
        self._data.put(_apply_failure(row, failure, now))
        if (column := classify_failure(failure)) is not None:
            self._count(row.destination, column)
        action = failure.action
        if action is not None:
            self._data.write_line(
                JournalEntry(
                    message_id=row.message_id, destination=row.destination, action=action, at=now, by=str(by),
                    attempt=failure.attempts, error=failure.error, detail=failure.detail,
                )
            )  # fmt: skip
        if failure.forward_to is not None:
            self._data.put(self._reopen(self._data.history[row.id], to=failure.forward_to))
            self._restart_age(row)
            self._data.write_line(
                JournalEntry(
                    message_id=row.message_id, destination=row.destination, action=Action.REDRIVEN, at=now, by=str(by),
                )
            )  # fmt: skip

    def _trim_claims(self, relay_id: UUID, settlement: Settlement) -> None:
        failed = (failure.message_id for failure in settlement.failures)
        settled = {*settlement.delivered, *failed, *settlement.returned}
        for number in settlement.touched:
            self._data.remove_from_claim(relay_id, number, settled)
        for number in settlement.finished:
            self._data.claims.pop((relay_id, number), None)

    # --- membership ---

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        now = self._clock.now()
        known = self._data.relays.get(relay.relay_id)
        started_at = now if known is None else known.started_at
        self._data.relays[relay.relay_id] = replace(relay, started_at=started_at, expires_at=now + lease, lease=lease)

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        now = self._clock.now()
        relay = self._data.relays.get(relay_id)
        if relay is None or _known(relay.expires_at) <= now:
            return False
        self._data.relays[relay_id] = replace(
            relay, expires_at=now + lease, lease=lease, reachable=reachable, asleep=asleep
        )
        return True

    async def registry(self, *, lease: timedelta) -> Registry:
        live = self._live_relays(lease)
        owners: dict[str, dict[int, UUID]] = defaultdict(dict)
        for (destination, partition), lane in self._data.lanes.items():
            if lane.owner is not None and lane.owner in live:
                owners[destination][partition] = lane.owner
        return Registry(self._clock.now(), [live[relay_id] for relay_id in sorted(live)], dict(owners))

    async def registry_digest(self, *, lease: timedelta) -> object:
        relays = [(relay_id, tuple(relay.reachable)) for relay_id, relay in sorted(self._live_relays(lease).items())]
        lanes = self._data.lanes.values()
        return relays, sum(lane.owner is not None for lane in lanes), sum(lane.epoch for lane in lanes)

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        if relay_id not in self._data.relays:
            return (), ()
        live = self._live_relays(lease).keys() - {relay_id}
        lanes = [
            self._take_lane(relay_id, destination, partition)
            for partition in partitions
            if self._owner(destination, partition) not in live
        ]
        return lanes, self._recover_claims(relay_id, lanes, claim_number)

    def _live_relays(self, lease: timedelta) -> Mapping[UUID, RelayInfo]:
        """Return relays that have not expired. An expiry beyond the relay's own lease was written by a wrong clock."""
        now = self._clock.now()
        return {
            id: relay
            for id, relay in self._data.relays.items()
            if now < _known(relay.expires_at) <= now + (relay.lease or lease)
        }

    def _owner(self, destination: str, partition: int) -> UUID | None:
        return self._data.lanes.get((destination, partition), LaneRow()).owner

    def _take_lane(self, relay_id: UUID, destination: str, partition: int) -> Lane:
        before = self._data.lanes.get((destination, partition), LaneRow())
        if before.owner is not None and before.owner != relay_id:
            self._data.relays.pop(before.owner, None)
        self._data.lanes[destination, partition] = LaneRow(relay_id, before.epoch + 1)
        taken_from = before.owner if before.owner != relay_id else None
        revision = self._data.revisions[destination, partition]
        return Lane(destination, partition, before.epoch + 1, revision, taken_from)

    def _recover_claims(self, relay_id: UUID, lanes: Sequence[Lane], claim_number: int) -> Sequence[RecoveredClaim]:
        """Move what any relay has claimed in these lanes into claims of this one, with one strike more."""
        rows: dict[int, Message] = {}
        claims: list[tuple[int, Iterable[int]]] = []
        taken = {(lane.destination, lane.partition) for lane in lanes}
        for (holder, number), claim in list(self._data.claims.items()):
            moved = {row.id: row for row in self._open_messages(claim) if (row.destination, row.partition) in taken}
            rows |= moved
            claims.append((claim.strikes, moved))
            self._data.remove_from_claim(holder, number, set(moved))
        own = group_by_strikes(sorted(rows), add_strikes(claims), claim_number=claim_number)
        recovered = attach_messages(own, [replace(row, payload=b"", headers={}) for row in rows.values()])
        for one in recovered:
            self._data.claims[relay_id, one.claim.number] = replace(one.claim, strikes=one.claim.strikes - 1)
            self._data.claimed_at[relay_id, one.claim.number] = self._clock.now()
        return recovered

    def _open_messages(self, claim: Claim) -> Sequence[Message]:
        return [row for id in claim.message_ids if (row := self._data.open.get(id)) is not None]

    async def release(self, fence: Fence) -> None:
        for partition, epoch in fence.epochs.items():
            if self._data.lanes.get((fence.destination, partition)) == LaneRow(fence.relay_id, epoch):
                self._release_lane(fence.relay_id, fence.destination, partition)

    def _release_lane(self, relay_id: UUID, destination: str, partition: int) -> None:
        lane = self._data.lanes[destination, partition]
        self._data.lanes[destination, partition] = LaneRow(None, lane.epoch)
        in_lane = {row.id for row in self._data.open.in_lane(destination, partition)}
        for holder, number in list(self._data.claims):
            if holder == relay_id:
                self._data.remove_from_claim(holder, number, in_lane)

    async def leave(self, relay_id: UUID) -> None:
        for (destination, partition), lane in list(self._data.lanes.items()):
            if lane.owner == relay_id:
                self._data.lanes[destination, partition] = LaneRow(None, lane.epoch)
        for holder, number in list(self._data.claims):
            if holder == relay_id:
                del self._data.claims[holder, number]
        self._data.relays.pop(relay_id, None)

    async def mark_lanes(self, relay_id: UUID) -> None:
        """Do nothing: no dead rows stand at the start of a lane."""

    async def forget(self, *, stale_after: timedelta) -> int:
        now = self._clock.now()
        stale = [id for id, relay in self._data.relays.items() if now - _known(relay.expires_at) >= stale_after]
        for relay_id in stale:
            del self._data.relays[relay_id]
        for (holder, number), claim in list(self._data.claims.items()):
            if holder not in self._data.relays and not self._open_messages(claim):
                del self._data.claims[holder, number]
        return len(stale)

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
        self._data.on_commit.append(wake)
        try:
            yield _Listener()
        finally:
            self._data.on_commit.remove(wake)

    # --- operations ---

    async def redrive(
        self, selection: Selection, *, by: str, limit: int, to: str | None = None, reason: str | None = None
    ) -> BulkResult:
        states = eligible_states(Action.REDRIVEN, selection, to=to)

        def change(message: Message) -> Message:
            return self._reopen(message, to=to)

        return self._change_messages(
            Action.REDRIVEN, selection, states, change, by=by, limit=limit, reason=reason, after=self._restart_age
        )

    async def replay(self, selection: Selection, *, by: str, limit: int, reason: str | None = None) -> BulkResult:
        states = eligible_states(Action.REPLAYED, selection)
        return self._change_messages(
            Action.REPLAYED, selection, states, self._reopen, by=by, limit=limit, reason=reason,
            after=self._restart_age,
        )  # fmt: skip

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        states = eligible_states(Action.DISCARDED, selection)

        def change(message: Message) -> Message:
            return replace(message, state=State.DISCARDED, waits=None, status_at=self._clock.now())

        def count(message: Message) -> None:
            self._count(message.destination, "discarded")

        return self._change_messages(
            Action.DISCARDED, selection, states, change, by=by, limit=limit, reason=reason, after=count
        )

    async def defer(
        self, selection: Selection, *, until: datetime, by: str, limit: int, reason: str | None = None
    ) -> BulkResult:
        states = eligible_states(Action.DEFERRED, selection)

        def change(message: Message) -> Message | None:
            if message.waits is Waits.PARKED:
                return None
            return replace(message, waits=Waits.RETRY, available_at=until.astimezone(UTC), status_at=self._clock.now())

        def postpone(message: Message) -> None:
            self._data.due_at[message.id] = until.astimezone(UTC)

        return self._change_messages(
            Action.DEFERRED, selection, states, change, by=by, limit=limit, reason=reason, after=postpone
        )

    def _restart_age(self, message: Message) -> None:
        self._data.due_at[message.id] = self._clock.now()

    def _reopen(self, message: Message, *, to: str | None = None) -> Message:
        """Let a message wait as a retry that is due. As a fresh one it would be missed: relays read past its id."""
        now = self._clock.now()
        id_ = message.id if message.id < MOVED_IDS else self._data.transactions.draw_lone_id()
        return replace(
            message, id=id_, destination=to or message.destination, state=State.PENDING, waits=Waits.RETRY,
            available_at=now, attempts=0, status_at=now,
        )  # fmt: skip

    def _change_messages(
        self,
        action: Action,
        selection: Selection,
        states: Sequence[State],
        change: Callable[[Message], Message | None],
        *,
        by: str,
        limit: int,
        reason: str | None = None,
        after: Callable[[Message], None] | None = None,
    ) -> BulkResult:
        """Change the first of the selected messages in these states; `change` returns None to leave one alone."""
        selected = [message for message in self._messages() if self._matches(message, selection)]
        able = [(m, changed) for m in selected if m.state in states and (changed := change(m)) is not None][:limit]
        if not able:
            return self._refuse(action, selection)
        kept = [(message, changed) for message, changed in able if message.payload_kept]
        for message, changed in kept:
            if self._data.open.get(message.id) is not None:
                self._data.revisions[message.destination, message.partition] += 1
                self._data.remove_from_claims(message.id)
            self._data.history.pop(message.id, None)
            self._data.put(changed)
            if after is not None:
                after(changed)
            self._record_operation(message, action, by=by, reason=reason)
        return BulkResult(len(kept), able[-1][0].id, len(able) - len(kept))

    def _refuse(self, action: Action, selection: Selection) -> BulkResult:
        if selection.after:
            # The last page of several: what the earlier ones moved is no longer eligible, and that is no error.
            return BulkResult(0, selection.after)
        named = Selection(ids=selection.ids, message_ids=selection.message_ids)
        found = [(message.id, message.state) for message in self._messages() if matches(message, named)]
        return explain_empty_batch(selection, found, action)

    def _record_operation(self, message: Message, action: Action, *, by: str, reason: str | None) -> None:
        self._data.write_line(
            JournalEntry(
                message_id=message.message_id, destination=message.destination, action=action, at=self._clock.now(),
                by=by, reason=reason,
            )
        )  # fmt: skip

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        now = self._clock.now()
        closed = [row for row in self._data.history.values() if row.state is state]
        old = [row for row in closed if now - _known(row.status_at) >= older_than]
        return self._delete_closed(sorted(old, key=attrgetter("status_at", "id"))[:limit])

    async def purge_archived(self, messages: Sequence[Message]) -> int:
        archived = {(one.id, one.state, one.status_at) for one in messages}
        rows = [row for id in {one.id for one in messages} if (row := self._data.history.get(id)) is not None]
        return self._delete_closed([row for row in rows if (row.id, row.state, row.status_at) in archived])

    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        now, rows = self._clock.now(), list(self._messages())
        missing = select_missing(messages, [(row.message_id, row.destination) for row in rows])
        ids = choose_ids(missing, taken={row.id for row in rows}, highest=self._data.transactions.last_id)
        for message, id_ in zip(missing, ids, strict=True):
            self._data.put(replace(message, id=id_, waits=None, status_at=now))
            self._data.write_line(
                JournalEntry(
                    message_id=message.message_id, destination=message.destination, action=Action.RESTORED, at=now,
                    by=by, detail=describe_closing(message),
                )
            )  # fmt: skip
        return len(missing)

    def _delete_closed(self, rows: Sequence[Message]) -> int:
        gone = {(row.message_id, row.destination) for row in rows}
        for row in rows:
            del self._data.history[row.id]
        self._drop_journal(gone)
        return len(rows)

    def _drop_journal(self, gone: Collection[tuple[UUID, str]]) -> None:
        self._data.journal[:] = [one for one in self._data.journal if (one.message_id, one.destination) not in gone]

    async def note(
        self,
        action: str,
        *,
        by: str,
        detail: str,
        destination: str = "*",
        reason: str | None = None,
        selection: str | None = None,
    ) -> None:
        self._data.write_line(
            JournalEntry(
                message_id=None, destination=destination, action=action, at=self._clock.now(), by=by, detail=detail,
                reason=reason, selection=selection,
            )
        )  # fmt: skip

    async def purge_journal(self, *, older_than: timedelta, limit: int) -> int:
        now, journal = self._clock.now(), self._data.journal
        old = [one.id for one in journal if one.message_id is None and now - one.at >= older_than][:limit]
        gone = set(old)
        journal[:] = [one for one in journal if one.id not in gone]
        return len(old)

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        if destination not in self._data.pauses:
            now = self._clock.now()
            self._data.pauses[destination] = Pause(destination=destination, by=by, at=now, reason=reason)
            self._note_destination(destination, Action.PAUSED, by=by, reason=reason)

    async def resume(self, destination: str, *, by: str, reason: str | None = None) -> bool:
        if self._data.pauses.pop(destination, None) is None:
            return False
        self._note_destination(destination, Action.RESUMED, by=by, reason=reason)
        return True

    async def probe(self, destination: str, *, by: str) -> bool:
        live = self._live_relays(LONGEST).values()
        if not any(destination in relay.destinations for relay in live):
            return False
        self._data.probes[destination] = self._clock.now()
        self._note_destination(destination, Action.PROBED, by=by)
        return True

    def _note_destination(self, destination: str, action: Action, *, by: str, reason: str | None = None) -> None:
        now = self._clock.now()
        entry = JournalEntry(message_id=None, destination=destination, action=action, at=now, by=by, reason=reason)
        self._data.write_line(entry)

    async def pauses(self) -> Sequence[Pause]:
        return [self._data.pauses[destination] for destination in sorted(self._data.pauses)]

    async def requests(self) -> Sequence[DestinationRequest]:
        pauses, probes = self._data.pauses, self._data.probes
        return [
            DestinationRequest(destination=name, pause=pauses.get(name), probe_at=probes.get(name))
            for name in sorted(pauses.keys() | probes.keys())
        ]

    async def record_backlog(self, relay_id: UUID, *, destinations: Sequence[str], limit: int) -> None:  # noqa: ARG002
        now, due = self._clock.now(), Counter[str]()
        for message in self._messages():
            if message.state in (State.PENDING, State.SENDING) and self._data.first_due_at(message) <= now:
                due[message.destination] += 1
        for destination in destinations:
            rollup = self._data.rollup(destination, now)
            if (backlog := min(due[destination], limit)) > rollup.backlog:
                self._data.rollups[rollup.minute, destination] = replace(rollup, backlog=backlog)

    # --- inbox ---

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        return [
            InboxFailure(
                consumer=key[0], source=key[1], message_id=key[2], attempts=row.attempts, error=row.last_error,
                failed_at=row.status_at, content=row.message or b"",
            )
            for key, row in self._failed_inbox_rows(selection, limit)
        ]  # fmt: skip

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int, reason: str | None = None) -> int:
        def change(row: InboxRow) -> InboxRow:
            return replace(row, status="started", attempts=0, status_at=self._clock.now())

        return self._change_inbox(selection, limit, change, Action.REDRIVEN, by=by, reason=reason)

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        def change(row: InboxRow) -> InboxRow:
            return replace(row, status="done", message=None, status_at=self._clock.now())

        return self._change_inbox(selection, limit, change, Action.DISCARDED, by=by, reason=reason)

    def _change_inbox(
        self,
        selection: InboxSelection,
        limit: int,
        change: Callable[[InboxRow], InboxRow],
        action: Action,
        *,
        by: str,
        reason: str | None = None,
    ) -> int:
        rows = self._failed_inbox_rows(selection, limit, with_content=action is Action.REDRIVEN)
        for key, row in rows:
            self._data.inbox[key] = change(row)
            entry = build_inbox_entry(*key, action=action, by=by, at=self._clock.now(), reason=reason)
            self._data.write_line(entry)
        return len(rows)

    def _failed_inbox_rows(
        self, selection: InboxSelection, limit: int, *, with_content: bool = False
    ) -> list[tuple[InboxKey, InboxRow]]:
        """Return the selected failures, longest failed first."""
        failed = [
            (key, row)
            for key, row in self._data.inbox.items()
            if row.status == "failed"
            and (row.message is not None or not with_content)
            and selection.consumer in (None, key[0])
            and (selection.message_ids is None or key[2] in selection.message_ids)
            and (selection.error is None or selection.error.casefold() in (row.last_error or "").casefold())
        ]
        return sorted(failed, key=lambda one: (one[1].status_at, one[0]))[:limit]

    async def inbox_counts(self, *, limit: int = 100_000) -> Sequence[InboxCount]:
        rows = self._failed_inbox_rows(InboxSelection(), limit)
        times: dict[str, list[datetime]] = {}
        for key, row in rows:
            times.setdefault(key[0], []).append(row.status_at)
        return build_inbox_counts([(name, len(at), min(at)) for name, at in sorted(times.items())], limit=limit)

    async def inbox_records(self, message_ids: Sequence[str]) -> Sequence[InboxRecord]:
        return [
            InboxRecord(
                consumer=key[0], source=key[1], message_id=key[2], status=row.status, at=row.status_at,
                attempts=row.attempts, error=row.last_error, duplicates=row.duplicates,
            )
            for key, row in sorted(self._data.inbox.items())
            if key[2] in message_ids
        ]  # fmt: skip

    async def purge_inbox(self, *, older_than: timedelta, limit: int, failed: bool = False) -> int:
        now, statuses = self._clock.now(), list_purged_statuses(failed=failed)
        done = [
            (key, row)
            for key, row in self._data.inbox.items()
            if any(row.status == status and with_content in (None, row.message is not None)
                   for status, with_content in statuses)
        ]  # fmt: skip
        old = [(row.status_at, key) for key, row in done if now - row.status_at >= older_than]
        gone = [key for _, key in sorted(old)[:limit]]
        for key in gone:
            del self._data.inbox[key]
        return len(gone)

    async def purge_rollups(self, *, older_than: timedelta, limit: int) -> int:
        now = self._clock.now()
        old = sorted(key for key in self._data.rollups if now - key[0] >= older_than)[:limit]
        for key in old:
            del self._data.rollups[key]
        return len(old)

    # --- queries ---

    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        found = [message for message in self._messages() if self._matches(message, selection)]
        if order is Order.ATTEMPTS:
            found.sort(key=attrgetter("attempts"), reverse=True)
        elif order is Order.NEWEST:
            found.sort(key=attrgetter("status_at", "id"), reverse=True)
        elif order is Order.LATEST:
            found.sort(key=attrgetter("id"), reverse=True)
        found = found[:limit]
        return found if payloads else [replace(message, payload=b"") for message in found]

    async def count(self, selection: Selection, *, limit: int | None = None) -> int:
        total = sum(self._matches(message, selection) for message in self._messages())
        return total if limit is None else min(total, limit)

    def _matches(self, message: Message, selection: Selection) -> bool:
        if not matches(message, selection):
            return False
        if selection.phase is None:
            return True
        at = selection.phase_at or self._clock.now()
        return selection.phase in list_phases(message, since=self._data.first_due_at(message), at=at)

    async def find_key(
        self, destination: str, *, partition: int, key: str, after: int = 0, limit: int = 10
    ) -> Sequence[int]:
        rows = [row for row in self._data.open.in_lane(destination, partition) if row.key == key and row.id > after]
        return sorted(row.id for row in rows)[:limit]

    async def count_phases(self, *, limit: int = 100_000) -> Sequence[PhaseCount]:
        now = self._clock.now()
        counts = Counter(
            (one.destination, phase)
            for one in self._messages()
            for phase in list_phases(one, since=self._data.first_due_at(one), at=now)
        )
        return [
            PhaseCount(destination=destination, phase=phase, count=min(count, limit), more=count >= limit)
            for (destination, phase), count in sorted(counts.items(), key=str)
            if phase is not Phase.DUE
        ]

    async def lane_backlogs(self, destination: str, *, limit: int = 1_000) -> Sequence[LaneBacklog]:
        now, times = self._clock.now(), defaultdict[int, list[datetime]](list)
        for message in self._messages():
            at = self._waits_since(message)
            if message.destination == destination and message.state in (State.PENDING, State.SENDING) and at <= now:
                times[message.partition].append(at)
        return [
            LaneBacklog(partition=lane, due=min(len(ats), limit), more=len(ats) >= limit, oldest_at=min(ats))
            for lane, ats in sorted(times.items())
        ]

    async def inbox_activity(self, *, window: timedelta, limit: int = 10_000) -> Sequence[InboxActivity]:
        since = self._clock.now() - window
        done = [
            (row, key[0]) for key, row in self._data.inbox.items() if row.status == "done" and row.status_at >= since
        ]
        latest = sorted(done, key=lambda one: one[0].status_at, reverse=True)[:limit]
        if len(latest) == limit:
            since = latest[-1][0].status_at
        found = []
        for name in sorted({key[0] for key in self._data.inbox}):
            rows = [row for row, consumer in latest if consumer == name]
            found.append(
                InboxActivity(
                    consumer=name, handled=len(rows), duplicates=sum(row.duplicates for row in rows), since=since,
                    last_at=max((row.status_at for row in rows), default=None),
                )
            )  # fmt: skip
        return found

    async def facts(self) -> StoreFacts:
        return StoreFacts(schema_version=None, server="memory of this process")

    def _messages(self) -> Iterator[Message]:
        """Yield every message with the state that operators see, by id."""
        now = self._clock.now()
        gone = {id for id, relay in self._data.relays.items() if _known(relay.expires_at) <= now}
        gone |= {holder for holder, _ in self._data.claims} - self._data.relays.keys()
        return self._data.messages(without=gone)

    async def journal(
        self,
        *,
        message_id: UUID | None = None,
        destination: str | None = None,
        by: str | None = None,
        actions: Sequence[str] | None = None,
        messages: bool = True,
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[JournalEntry]:
        entries = [
            entry
            for entry in self._data.journal
            if message_id in (None, entry.message_id)
            and destination in (None, entry.destination)
            and by in (None, entry.by)
            and (actions is None or entry.action in actions)
            and (messages or entry.message_id is None)
            and (before is None or entry.id < before)
        ]
        return entries[max(0, len(entries) - limit) :]

    async def failure_groups(
        self, *, destination: str | None = None, limit: int = 100, counted_to: int = 10_000
    ) -> Sequence[FailureGroup]:
        groups: dict[tuple[str, str], list[Message]] = defaultdict(list)
        for message in self._messages():
            if destination not in (None, message.destination):
                continue
            if (fingerprint := find_fingerprint(message)) is not None:
                groups[message.destination, fingerprint].append(message)
        found = [
            build_failure_group(name, fingerprint, messages, counted_to=counted_to)
            for (name, fingerprint), messages in groups.items()
        ]
        largest = sort_failure_groups(found)[:limit]
        return attach_tries(largest, self._read_tries({group.example.message_id for group in largest}))

    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        return build_tries(messages, self._read_tries({message.message_id for message in messages}))

    async def count_blocked(
        self, destination: str, *, limit: int = 50, counted_to: int = 1_000
    ) -> Sequence[BlockedKeyCount]:
        keys: dict[tuple[int, str], list[Message]] = defaultdict(list)
        for row in self._messages():
            if row.destination == destination and row.waits in _BLOCKING and row.key is not None:
                keys[row.partition, row.key].append(row)
        heads = sorted(
            ((partition, key, rows) for (partition, key), rows in keys.items() if rows[0].waits is not Waits.PARKED),
            key=lambda one: (self._data.first_due_at(one[2][0]), one[2][0].id),
        )
        return [
            BlockedKeyCount(
                destination=destination, partition=partition, key=key, head=replace(rows[0], payload=b""),
                waiting=min(len(rows) - 1, counted_to), more=len(rows) - 1 >= counted_to,
            )
            for partition, key, rows in heads[:limit]
        ]  # fmt: skip

    async def tables(self) -> Sequence[TableStatus]:
        data = self._data
        sizes: dict[str, Collection[object]] = {
            "claim": data.claims, "destination": data.pauses, "history": data.history, "inbox": data.inbox,
            "journal": data.journal, "lane": data.lanes, "outbox": list(data.open.ids()), "probe": data.probes,
            "relay": data.relays, "rollup": data.rollups,
        }  # fmt: skip
        return [
            TableStatus(name=f"pillarbox_{name}", rows=len(rows), bytes=None, dead_rows=None)
            for name, rows in sizes.items()
        ]

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        groups: dict[tuple[str, str, State, bool], list[datetime]] = defaultdict(list)
        now = self._clock.now()
        for message in self._messages():
            if message.state is State.DELIVERED:
                continue
            at = self._waits_since(message)
            due = message.state in (State.FAILED, State.SKIPPED, State.DISCARDED) or at <= now
            groups[message.destination, message.topic, message.state, due].append(at)
        return [
            Count(
                destination=destination, topic=topic, state=state, due=due, count=len(ats[:limit]), oldest_at=min(ats),
                more=len(ats) >= limit,
            )
            for (destination, topic, state, due), ats in sorted(groups.items())
        ]  # fmt: skip

    async def oldest_due(self) -> Mapping[str, datetime]:
        now, oldest = self._clock.now(), dict[str, datetime]()
        for message in self._messages():
            at = self._waits_since(message)
            if message.state in (State.PENDING, State.SENDING) and at <= now:
                oldest[message.destination] = min(at, oldest.get(message.destination, at))
        return oldest

    def _waits_since(self, message: Message) -> datetime:
        """Return when an open message was or will be due, or when a closed one was closed."""
        if message.state.is_closed and message.waits is None:
            return _known(message.status_at)
        return self._data.first_due_at(message)

    async def rollups(self, *, window: timedelta, step: timedelta = timedelta(minutes=1)) -> Sequence[Rollup]:
        since = _begin_minute(self._clock.now() - window)
        rollups = [rollup for (minute, _), rollup in sorted(self._data.rollups.items()) if minute >= since]
        return add_rollups(rollups, step=step)

    async def claims(
        self, *, older_than: timedelta, limit: int = 50, relay_id: UUID | None = None
    ) -> Sequence[OpenClaim]:
        before, claimed_at = self._clock.now() - min(older_than, LONGEST), self._data.claimed_at
        old = [
            OpenClaim(relay_id=key[0], claimed_at=claimed_at[key], message_ids=claim.message_ids, strikes=claim.strikes)
            for key, claim in self._data.claims.items()
            if claimed_at[key] <= before and claim.message_ids and relay_id in (None, key[0])
        ]
        return sorted(old, key=lambda claim: claim.claimed_at)[:limit]


class _Listener:
    is_listening: Final = True


def _known(value: T | None) -> T:
    """Return a value that every stored row has; the types allow None for what was not stored yet."""
    assert value is not None  # noqa: S101
    return value


def _take_turns(lanes: Sequence[Sequence[Message]], limit: int) -> Iterator[Message]:
    """Yield the first of each lane, then the second of each, until there are enough."""
    return islice((row for turn in zip_longest(*lanes) for row in turn if row is not None), limit)


def _complete_lanes(partitions: Sequence[int], fresh: Sequence[Sequence[Message]], cursor: Cursor) -> frozenset[int]:
    """Return the lanes whose last fresh message is not above their mark."""
    ends = zip(partitions, fresh, strict=True)
    return frozenset(lane for lane, rows in ends if not rows or rows[-1].id <= cursor.low.get(lane, 0))


def _apply_failure(row: Message, failure: FailedOutcome, now: datetime) -> Message:
    """Return the row after the failure. A closed one keeps the time it was due; a held or parked one has none."""
    due_at = now + (failure.delay or timedelta(0)) if failure.waits in _TIMED else None
    return replace(
        row,
        state=failure.state,
        waits=failure.waits,
        attempts=failure.attempts,
        last_error=row.last_error if failure.error is None else failure.error,
        available_at=row.available_at if failure.state.is_closed else due_at,
        status_at=now,
    )


def _begin_minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


class MemoryTransaction:
    """Transaction to write messages in, which is its own `Writer`.

    Ids are drawn at the insert and become visible at the commit, in whatever order. As a context manager, sync or
    async, it commits at the end of the block and rolls back on an exception. After either, writing is
    `NotInTransaction`. What another open transaction locks is `StoreUnavailable` instead of a wait, because nothing
    waits here: trying again later is right.
    """

    def __init__(self, data: MemoryData, *, clock: Clock) -> None:
        self._data = data
        self._clock = clock
        self._tx: int | None = None
        self._rows: list[Message] = []
        self._accepted: dict[InboxKey, InboxRow] = {}
        self._ended = False

    def insert(self, batch: Insert) -> None:
        """Write the rows, visible when this commits."""
        tx = self._begin()
        if batch.serialize_keys:
            for key in sorted({message.key for message in batch.messages if message.key is not None}):
                self._lock(("key", key), f"key {key}")
        now = self._clock.now()
        self._rows += [self._build_row(message, tx, now, batch.delay) for message in batch.messages]

    def execute(self, command: InboxCommand[T]) -> T:
        """Execute an inbox command and return its result."""
        self._begin()
        # Each branch gives what its command results in; mypy cannot follow that from the class to the parameter.
        return cast("T", self._apply(command))

    def _apply(self, command: InboxCommand[Any]) -> object:
        match command:
            case TakeRedriven():
                return self._take_redriven(command)
            case Forget():
                return self._forget(command)
            case Accept() | Start() | Fail():
                key = (command.consumer, command.source, command.message_id)
                self._lock(("inbox", key), f"message {command.message_id} for consumer {command.consumer}")
                row = self._accepted.get(key) or self._data.inbox.get(key)
                self._accepted[key], result = _apply_inbox_command(row, command, self._clock.now())
                return result
        raise TypeError(f"There is no inbox command {type(command).__name__}.")

    def _take_redriven(self, command: TakeRedriven) -> list[bytes]:
        rows = sorted(
            (row.status_at, row.message)
            for (consumer, _, _), row in {**self._data.inbox, **self._accepted}.items()
            if consumer == command.consumer and row.status == "started" and row.message is not None
        )
        return [message for _, message in rows[: command.limit]]

    def _forget(self, command: Forget) -> int:
        """Delete at once and not at the commit: no command looks for a record outside the window."""
        ages = [(False, command.older_than)]
        if command.failed_older_than is not None:
            ages.append((True, command.failed_older_than))
        now, deleted = self._clock.now(), 0
        for failed, age in ages:
            for status, with_content in list_purged_statuses(failed=failed):
                old = [
                    key
                    for key, row in self._data.inbox.items()
                    if (key[0], row.status) == (command.consumer, status) and now - row.status_at >= age
                    and with_content in (None, row.message is not None)
                ][: command.limit]  # fmt: skip
                for key in old:
                    del self._data.inbox[key]
                deleted += len(old)
        return deleted

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block wrote, and nothing else, when it raises."""
        rows, accepted = len(self._rows), dict(self._accepted)
        try:
            yield
        except BaseException:
            del self._rows[rows:]
            self._accepted = accepted
            raise

    def commit(self) -> None:
        """Make everything visible at once."""
        self._end()
        for row in self._rows:
            self._data.open.put(row)
        self._data.inbox.update(self._accepted)
        for notify in self._data.on_commit if self._rows else ():
            notify()

    def rollback(self) -> None:
        """Drop everything. The ids that were drawn are never used again."""
        self._end()

    def close(self) -> None:
        """Roll back what was not committed. Closing twice is harmless."""
        if not self._ended:
            self.rollback()

    def _begin(self) -> int:
        """Return the transaction id. It is drawn before the first row's id, or late rows could not be told apart."""
        if self._ended:
            raise NotInTransaction(
                "This memory transaction has ended, so nothing would be written; open another with store.transaction()."
            )
        if self._tx is None:
            self._tx = self._data.transactions.begin()
        return self._tx

    def _lock(self, name: object, what: str) -> None:
        if not self._data.transactions.lock(name, self._begin()):
            raise StoreUnavailable(f"Another open transaction holds {what}; end that one, then try again.")

    def _build_row(self, message: Message, tx: int, now: datetime, delay: timedelta | None) -> Message:
        fixed = None if message.available_at is None else message.available_at.astimezone(UTC)
        available_at = fixed if delay is None else now + delay
        return replace(
            message,
            id=self._data.transactions.draw_id(tx),
            event_time=message.event_time.astimezone(UTC),
            created_at=now,
            available_at=available_at,
            waits=None if available_at is None else Waits.DEFERRED,
            attempts=0,
            last_error=None,
            status_at=now,
            state=State.PENDING,
        )

    def _end(self) -> None:
        if self._ended:
            raise NotInTransaction("This memory transaction has ended already; it can be ended only once.")
        self._ended = True
        if self._tx is not None:
            self._data.transactions.end(self._tx)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.commit() if kind is None else self.rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _apply_inbox_command(
    row: InboxRow | None, command: Accept | Start | Fail, now: datetime
) -> tuple[InboxRow, bool | int | None]:
    """Return the row after the command, and the result of the command."""
    if row is not None and row.status == "done":
        match command:
            case Start():
                return row, 0
            case Fail():
                return row, None
            case _:
                return replace(row, duplicates=row.duplicates + 1), False
    match command:
        case Start():
            again = row is not None and row.status == "started"
            row = row or InboxRow("started", now)
            row = replace(row, status="started", status_at=now, attempts=row.attempts + 1 if again else 1)
            return row, row.attempts
        case Fail():
            return InboxRow("failed", now, command.attempts, 0, command.error, command.message), None
        case _:
            return InboxRow("done", now), True


class MemoryData:
    """Tables of one database. Several `MemoryStore`s over one of these are several connections to it."""

    def __init__(self) -> None:
        self.open = OpenRows()
        self.history: dict[int, Message] = {}
        self.claims: dict[tuple[UUID, int], Claim] = {}
        self.claimed_at: dict[tuple[UUID, int], datetime] = {}
        self.lanes: dict[tuple[str, int], LaneRow] = {}
        self.revisions: Counter[tuple[str, int]] = Counter()
        """How often operators changed open messages of each lane."""
        self.relays: dict[UUID, RelayInfo] = {}
        self.pauses: dict[str, Pause] = {}
        self.journal: list[JournalEntry] = []
        self._last_line = 0
        self.probes: dict[str, datetime] = {}
        self.inbox: dict[InboxKey, InboxRow] = {}
        self.rollups: dict[tuple[datetime, str], Rollup] = {}
        self.due_at: dict[int, datetime] = {}
        """When each waiting message first could have gone."""
        self.transactions = Transactions()
        self.on_commit: list[Callable[[], None]] = []
        """Callbacks for a commit that wrote messages."""

    def write_line(self, entry: JournalEntry) -> None:
        """Add a line to the journal, under the next id."""
        self._last_line += 1
        self.journal.append(replace(entry, id=self._last_line))

    def first_due_at(self, row: Message) -> datetime:
        """Return when an open message first could have gone, or could go."""
        written = row.available_at if row.waits is Waits.DEFERRED else None
        return self.due_at.get(row.id) or written or _known(row.created_at)

    def rollup(self, destination: str, at: datetime) -> Rollup:
        """Return the counters of the minute."""
        minute = _begin_minute(at)
        return self.rollups.get((minute, destination)) or Rollup(destination=destination, minute=minute)

    def claimed_ids(self, *, without: Collection[UUID] = ()) -> set[int]:
        """Return the ids that any relay has claimed, except these relays."""
        return {id for (relay, _), claim in self.claims.items() if relay not in without for id in claim.message_ids}

    def messages(self, *, without: Collection[UUID] = ()) -> Iterator[Message]:
        """Yield every message by id, as `sending` where it is claimed by a relay that is not among these."""
        claimed = self.claimed_ids(without=without)
        for id in sorted([*self.open.ids(), *self.history]):
            row = self.open.get(id)
            if row is None:
                yield self.history[id]
            elif row.waits is Waits.HELD:
                yield replace(row, state=State.FAILED)
            else:
                yield replace(row, state=State.SENDING) if id in claimed else row

    def put(self, message: Message) -> None:
        """Write a message where its state belongs: closed ones into the history, all others among the open."""
        self.open.drop(message.id)
        self.history.pop(message.id, None)
        if message.state.is_closed:
            self.history[message.id] = message
            self.due_at.pop(message.id, None)
        else:
            self.open.put(message)

    def remove_from_claims(self, id: int) -> None:
        """Take a message out of every claim."""
        for (relay_id, number), claim in list(self.claims.items()):
            if id in claim.message_ids:
                self.remove_from_claim(relay_id, number, {id})

    def remove_from_claim(self, relay_id: UUID, number: int, ids: set[int]) -> None:
        """Take ids out of a claim, and delete it when none is left."""
        claim = self.claims.get((relay_id, number))
        if claim is None:
            return
        left = [id for id in claim.message_ids if id not in ids]
        if left:
            self.claims[relay_id, number] = Claim(number, left, claim.strikes)
        else:
            del self.claims[relay_id, number]


class LaneRow(msgspec.Struct, frozen=True):
    """Owner of a lane, and how often the lane changed hands."""

    owner: UUID | None = None
    epoch: int = 0


class InboxRow(msgspec.Struct, frozen=True):
    """Record of one message at one consumer."""

    status: Literal["started", "done", "failed"]
    status_at: datetime
    attempts: int = 0
    duplicates: int = 0
    last_error: str | None = None
    message: bytes | None = None


class OpenRows:
    """Open messages by id, with an index by lane so that reading an idle lane costs nothing."""

    def __init__(self) -> None:
        self._rows: dict[int, Message] = {}
        self._lanes: dict[tuple[str, int], dict[int, Message]] = defaultdict(dict)

    def ids(self) -> Iterable[int]:
        """Return all ids, in no order."""
        return self._rows.keys()

    def get(self, id: int) -> Message | None:
        """Return the row if it is open."""
        return self._rows.get(id)

    def put(self, message: Message) -> None:
        """Write a row, in place of the one with its id."""
        self.drop(message.id)
        self._rows[message.id] = message
        self._lanes[message.destination, message.partition][message.id] = message

    def drop(self, id: int) -> None:
        """Remove a row if it is there."""
        row = self._rows.pop(id, None)
        if row is not None:
            del self._lanes[row.destination, row.partition][id]

    def in_lane(self, destination: str, partition: int) -> Sequence[Message]:
        """Return the rows of one lane, by id."""
        lane = self._lanes.get((destination, partition))
        return sorted(lane.values(), key=_BY_ID) if lane else ()


class Snapshot(msgspec.Struct, frozen=True):
    """Transactions that had ended at one moment: all below `xmin`, none from `xmax` on, between them all but `xip`."""

    xmin: int
    xmax: int
    xip: frozenset[int]

    def sees(self, tx: int) -> bool:
        """Return whether what that transaction wrote was visible."""
        return tx < self.xmin or (tx < self.xmax and tx not in self.xip)


class Transactions:
    """Source of transaction ids and message ids, and the record of which transactions are in progress."""

    def __init__(self) -> None:
        self._last_tx = 0
        self._last_ended = 0
        self._last_id = 0
        self._running: set[int] = set()
        self._writers: dict[int, int] = {}
        self._locks: dict[object, int] = {}

    def begin(self) -> int:
        """Return a new transaction id, in progress from now on."""
        self._last_tx += 1
        self._running.add(self._last_tx)
        return self._last_tx

    def end(self, tx: int) -> None:
        """End a transaction by commit or rollback, and free its locks."""
        self._running.discard(tx)
        self._last_ended = max(self._last_ended, tx)
        self._locks = {name: holder for name, holder in self._locks.items() if holder != tx}

    def draw_id(self, tx: int) -> int:
        """Return the next message id, for a row of this transaction. It is never drawn again, even after a rollback."""
        self._last_id += 1
        self._writers[self._last_id] = tx
        return self._last_id

    def draw_lone_id(self) -> int:
        """Return the next message id, for a row that no writer wrote."""
        tx = self.begin()
        self.end(tx)
        return self.draw_id(tx)

    @property
    def last_id(self) -> int:
        """The highest message id that was drawn."""
        return self._last_id

    def writer(self, id: int) -> int:
        """Return the transaction that wrote this message."""
        return self._writers[id]

    def snapshot(self) -> Snapshot:
        """Return what can be seen now. `xmax` follows the last one that ended, so younger ones are not in `xip`."""
        xmax = self._last_ended + 1
        return Snapshot(min(self._running | {xmax}), xmax, frozenset(tx for tx in self._running if tx < xmax))

    def lock(self, name: object, tx: int) -> bool:
        """Hold a name until the transaction ends; return False when another one holds it."""
        return self._locks.setdefault(name, tx) == tx
