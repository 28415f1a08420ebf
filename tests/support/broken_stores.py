"""Memory stores that each break one promise, to see whether the contract notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from pillarbox.contracts.store import (
    Action,
    BlockedKey,
    BulkResult,
    Claim,
    Cursor,
    DueMark,
    DueMessage,
    FailedOutcome,
    FailureGroup,
    Fence,
    IdleLanes,
    InboxSelection,
    KeyMessages,
    Lane,
    Order,
    QuietLanes,
    ReadResult,
    RecoveredClaim,
    RelayInfo,
    Selection,
    Settlement,
    Tries,
)
from pillarbox.errors import Fenced
from pillarbox.message import Message, State, Waits
from pillarbox.stores.memory import InboxRow, LaneRow, MemoryData, MemoryStore, Snapshot, Transactions
from pillarbox.stores.statistics import build_tries
from pillarbox.testing.samples import sample_relay

Taken = tuple[Sequence[Lane], Sequence[RecoveredClaim]]


# --- fencing


class NoFence(MemoryStore):
    def _check_fence(self, fence: Fence) -> None:
        pass


class FenceWithoutEpoch(MemoryStore):
    def _check_fence(self, fence: Fence) -> None:
        owners = {p: self._owner(fence.destination, p) for p in fence.epochs}
        if lost := [p for p, owner in owners.items() if owner != fence.relay_id]:
            raise Fenced(fence.destination, lost)


class SettlesUnderAnyEpoch(MemoryStore):
    """Checks the epoch when it claims, and only the owner when it settles."""

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        lanes = {partition: self._data.lanes.get((fence.destination, partition)) for partition in fence.epochs}
        epochs = {partition: 0 if lane is None else lane.epoch for partition, lane in lanes.items()}
        return await super().settle(Fence(fence.relay_id, fence.destination, epochs), settlement)


class FenceAfterWriting(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        for row in self._open_in_fence(fence, settlement.delivered):
            self._deliver(row)
        return await super().settle(fence, settlement)


class FenceNamesEveryLane(MemoryStore):
    def _check_fence(self, fence: Fence) -> None:
        try:
            super()._check_fence(fence)
        except Fenced as error:
            raise Fenced(fence.destination, fence.epochs) from error


class FenceWithoutLock(MemoryStore):
    """Checks, lets others in, then writes."""

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        self._check_fence(fence)
        await asyncio.sleep(0)
        for id in settlement.delivered:
            if (row := self._data.open.get(id)) is not None:
                self._deliver(row)
        self._trim_claims(fence.relay_id, settlement)
        return ()


class SettlesOutsideItsLanes(MemoryStore):
    def _open_in_fence(self, fence: Fence, ids: Iterable[int]) -> Sequence[Message]:
        return [row for id in ids if (row := self._data.open.get(id)) is not None]


class SettlesByIdAlone(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        return await super().settle(fence, replace(settlement, message_ids={}))


class SettlesWhatLeftItsClaims(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        await super().settle(fence, replace(settlement, finished=(), touched=()))
        self._trim_claims(fence.relay_id, settlement)
        return ()


class HidesWhatLeftItsClaims(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        await super().settle(fence, settlement)
        return ()


# --- reading


class NoLateRows(MemoryStore):
    def _is_late(self, row: Message, cursor: Cursor) -> bool:
        return False


class PeeksForOthers(MemoryStore):
    def _has_something(self, destination: str, lanes: IdleLanes) -> bool:
        return super()._has_something("orders", lanes)


class PeeksPastLateRows(MemoryStore):
    def _has_something(self, destination: str, lanes: IdleLanes) -> bool:
        return super()._has_something(destination, replace(lanes, cursor=replace(lanes.cursor, snapshot=None)))


class PeeksPastWhatIsDue(MemoryStore):
    def _is_due(self, row: Message) -> bool:
        return False


class PeeksPastEverything(MemoryStore):
    """Moves its marks above what is not written yet, and forgets of which snapshot they are."""

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        quiet = await super().peek(idle)
        low = dict.fromkeys(range(64), 1_000)
        return {name: replace(one, cursor=replace(one.cursor, low=low, snapshot=None)) for name, one in quiet.items()}


class PeeksWithoutSnapshot(MemoryStore):
    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        quiet = await super().peek(idle)
        return {name: replace(one, cursor=replace(one.cursor, snapshot=None)) for name, one in quiet.items()}


class PeeksPastBlockedKeys(MemoryStore):
    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        return {name: replace(one, has_blocked=False) for name, one in (await super().peek(idle)).items()}


class NothingIsEverQuiet(MemoryStore):
    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        return {}


class _WithoutXip(Snapshot, frozen=True):
    def sees(self, tx: int) -> bool:
        return tx < self.xmax


class _WithoutXmax(Snapshot, frozen=True):
    def sees(self, tx: int) -> bool:
        return tx not in self.xip


class _TransactionsWithoutXip(Transactions):
    def snapshot(self) -> Snapshot:
        right = super().snapshot()
        return _WithoutXip(right.xmin, right.xmax, right.xip)


class _TransactionsWithoutXmax(Transactions):
    def snapshot(self) -> Snapshot:
        right = super().snapshot()
        return _WithoutXmax(right.xmin, right.xmax, right.xip)


class NoLateRowsOfOlderTransactions(MemoryData):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = _TransactionsWithoutXip()


class NoLateRowsOfYoungerTransactions(MemoryData):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = _TransactionsWithoutXmax()


class KeepsMarksOfLanesItDidNotRead(MemoryStore):
    def _advance(self, cursor: Cursor, partitions: Sequence[int], messages: Sequence[Message]) -> Cursor:
        return super()._advance(cursor, [*cursor.low], messages)


class ReadsAnyNumberOfBytes(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        return await super().read(destination, partitions=partitions, cursor=cursor, limit=limit)


class ReadsNothingLarge(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        fitting = [one for one in reading.messages if len(one.payload) <= more.get("max_bytes", 2**62)]
        return replace(reading, messages=fitting)


class FindsDueOfAnySize(MemoryStore):
    async def find_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, after: DueMark | None = None, **more: Any
    ) -> Sequence[DueMessage]:
        return await super().find_due(destination, partitions=partitions, limit=limit, after=after)


class ReadsKeysOfAnySize(MemoryStore):
    async def read_keys(
        self, destination: str, keys: Sequence[tuple[int, str]], *, key_limit: int, limit: int, **more: Any
    ) -> Sequence[KeyMessages]:
        return await super().read_keys(destination, keys, key_limit=key_limit, limit=limit)


class CallsCutKeysComplete(MemoryStore):
    async def read_keys(
        self, destination: str, keys: Sequence[tuple[int, str]], *, key_limit: int, limit: int, **more: Any
    ) -> Sequence[KeyMessages]:
        found = await super().read_keys(destination, keys, key_limit=key_limit, limit=limit, **more)
        return [replace(one, complete=True) for one in found]


class SkipsLateRowsToo(MemoryStore):
    def _is_late(self, row: Message, cursor: Cursor) -> bool:
        return row.key not in cursor.skip and super()._is_late(row, cursor)


class MarksOnlyWhatItReturned(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        low = dict((cursor or Cursor()).low) | {message.partition: message.id for message in reading.messages}
        return replace(reading, cursor=replace(reading.cursor, low=low))


class MarksWhatItCutOff(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        ends = {row.partition: row.id for row in self._rows_in_lanes(destination, partitions, (None,))}
        skips = cursor is not None and cursor.skip
        return replace(reading, cursor=replace(reading.cursor, low=ends)) if skips else reading


class SkipsNothing(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        everything = None if cursor is None else cursor.skip_keys([])
        return await super().read(destination, partitions=partitions, cursor=everything, limit=limit, **more)


class SkipsOneKeyAlone(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        one = None if cursor is None else cursor.skip_keys(cursor.skip[:1])
        return await super().read(destination, partitions=partitions, cursor=one, limit=limit, **more)


class SkipsWhatHasNoKey(MemoryStore):
    """As `key not in (...)` does in SQL."""

    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        skips = cursor is not None and cursor.skip
        return replace(reading, messages=[m for m in reading.messages if m.key is not None or not skips])


class SkipsBehindTheLimit(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        cursor = cursor or Cursor()
        reading = await super().read(
            destination, partitions=partitions, cursor=cursor.skip_keys([]), limit=limit, **more
        )
        return replace(reading, messages=[m for m in reading.messages if m.key not in cursor.skip])


class SkipsForEver(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        return replace(reading, cursor=reading.cursor.skip_keys((cursor or Cursor()).skip))


class SkipsByParking(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        for row in self._rows_in_lanes(destination, partitions, (None,)):
            if cursor is not None and row.key in cursor.skip:
                self._data.open.put(replace(row, waits=Waits.PARKED))
        return reading


class SkipsForStrangers(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        mine = None if cursor is None else Cursor(session=self._session, skip=cursor.skip)
        own = cursor is not None and cursor.session is self._session
        return await super().read(
            destination, partitions=partitions, cursor=cursor if own else mine, limit=limit, **more
        )


class MarksWhatWaits(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        ends = {row.partition: row.id for row in self._rows_in_lanes(destination, partitions, (None, *Waits))}
        return replace(reading, cursor=replace(reading.cursor, low={**reading.cursor.low, **ends}))


class LimitsLateRowsToo(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        return ReadResult(reading.messages[:limit], reading.cursor)


class TrustsForeignCursors(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        mine = None if cursor is None else Cursor(cursor.low, cursor.snapshot, self._session)
        return await super().read(destination, partitions=partitions, cursor=mine, limit=limit, **more)


class _ReusingTransactions(Transactions):
    def __init__(self, data: MemoryData) -> None:
        super().__init__()
        self._data = data

    def begin(self) -> int:
        self._last_id = max([0, *self._data.open.ids(), *self._data.history])
        return super().begin()


class ReusesIds(MemoryData):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = _ReusingTransactions(self)


class FindsDueById(MemoryStore):
    async def find_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, after: DueMark | None = None, **more: Any
    ) -> Sequence[DueMessage]:
        due = await super().find_due(destination, partitions=partitions, limit=limit, after=after, **more)
        return sorted(due, key=lambda message: message.id)


class FindsDueFromTheStart(MemoryStore):
    async def find_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, after: DueMark | None = None, **more: Any
    ) -> Sequence[DueMessage]:
        return await super().find_due(destination, partitions=partitions, limit=limit, **more)


class ReadsWhatIsNotDue(MemoryStore):
    def _is_due(self, row: Message) -> bool:
        return row.waits in (Waits.RETRY, Waits.DEFERRED)


class BlockedForgetsHeld(MemoryStore):
    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        rows = self._rows_in_lanes(destination, partitions, (Waits.RETRY, Waits.PARKED))
        keys = {(row.partition, row.key): row.waits for row in rows}
        return [BlockedKey(partition, key, waits) for (partition, key), waits in keys.items() if key and waits]


class BlockedRepeatsKeys(MemoryStore):
    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        rows = self._rows_in_lanes(destination, partitions, (Waits.RETRY, Waits.PARKED, Waits.HELD))
        return [BlockedKey(row.partition, row.key, row.waits) for row in rows if row.key and row.waits]


class BlockedTellsTheLast(MemoryStore):
    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        rows = self._rows_in_lanes(destination, partitions, (Waits.RETRY, Waits.PARKED, Waits.HELD))
        keys = {(row.partition, row.key): row.waits for row in rows}
        return [BlockedKey(partition, key, waits) for (partition, key), waits in keys.items() if key and waits]


class ReadsEveryKey(MemoryStore):
    def _rows_of_key(self, destination: str, partition: int, key: str) -> list[Message]:
        return list(self._rows_in_lanes(destination, [partition], (Waits.RETRY, Waits.PARKED, Waits.HELD)))


class CallsCutLanesComplete(MemoryStore):
    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, **more: Any
    ) -> ReadResult:
        reading = await super().read(destination, partitions=partitions, cursor=cursor, limit=limit, **more)
        return ReadResult(reading.messages, reading.cursor, frozenset(partitions))


# --- claiming and settling


class ClaimNotIdempotent(MemoryStore):
    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        revisions = await super().claim(fence, claim, park=park)
        self._data.claims[fence.relay_id, claim.number] = claim
        return revisions


class ParkDeletes(MemoryStore):
    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        revisions = await super().claim(fence, claim, park=park)
        for id in park:
            self._data.open.drop(id)
        return revisions


class ParksByIdAlone(MemoryStore):
    def _list_parkable(self, fence: Fence, park: Mapping[int, UUID]) -> Sequence[Message]:
        return [row for row in self._open_in_fence(fence, park) if row.waits in (None, Waits.DEFERRED)]


class ParksAgain(MemoryStore):
    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        revisions = await super().claim(fence, claim)
        for row in self._open_in_fence(fence, park):
            self._data.open.put(replace(row, waits=Waits.PARKED, available_at=None, status_at=self._clock.now()))
        return revisions


class ParkForgetsTheError(MemoryStore):
    def _record_failure(self, row: Message, failure: FailedOutcome, *, by: UUID) -> None:
        super()._record_failure(row, failure, by=by)
        if failure.waits is Waits.PARKED and (parked := self._data.open.get(row.id)) is not None:
            self._data.open.put(replace(parked, last_error=failure.error))


class TouchedClaimsAreFinished(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        return await super().settle(fence, replace(settlement, finished=[*settlement.finished, *settlement.touched]))


class SettlesWhatIsClosed(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        unclaimed = await super().settle(fence, settlement)
        for id in settlement.delivered:
            if (row := self._data.history.get(id)) is not None:
                self._data.history[id] = replace(row, state=State.DELIVERED)
        return unclaimed


class TakesAnyTrouble(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        right = [trouble for trouble in settlement.failures if _is_outcome(trouble)]
        return await super().settle(fence, replace(settlement, failures=right))


def _is_outcome(trouble: FailedOutcome) -> bool:
    return trouble.state.is_closed is (trouble.waits is None) and trouble.state is not State.DELIVERED


class HistoryDropsAField(MemoryStore):
    def _deliver(self, row: Message) -> None:
        super()._deliver(replace(row, causation_id=None))


class HistoryForgetsWhenItWasDue(MemoryStore):
    def _deliver(self, row: Message) -> None:
        super()._deliver(replace(row, available_at=None))


class TroubleWithoutJournal(MemoryStore):
    def _record_failure(self, row: Message, trouble: FailedOutcome, *, by: UUID) -> None:
        super()._record_failure(row, trouble, by=by)
        if trouble.action is not None:
            self._data.journal.pop()


# --- membership


class TakeIgnoresTheLease(MemoryStore):
    def _owner(self, destination: str, partition: int) -> UUID | None:
        return None


class TakeWithoutLock(MemoryStore):
    """Looks which lanes are free, lets others in, then takes them."""

    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> Taken:
        live = self._live_relays(lease).keys() - {relay_id}
        free = [partition for partition in partitions if self._owner(destination, partition) not in live]
        await asyncio.sleep(0)
        lanes = [self._take_lane(relay_id, destination, partition) for partition in free]
        return lanes, self._recover_claims(relay_id, lanes, claim_number)


class TakePassesOverLockedClaims(MemoryStore):
    """Recovers nothing of the claims that another takeover recovers at the same moment."""

    _under_way = 0

    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> Taken:
        kind = TakePassesOverLockedClaims
        kind._under_way += 1
        try:
            await asyncio.sleep(0)
            return await super().take(
                relay_id, destination, partitions=partitions, lease=lease, claim_number=claim_number
            )
        finally:
            kind._under_way -= 1

    def _recover_claims(self, relay_id: UUID, lanes: Sequence[Lane], claim_number: int) -> Sequence[RecoveredClaim]:
        if TakePassesOverLockedClaims._under_way > 1:
            return ()
        return super()._recover_claims(relay_id, lanes, claim_number)


class TakeKeepsTheEpoch(MemoryStore):
    def _take_lane(self, relay_id: UUID, destination: str, partition: int) -> Lane:
        epoch = self._data.lanes.get((destination, partition), LaneRow(None, 1)).epoch
        self._data.lanes[destination, partition] = LaneRow(relay_id, epoch)
        return Lane(destination, partition, epoch)


class TakeLeavesTheDead(MemoryStore):
    def _take_lane(self, relay_id: UUID, destination: str, partition: int) -> Lane:
        relays = dict(self._data.relays)
        lane = super()._take_lane(relay_id, destination, partition)
        self._data.relays.update(relays)
        return lane


class InheritsWithoutStrike(MemoryStore):
    def _recover_claims(self, relay_id: UUID, lanes: Sequence[Lane], claim_number: int) -> Sequence[RecoveredClaim]:
        inherited = super()._recover_claims(relay_id, lanes, claim_number)
        return [RecoveredClaim(replace(one.claim, strikes=one.claim.strikes - 1), one.messages) for one in inherited]


class InheritsInOneClaim(MemoryStore):
    def _recover_claims(self, relay_id: UUID, lanes: Sequence[Lane], claim_number: int) -> Sequence[RecoveredClaim]:
        inherited = super()._recover_claims(relay_id, lanes, claim_number)
        rows = sorted((row for one in inherited for row in one.messages), key=lambda row: row.id)
        strikes = max((one.claim.strikes for one in inherited), default=0)
        return [RecoveredClaim(Claim(claim_number, [row.id for row in rows], strikes), rows)] if rows else []


class TakeDropsTheOtherLanes(MemoryStore):
    """Deletes the dead relay's claims with its row."""

    def _recover_claims(self, relay_id: UUID, lanes: Sequence[Lane], claim_number: int) -> Sequence[RecoveredClaim]:
        inherited = super()._recover_claims(relay_id, lanes, claim_number)
        alive = {*self._data.relays, relay_id}
        self._data.claims = {key: claim for key, claim in self._data.claims.items() if key[0] in alive}
        return inherited


