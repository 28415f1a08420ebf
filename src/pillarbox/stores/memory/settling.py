"""Claiming and settling: the writes that a fence guards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from pillarbox.errors import Fenced
from pillarbox.journal import action_of
from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Claim, Entry, Fence, Settlement, Trouble
from pillarbox.stores.memory.data import LaneRow, Parts

__all__ = ["Settling"]


class Settling(Parts):
    """The settling part of the store."""

    async def claim(self, fence: Fence, claim: Claim, *, park: Sequence[int] = ()) -> None:
        self._check(fence)
        if claim.message_ids:
            self._data.claims.setdefault((fence.relay_id, claim.number), claim)
            self._data.claimed_at[fence.relay_id, claim.number] = self._clock.now()
        for row in self._inside(fence, park):
            if row.waits in (None, Waits.DEFERRED):
                self._data.open.put(replace(row, waits=Waits.PARKED, available_at=None, status_at=self._clock.now()))

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        for trouble in settlement.troubles:
            trouble.check()
        self._check(fence)
        for row in self._inside(fence, settlement.delivered):
            self._deliver(row)
        for trouble in settlement.troubles:
            for row in self._inside(fence, [trouble.message_id]):
                self._record(row, trouble, by=fence.relay_id)
        self._empty_hands(fence.relay_id, settlement)

    def _check(self, fence: Fence) -> None:
        lanes, none = self._data.lanes, LaneRow()
        lost = [
            partition
            for partition, epoch in fence.epochs.items()
            if lanes.get((fence.destination, partition), none) != LaneRow(fence.relay_id, epoch)
        ]
        if lost:
            raise Fenced(fence.destination, lost)

    def _inside(self, fence: Fence, ids: Iterable[int]) -> Sequence[Message]:
        """Those of the messages that are open and in the lanes that the fence proves."""
        rows = [row for id in ids if (row := self._data.open.get(id)) is not None]
        return [row for row in rows if row.destination == fence.destination and row.partition in fence.epochs]

    def _deliver(self, row: Message) -> None:
        closed = replace(row, state=State.DELIVERED, waits=None, status_at=self._clock.now())
        if self._keep == "off":
            self._data.open.drop(row.id)
        elif self._keep == "no-payload":
            self._data.keep(replace(closed, payload=b"", payload_kept=False))
        else:
            self._data.keep(closed)

    def _record(self, row: Message, trouble: Trouble, *, by: UUID) -> None:
        now = self._clock.now()
        self._data.keep(_troubled(row, trouble, now))
        action = action_of(trouble)
        if action is not None:
            self._data.journal.append(
                Entry(
                    message_id=row.message_id,
                    destination=row.destination,
                    action=action,
                    at=now,
                    by=str(by),
                    attempt=trouble.attempts,
                    error=trouble.error,
                    detail=trouble.detail,
                )
            )

    def _empty_hands(self, relay_id: UUID, settlement: Settlement) -> None:
        settled = {*settlement.delivered, *(t.message_id for t in settlement.troubles), *settlement.returned}
        for number in settlement.touched:
            self._data.take_out(relay_id, number, settled)
        for number in settlement.finished:
            self._data.claims.pop((relay_id, number), None)


def _troubled(row: Message, trouble: Trouble, now: datetime) -> Message:
    """The row after its trouble. What closes keeps the time it was due; what is held or parked has none."""
    return replace(
        row,
        state=trouble.state,
        waits=trouble.waits,
        attempts=trouble.attempts,
        last_error=row.last_error if trouble.error is None else trouble.error,
        available_at=row.available_at if trouble.state.is_closed else _next_attempt(trouble, now),
        status_at=now,
    )


def _next_attempt(trouble: Trouble, now: datetime) -> datetime | None:
    return now + (trouble.delay or timedelta(0)) if trouble.waits in (Waits.RETRY, Waits.DEFERRED) else None
