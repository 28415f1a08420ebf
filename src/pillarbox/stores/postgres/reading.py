"""Reading lanes: fresh, late, due and blocked messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from pillarbox.message import Message, Waits
from pillarbox.protocols import BlockedKey, Cursor, Reading
from pillarbox.stores.postgres.parts import Parts
from pillarbox.stores.postgres.rows import message_of

__all__ = ["ReadingLanes"]

_NEVER: Final = 2**63 - 1
_LANES_PER_READ: Final = 8
"""A full read spreads over at least so many lanes, so that one lane's backlog does not crowd out other keys."""
_LATE_PER_LIMIT: Final = 10
_LEAST_LATE: Final = 1_000


class Snapshot(msgspec.Struct, frozen=True):
    """What a read could not see: transactions then in progress, and all that began later."""

    in_progress: Sequence[int] = ()
    first_unborn: int = _NEVER

    @classmethod
    def parsed(cls, text: str) -> Snapshot:
        """From PostgreSQL's `xmin:xmax:xip,xip`."""
        _, xmax, running = text.split(":")
        return cls([int(xid) for xid in running.split(",") if xid], int(xmax))


class ReadingLanes(Parts):
    """The reading part of the store."""

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        async with self._database.quick() as connection:
            session = self._database.session
            if cursor is None or cursor.session is not session:
                cursor = Cursor(session=session)
            rows = await connection.fetch(self._sql["read"], *_asked(destination, partitions, cursor, limit))
        return _seen(rows, partitions, cursor, limit=limit)

    async def read_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, skip: Sequence[int] = ()
    ) -> Sequence[Message]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(
                self._sql["read_due"], destination, list(partitions), self._now(), limit, list(skip)
            )
        return [message_of(row) for row in sorted(rows, key=_by_time)[:limit]]

    async def read_key(
        self, destination: str, *, partition: int, key: str, after: int, limit: int
    ) -> Sequence[Message]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["read_key"], destination, partition, key, after, limit)
        return [message_of(row) for row in rows]

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["blocked_keys"], destination, list(partitions))
        return [BlockedKey(partition, key, Waits(front)) for partition, key, front in rows]

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        async with self._database.quick() as connection:
            due: datetime | None = await connection.fetchval(self._sql["next_due"], destination, list(partitions))
        return due


def _asked(destination: str, partitions: Sequence[int], cursor: Cursor, limit: int) -> tuple[object, ...]:
    snapshot = cursor.snapshot if isinstance(cursor.snapshot, Snapshot) else Snapshot()
    low = [cursor.low.get(partition, 0) for partition in partitions]
    return (
        destination, list(partitions), low, _share(partitions, limit), limit,
        snapshot.in_progress, snapshot.first_unborn, max(low, default=0), _most_late(limit), list(cursor.skip),
    )  # fmt: skip


def _share(partitions: Sequence[int], limit: int) -> int:
    """How many messages one lane may fill of a read."""
    return -(-limit // min(_LANES_PER_READ, len(partitions) or 1))


def _most_late(limit: int) -> int:
    return max(_LEAST_LATE, limit * _LATE_PER_LIMIT)


def _seen(rows: Sequence[Any], partitions: Sequence[int], cursor: Cursor, *, limit: int) -> Reading:
    """The first row carries the snapshot and the number of late rows; the others are messages, then lanes' ends."""
    snapshot = Snapshot.parsed(rows[0][2])
    if rows[0][19] >= _most_late(limit):
        # More came late than one read should carry (a huge slow transaction): start over, which passes over nothing.
        return Reading((), Cursor({}, snapshot, cursor.session))
    ends = {row[3]: row[0] for row in rows if row[2] is None} if cursor.skip else {}
    messages = sorted([message_of(row) for row in rows[1:] if row[2] is not None], key=_by_id)
    low = {partition: cursor.low.get(partition, 0) for partition in partitions}
    fresh = dict.fromkeys(partitions, 0)
    for message in messages:
        if message.id > low[message.partition]:
            low[message.partition] = message.id
            fresh[message.partition] += 1
    complete = _complete(fresh, _share(partitions, limit), limit)
    low |= {partition: end for partition, end in ends.items() if partition in complete}
    return Reading(messages, Cursor(low, snapshot, cursor.session), complete)


def _complete(fresh: Mapping[int, int], share: int, limit: int) -> frozenset[int]:
    """The lanes that ended before they, or the whole read, were cut off. Lanes stand in the order they were read."""
    complete = set()
    read = 0
    for partition, count in fresh.items():
        read += count
        if count < share and read < limit:
            complete.add(partition)
    return frozenset(complete)


def _by_time(row: Any) -> tuple[datetime, int]:
    return row[17], row[0]


def _by_id(message: Message) -> int:
    return message.id