class RenewRevivesTheDead(MemoryStore):
    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        relay = self._data.relays.get(relay_id)
        if relay is not None:
            self._data.relays[relay_id] = replace(relay, expires_at=self._clock.now() + lease)
        return await super().renew(relay_id, lease=lease, reachable=reachable, asleep=asleep)


class BelievesAnyExpiry(MemoryStore):
    def _live_relays(self, lease: timedelta) -> dict[UUID, RelayInfo]:
        now = self._clock.now()
        return {id: relay for id, relay in self._data.relays.items() if relay.expires_at and relay.expires_at > now}


class JudgesByTheObserversLease(MemoryStore):
    def _live_relays(self, lease: timedelta) -> dict[UUID, RelayInfo]:
        now, live = self._clock.now(), super()._live_relays(lease)
        return {id: relay for id, relay in live.items() if relay.expires_at and relay.expires_at <= now + lease}


class ReleaseDropsEveryClaim(MemoryStore):
    async def release(self, fence: Fence) -> None:
        await super().release(fence)
        self._data.claims = {key: claim for key, claim in self._data.claims.items() if key[0] != fence.relay_id}


class ReleasesForOthers(MemoryStore):
    async def release(self, fence: Fence) -> None:
        for partition in fence.epochs:
            self._release_lane(fence.relay_id, fence.destination, partition)


