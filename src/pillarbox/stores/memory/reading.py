"""Reading lanes: fresh, late, due and blocked messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from pillarbox.message import Message, Waits
from pillarbox.protocols import BlockedKey, Cursor, Reading
from pillarbox.stores.memory.data import Parts
from pillarbox.stores.memory.visibility import Snapshot

__all__ = ["ReadingLanes"]

_BY_ID: Final = attrgetter("id")
_BY_TIME: Final = attrgetter("available_at", "id")
_TIMED: Final = (Waits.DEFERRED, Waits.RETRY)
_BLOCKING: Final = (Waits.RETRY, Waits.PARKED, Waits.HELD)


class ReadingLanes(Parts):
    """The reading part of the store."""

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        if cursor is None or cursor.session is not self._session:
            cursor = Cursor(session=self._session)
        lanes = [self._waiting(destination, [partition], (None,)) for partition in partitions]
        above = [[row for row in lane if row.id > cursor.low.get(row.partition, 0)] for lane in lanes]
        fresh = [[row for row in lane if row.key not in cursor.skip] for lane in above]
        late = [row for lane in lanes for row in lane if self._is_late(row, cursor)]
        messages = sorted([*_in_turns(fresh, limit), *late], key=_BY_ID)
        moved_on = self._moved_on(cursor, partitions, messages)
        complete = _complete(partitions, fresh, moved_on)
        ends = {lane: rows[-1].id for lane, rows in zip(partitions, above, strict=True) if rows and lane in complete}
        return Reading(messages, replace(moved_on, low={**moved_on.low, **ends}), complete)

    def _is_late(self, row: Message, cursor: Cursor) -> bool:
        """Below the mark, and invisible when the mark passed it."""
        passed = row.id <= cursor.low.get(row.partition, 0)
        snapshot = cursor.snapshot
        return passed and isinstance(snapshot, Snapshot) and not snapshot.sees(self._data.transactions.wrote(row.id))

    def _moved_on(self, cursor: Cursor, partitions: Sequence[int], messages: Sequence[Message]) -> Cursor:
        """Marks for the lanes just read and no others: the snapshot is true of these alone."""
        low = {partition: cursor.low[partition] for partition in partitions if partition in cursor.low}
        for message in messages:
            low[message.partition] = max(message.id, low.get(message.partition, 0))
        return Cursor(low, self._data.transactions.snapshot(), self._session)

    async def read_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, skip: Sequence[int] = ()
    ) -> Sequence[Message]:
        now, skipped = self._clock.now(), set(skip)
        due = [row for row in self._waiting(destination, partitions, _TIMED) if _due_at(row) <= now]
        return sorted((row for row in due if row.id not in skipped), key=_BY_TIME)[:limit]

    async def read_key(
        self, destination: str, *, partition: int, key: str, after: int, limit: int
    ) -> Sequence[Message]:
        blocked = self._waiting(destination, [partition], _BLOCKING)
        return [row for row in blocked if row.key == key and row.id > after][:limit]

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        fronts: dict[tuple[int, str], Waits] = {}
        for row in self._waiting(destination, partitions, _BLOCKING):
            if row.key is not None and row.waits is not None:
                fronts.setdefault((row.partition, row.key), row.waits)
        return [BlockedKey(partition, key, front) for (partition, key), front in fronts.items()]

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        return min((_due_at(row) for row in self._waiting(destination, partitions, _TIMED)), default=None)

    def _waiting(self, destination: str, partitions: Sequence[int], waits: Sequence[Waits | None]) -> Sequence[Message]:
        rows = self._data.open
        return [row for lane in partitions for row in rows.in_lane(destination, lane) if row.waits in waits]


def _in_turns(lanes: Sequence[Sequence[Message]], limit: int) -> Iterator[Message]:
    """The first of each lane, then the second of each, until there are enough."""
    taken = (row for turn in zip_longest(*lanes) for row in turn if row is not None)
    return (row for row, _ in zip(taken, range(limit), strict=False))


def _complete(partitions: Sequence[int], fresh: Sequence[Sequence[Message]], cursor: Cursor) -> frozenset[int]:
    """The lanes whose last fresh message is not above their mark."""
    ends = zip(partitions, fresh, strict=True)
    return frozenset(lane for lane, rows in ends if not rows or rows[-1].id <= cursor.low.get(lane, 0))


def _due_at(row: Message) -> datetime:
    assert row.available_at is not None  # noqa: S101 - deferred and retrying rows have their time
    return row.available_at
