"""Broken stores: fences, reads, claims and transactions."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any
from uuid import UUID

from pillarbox.contracts.store import Claim, Cursor, Fence, Lane, RecoveredClaim, Settlement
from pillarbox.errors import Fenced
from pillarbox.message import Message, Waits
from pillarbox.stores.memory import MemoryStore, MemoryTransaction, Snapshot
from proof.simulation.checker import Promise
from proof.simulation.store import WatchedStore
from proof.simulation.variants.variant import Changes, Replace

__all__ = ["STORES"]


def no_fence(replace: Replace) -> None:
    """A relay whose lane was taken over may go on writing in it."""
    replace(MemoryStore, "_check_fence", lambda store, fence: None)


def fence_without_epoch(replace: Replace) -> None:
    """The fence asks who owns the lane, not under which epoch."""

    def check(store: MemoryStore, fence: Fence) -> None:
        owners = {partition: store._owner(fence.destination, partition) for partition in fence.epochs}
        if lost := [partition for partition, owner in owners.items() if owner != fence.relay_id]:
            raise Fenced(fence.destination, lost)

    replace(MemoryStore, "_check_fence", check)


class _Pause:
    """Lets the world go on between two statements of one call."""

    def __await__(self) -> Generator[float, None, None]:
        yield 0.25


def unlocked_fence(replace: Replace) -> None:
    """The fence is checked in one step and the outcome written in another; a takeover fits in between."""

    async def settle(store: MemoryStore, fence: Fence, settlement: Settlement) -> Collection[int]:
        store._check_fence(fence)
        await _Pause()
        for row in store._open_in_fence(fence, settlement.delivered):
            store._deliver(row)
        for failure in settlement.failures:
            for row in store._open_in_fence(fence, [failure.message_id]):
                store._record_failure(row, failure, by=fence.relay_id)
        store._trim_claims(fence.relay_id, settlement)
        return ()

    replace(MemoryStore, "settle", settle)


def id_cursor(replace: Replace) -> None:
    """One mark for all lanes, the highest id that was ever read, and nothing below it is looked at again."""

    def moved_on(store: MemoryStore, cursor: Cursor, partitions: Sequence[int], messages: Sequence[Message]) -> Cursor:
        highest = max([*cursor.low.values(), *(message.id for message in messages)], default=0)
        return Cursor(dict.fromkeys(range(64), highest), None, store._session)

    replace(MemoryStore, "_advance", moved_on)
    replace(Cursor, "restart", lambda cursor, partitions, *, whole=(): cursor)


def no_late_rows(replace: Replace) -> None:
    """The low mark of a lane passes over what commits late."""
    replace(MemoryStore, "_is_late", lambda store, row, cursor: False)


def no_late_rows_of_old_transactions(replace: Replace) -> None:
    """Late rows of transactions that were in progress when the mark passed are forgotten."""
    replace(Snapshot, "sees", lambda snapshot, tx: tx < snapshot.xmax)


def no_late_rows_of_young_transactions(replace: Replace) -> None:
    """Late rows of transactions that are younger than the snapshot are forgotten."""
    replace(Snapshot, "sees", lambda snapshot, tx: tx not in snapshot.xip)


def claim_lost_on_crash(replace: Replace) -> None:
    """What a dead relay had in hand stays in its claim, and what is in a claim is not read."""
    waiting = MemoryStore._rows_in_lanes

    def unclaimed(
        store: MemoryStore, destination: str, partitions: Sequence[int], waits: Sequence[Waits | None]
    ) -> Sequence[Message]:
        claimed = store.data.claimed_ids()
        return [row for row in waiting(store, destination, partitions, waits) if row.id not in claimed]

    replace(MemoryStore, "_rows_in_lanes", unclaimed)
    replace(MemoryStore, "_recover_claims", lambda store, relay_id, lanes, claim_number: [])


def claim_forgotten_on_crash(replace: Replace) -> None:
    """A dead relay's claims vanish with it: nobody knows what it died of."""

    def inherit(
        store: MemoryStore, relay_id: UUID, lanes: Sequence[Lane], claim_number: int
    ) -> Sequence[RecoveredClaim]:
        gone = {(lane.destination, lane.partition) for lane in lanes}
        for (holder, number), claim in list(store.data.claims.items()):
            rows = [row for row in store._open_messages(claim) if (row.destination, row.partition) in gone]
            store.data.remove_from_claim(holder, number, {row.id for row in rows})
        return []

    replace(MemoryStore, "_recover_claims", inherit)


def parking_not_written(replace: Replace) -> None:
    """What waits behind an earlier message is put aside and never written down as parked."""
    original_claim = MemoryStore.claim

    async def claim(
        store: MemoryStore, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}
    ) -> Mapping[int, int]:
        return await original_claim(store, fence, claim)

    replace(MemoryStore, "claim", claim)


def dirty_read(replace: Replace) -> None:
    """Messages are visible before their transaction commits."""
    original_insert, original_rollback = MemoryTransaction.insert, MemoryTransaction.rollback

    def insert(transaction: MemoryTransaction, batch: Any) -> None:
        original_insert(transaction, batch)
        for row in transaction._rows:
            transaction._data.open.put(row)

    def rollback(transaction: MemoryTransaction) -> None:
        original_rollback(transaction)
        for row in transaction._rows:
            transaction._data.open.drop(row.id)

    replace(MemoryTransaction, "insert", insert)
    replace(MemoryTransaction, "rollback", rollback)


def archive_deletes_what_changed(replace: Replace) -> None:
    """What an archive has taken is deleted by its id, whatever became of it meanwhile."""

    async def purge_archived(store: MemoryStore, messages: Sequence[Message]) -> int:
        rows = [store.data.history.get(one.id) for one in messages]
        return store._delete_closed([row for row in rows if row is not None])

    replace(MemoryStore, "purge_archived", purge_archived)


def server_not_noticed(replace: Replace) -> None:
    """A store that lost commits is not noticed behind a pooler: its readers keep the positions of the lost server."""
    replace(WatchedStore, "_notice_server", lambda store: False)


def marks_above_the_sequence(replace: Replace) -> None:
    """Marks of lanes are believed where the sequence went back below them."""
    replace(WatchedStore, "_is_above", lambda store, done, tx: False)


STORES: Changes = {
    no_fence: (Promise.FENCE,),
    fence_without_epoch: (Promise.FENCE,),
    unlocked_fence: (Promise.FENCE,),
    id_cursor: (Promise.OUT_OF_ORDER,),
    no_late_rows: (Promise.OUT_OF_ORDER,),
    no_late_rows_of_old_transactions: (Promise.OUT_OF_ORDER,),
    no_late_rows_of_young_transactions: (
        Promise.OUT_OF_ORDER,
        Promise.STUCK,
    ),
    claim_lost_on_crash: (Promise.STUCK,),
    claim_forgotten_on_crash: (Promise.STUCK,),
    parking_not_written: (Promise.STUCK,),
    dirty_read: (Promise.GHOST,),
    archive_deletes_what_changed: (Promise.LOST,),
    server_not_noticed: (
        Promise.OUT_OF_ORDER,
        Promise.STUCK,
    ),
    marks_above_the_sequence: (
        Promise.OUT_OF_ORDER,
        Promise.STUCK,
    ),
}