class TakesForRelaysThatLeft(MemoryStore):
    async def take(
        self, relay_id: UUID, destination: str, *, partitions: Sequence[int], lease: timedelta, claim_number: int
    ) -> Taken:
        is_gone = relay_id not in self._data.relays
        if is_gone:
            await self.register(sample_relay(relay_id=relay_id), lease=lease)
        taken = await super().take(relay_id, destination, partitions=partitions, lease=lease, claim_number=claim_number)
        if is_gone:
            del self._data.relays[relay_id]
        return taken


class LeaveKeepsClaims(MemoryStore):
    async def leave(self, relay_id: UUID) -> None:
        claims = dict(self._data.claims)
        await super().leave(relay_id)
        self._data.claims = claims


class ForgetDropsEveryClaim(MemoryStore):
    async def forget(self, *, stale_after: timedelta) -> int:
        gone = await super().forget(stale_after=stale_after)
        self._data.claims = {key: claim for key, claim in self._data.claims.items() if key[0] in self._data.relays}
        return gone


class WakesNobody(MemoryData):
    """Says it listens."""

    def __init__(self) -> None:
        super().__init__()
        self.on_commit = _Deaf()


class _Deaf(list[Callable[[], None]]):
    def __iter__(self) -> Iterator[Callable[[], None]]:
        return iter(())


# --- operating and asking


class RedriveKeepsAttempts(MemoryStore):
    def _reopen(self, message: Message, *, to: str | None = None) -> Message:
        return replace(super()._reopen(message, to=to), attempts=message.attempts)


class RedriveAsFresh(MemoryStore):
    def _reopen(self, message: Message, *, to: str | None = None) -> Message:
        return replace(super()._reopen(message, to=to), waits=None, available_at=None)


class RedriveAsNew(MemoryStore):
    def _reopen(self, message: Message, *, to: str | None = None) -> Message:
        return replace(super()._reopen(message, to=to), created_at=self._clock.now())


class RedriveWithoutJournal(MemoryStore):
    def _record_operation(self, message: Message, action: Action, *, by: str, reason: str | None) -> None:
        pass


class RefusesTheLastPage(MemoryStore):
    def _refuse(self, action: Action, selection: Selection) -> BulkResult:
        return super()._refuse(action, replace(selection, after=0))


class DiscardsWhatIsInHand(MemoryStore):
    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        claims, self._data.claims = self._data.claims, {}
        try:
            return await super().discard(selection, by=by, reason=reason, limit=limit)
        finally:
            self._data.claims = claims


class ForwardsNothing(MemoryStore):
    def _record_failure(self, row: Message, failure: FailedOutcome, *, by: UUID) -> None:
        super()._record_failure(row, replace(failure, forward_to=None), by=by)


class ChangesSecretly(MemoryStore):
    """No claim tells that an operator changed the lane."""

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        return dict.fromkeys(await super().claim(fence, claim, park=park), 0)


class ChangesWithoutLock(MemoryStore):
    """Looks at the claims, lets others in, then changes."""

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        claims = dict(self._data.claims)
        await asyncio.sleep(0)
        new = {key: claim for key, claim in self._data.claims.items() if key not in claims}
        self._data.claims = claims
        try:
            return await super().discard(selection, by=by, reason=reason, limit=limit)
        finally:
            self._data.claims |= new


class TakesGoneRelaysForAlive(MemoryStore):
    def _messages(self) -> Iterator[Message]:
        return self._data.messages()


class LeavesChangedMessagesInClaims(MemoryStore):
    """An heir finds a deferred message in a dead relay's claim."""

    async def defer(
        self, selection: Selection, *, until: datetime, by: str, limit: int, reason: str | None = None
    ) -> BulkResult:
        claims = dict(self._data.claims)
        try:
            return await super().defer(selection, until=until, by=by, limit=limit, reason=reason)
        finally:
            self._data.claims = claims


class DefersWithoutBlocking(MemoryStore):
    async def defer(
        self, selection: Selection, *, until: datetime, by: str, limit: int, reason: str | None = None
    ) -> BulkResult:
        moved = await super().defer(selection, until=until, by=by, limit=limit, reason=reason)
        for row in [row for id in list(self._data.open.ids()) if (row := self._data.open.get(id)) is not None]:
            self._data.open.put(replace(row, waits=Waits.DEFERRED if row.waits is Waits.RETRY else row.waits))
        return moved


class PurgesById(MemoryStore):
    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        now = self._clock.now()
        rows = [row for row in self._data.history.values() if row.state is state and row.status_at]
        old = sorted((row for row in rows if row.status_at and now - row.status_at >= older_than), key=attrgetter("id"))
        return await self.purge_archived(old[:limit])


class PurgesWhatWasClosedAgain(MemoryStore):
    async def purge_archived(self, messages: Sequence[Message]) -> int:
        ids = {one.id for one in messages}
        return self._delete_closed([row for row in self._data.history.values() if row.id in ids])


class PurgesWhatIsOfTheSameTime(MemoryStore):
    async def purge_archived(self, messages: Sequence[Message]) -> int:
        known = {(one.id, one.status_at) for one in messages}
        return self._delete_closed([row for row in self._data.history.values() if (row.id, row.status_at) in known])


class PurgesTheWholeJournal(MemoryStore):
    def _delete_closed(self, rows: Sequence[Message]) -> int:
        self._data.journal = [line for line in self._data.journal if line.message_id is None]
        return super()._delete_closed(rows)


class RestoresWithOldTimes(MemoryStore):
    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        restored = await super().restore(messages, by=by)
        times = {(one.message_id, one.destination): one.status_at for one in messages}
        for row in list(self._data.history.values()):
            self._data.put(replace(row, status_at=times.get((row.message_id, row.destination), row.status_at)))
        return restored


class RestoresWhatIsOpen(MemoryStore):
    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        for message in messages:
            self._data.open.drop(message.id)
        return await super().restore(messages, by=by)


class RestoresUnderAnyId(MemoryStore):
    """Takes the ids of another database for its own."""

    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        counter = self._data.transactions
        before, counter._last_id = counter._last_id, 2**50
        try:
            return await super().restore(messages, by=by)
        finally:
            counter._last_id = before


class RestoresSilently(MemoryStore):
    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        restored = await super().restore(messages, by=by)
        self._data.journal = [line for line in self._data.journal if line.action != Action.RESTORED]
        return restored


class RemembersTriesBeforeARedrive(MemoryStore):
    async def tried_for(self, destination: str, *, message_ids: Sequence[UUID]) -> Mapping[UUID, timedelta]:
        now = self._clock.now()
        tries = [one for one in reversed(self._data.journal) if one.action == Action.TRIED]
        return {
            one.message_id: now - one.at
            for one in tries
            if one.message_id is not None and one.message_id in message_ids and one.destination == destination
        }


class CountsTriesThatSpentNothing(MemoryStore):
    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        counted = await super().count_tries(messages)
        attempts = {message.id: message.attempts for message in messages}
        return {id_: replace(one, count=one.count - attempts[id_]) for id_, one in counted.items()}


class CountsEndsAsTries(MemoryStore):
    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        recorded = self._read_tries({message.message_id for message in messages})
        for one in recorded.values():
            one.sent, one.ends = one.sent + one.ends, 0
        return build_tries(messages, recorded)


class PurgesAnyInboxRow(MemoryStore):
    async def purge_inbox(self, *, older_than: timedelta, limit: int, failed: bool = False) -> int:
        self._data.inbox = {key: replace(row, status="done") for key, row in self._data.inbox.items()}
        return await super().purge_inbox(older_than=older_than, limit=limit)


class KeepsStartsForEver(MemoryStore):
    async def purge_inbox(self, *, older_than: timedelta, limit: int, failed: bool = False) -> int:
        started = {key: row for key, row in self._data.inbox.items() if row.status == "started"}
        removed = await super().purge_inbox(older_than=older_than, limit=limit, failed=failed)
        self._data.inbox |= started
        return removed


class RedrivesWhatWasNotKept(MemoryStore):
    def _failed_inbox_rows(
        self, selection: InboxSelection, limit: int, *, with_content: bool = False
    ) -> list[tuple[tuple[str, str, str], InboxRow]]:
        return super()._failed_inbox_rows(selection, limit, with_content=False)


class TakesNoIdsForAll(MemoryStore):
    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        everything = replace(selection, ids=selection.ids or None)
        return await super().find(everything, limit=limit, payloads=payloads, order=order)


class HidesHeld(MemoryStore):
    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        found = await super().find(selection, limit=limit, payloads=payloads, order=order)
        return [replace(row, state=State.PENDING) if row.waits is Waits.HELD else row for row in found]


# --- counters and ages


class CountsNoDeliveries(MemoryStore):
    def _count_deliveries(self, destination: str, rows: Sequence[Message]) -> None:
        pass


class CountsRepeats(MemoryStore):
    def _is_recorded(self, row: Message, failure: FailedOutcome) -> bool:
        return False


class CountsBeforeTheFence(MemoryStore):
    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        for _ in settlement.failures:
            self._count(fence.destination, "retried")
        return await super().settle(fence, settlement)


class MeasuresFromWriting(MemoryData):
    def first_due_at(self, row: Message) -> datetime:
        assert row.created_at is not None
        return row.created_at


class MeasuresFromTheNextAttempt(MemoryData):
    def first_due_at(self, row: Message) -> datetime:
        return row.available_at or super().first_due_at(row)


class KeepsTheAgeOfFailed(MemoryStore):
    def _restart_age(self, message: Message) -> None:
        pass


class KeepsCountersForEver(MemoryStore):
    async def purge_rollups(self, *, older_than: timedelta, limit: int) -> int:
        return 0


class FindsById(MemoryStore):
    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        return await super().find(selection, limit=limit, payloads=payloads, order=Order.ID)


# --- what a dashboard asks


class GroupsWithoutTheHeld(MemoryStore):
    async def failure_groups(
        self, *, destination: str | None = None, limit: int = 100, counted_to: int = 10_000
    ) -> Sequence[FailureGroup]:
        groups = await super().failure_groups(destination=destination, limit=limit, counted_to=counted_to)
        held = sum(row.waits is Waits.HELD for row in self._messages())
        return [replace(group, count=group.count - held) for group in groups]


class DropsReasons(MemoryStore):
    def _record_operation(self, message: Message, action: Action, *, by: str, reason: str | None) -> None:
        super()._record_operation(message, action, by=by, reason=None)


class ProbesForNobody(MemoryStore):
    """It takes any request, also where no relay would follow it."""

    async def probe(self, destination: str, *, by: str) -> bool:
        await super().probe(destination, by=by)
        return True


class CountsReturnsTwice(MemoryStore):
    """A settlement that arrives again, because its answer was lost, is counted again."""

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        before = {key: rollup.returned for key, rollup in self._data.rollups.items()}
        unclaimed = await super().settle(fence, settlement)
        for key, rollup in self._data.rollups.items():
            if settlement.returned and rollup.returned == before.get(key, 0):
                self._data.rollups[key] = replace(rollup, returned=rollup.returned + len(settlement.returned))
        return unclaimed


class AddsUpBacklogs(MemoryStore):
    async def record_backlog(self, relay_id: UUID, *, destinations: Sequence[str], limit: int) -> None:
        before = dict(self._data.rollups)
        await super().record_backlog(relay_id, destinations=destinations, limit=limit)
        for key, rollup in self._data.rollups.items():
            if key in before:
                self._data.rollups[key] = replace(rollup, backlog=before[key].backlog + rollup.backlog)
