"""Reading fresh messages, and due ones.

MySQL shows no snapshot, so nobody can tell what becomes visible late. Each lane is read from its start, passing over
what was read before and is still there: that is what is in the reader's hands, and the index alone tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pillarbox.message import Message
from pillarbox.protocols import Cursor, Reading
from pillarbox.stores.mariadb.connection import Database, Transaction
from pillarbox.stores.stepwise.choosing import chosen_of, read_out
from pillarbox.stores.stepwise.rows import messages_of
from pillarbox.stores.stepwise.waiting import ReadingWaiting

__all__ = ["ReadingLanes"]

_PARTITION: Final = 3
_WAITS: Final = 18
_ids: Final = msgspec.json.Decoder(list[int]).decode


class ReadingLanes(ReadingWaiting):
    """The reading part of the store."""

    _database: Database

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        def work(tx: Transaction) -> tuple[list[Any], Cursor, frozenset[int]]:
            looking = _Looking(tx, destination, _valid(cursor, tx.session), partitions)
            ids, complete = looking.choose(limit)
            # Two statements, two snapshots: in between a person may have let one of them wait.
            rows = [row for row in tx.rows("read", {"ids": ids}) if row[_WAITS] is None] if ids else []
            return rows, looking.advanced(ids, rows), complete

        # Messages are made here and not in the store's thread, which others wait for.
        rows, advanced, complete = await self._database.quickly(work)
        return Reading(messages_of(rows), advanced, complete)

    async def read_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, skip: Sequence[int] = ()
    ) -> Sequence[Message]:
        def work(tx: Transaction) -> tuple[list[int], list[Any]]:
            each: list[dict[str, object]] = [
                {
                    "destination": destination,
                    "partition": lane,
                    "waits": waits,
                    "limit": limit,
                    "skip": list(skip) or [0],
                }
                for lane in partitions
                for waits in ("deferred", "retry")
            ]
            due = sorted(tx.united("due_ahead", each), key=lambda row: (row[1], row[0])) if each else []
            ids = [id_ for id_, _ in due[:limit]]
            return ids, tx.rows("read", {"ids": ids}) if ids else []

        ids, rows = await self._database.reading(work)
        by_id = {message.id: message for message in messages_of(rows)}
        return [by_id[id_] for id_ in ids]


class _Looking:
    """One look at the lanes of a destination, in rounds over those that may have more until there are enough."""

    def __init__(self, tx: Transaction, destination: str, cursor: Cursor, partitions: Sequence[int]) -> None:
        self._tx = tx
        self._destination = destination
        self._cursor = cursor
        self._partitions = partitions
        snapshot: Any = cursor.snapshot or {}
        self._known = {lane: set(snapshot.get(lane, ())) if lane in cursor.low else set() for lane in partitions}
        self._there: dict[int, list[int]] = {lane: [] for lane in partitions}

    def choose(self, limit: int) -> tuple[list[int], frozenset[int]]:
        """The ids to read, late ones first, and the lanes that have no more."""
        late: list[int] = []
        fresh: list[int] = []
        complete: set[int] = set()
        lanes = list(self._partitions)
        while lanes and len(fresh) < limit:
            room = limit - len(fresh)
            share = max(1, room // len(lanes))
            ahead, more = self._ahead(lanes, 2 * share)
            behind = {id_ for lane, ids in ahead.items() for id_ in ids if id_ <= self._cursor.low.get(lane, 0)}
            new = {lane: [id_ for id_ in ids if id_ not in behind] for lane, ids in ahead.items()}
            chosen = chosen_of(list(new.values()), floor=max(1, share // 2), room=room)
            late += behind
            fresh += chosen
            taken = {*behind, *chosen}
            for lane, ids in ahead.items():
                self._known[lane].update(taken.intersection(ids))
            complete |= read_out(set(lanes) - more, new, set(chosen))
            lanes = [lane for lane in lanes if lane in more]
        return sorted({*late, *fresh}), frozenset(complete)

    def _ahead(self, lanes: Sequence[int], count: int) -> tuple[dict[int, list[int]], set[int]]:
        """The next ids of each lane that are not known, and the lanes that may have more."""
        limits = {lane: count + len(self._known[lane]) for lane in lanes}
        each: list[dict[str, object]] = [
            {"destination": self._destination, "partition": lane, "limit": limits[lane]} for lane in lanes
        ]
        for lane, ids in self._tx.united("read_ahead", each):
            self._there[lane] = [] if ids is None else _ids(f"[{ids}]")
        ahead = {lane: [id_ for id_ in self._there[lane] if id_ not in self._known[lane]] for lane in lanes}
        return ahead, {lane for lane in lanes if len(self._there[lane]) >= limits[lane]}

    def advanced(self, ids: Sequence[int], rows: Sequence[Any]) -> Cursor:
        """Remembers what is in hand: of each lane the ids that were returned, and were fresh when it was looked at.

        What was known and is gone was settled; beyond the last look nothing is known.
        """
        low = dict(self._cursor.low)
        for row in rows:
            low[row[_PARTITION]] = max(row[0], low.get(row[_PARTITION], 0))
        gone = set(ids) - {row[0] for row in rows}
        snapshot = dict(self._cursor.snapshot or {})  # type: ignore[call-overload]
        for lane in self._partitions:
            there = self._there[lane]
            last = there[-1] if there else 0
            kept = {id_ for id_ in self._known[lane] if id_ > last} | self._known[lane].intersection(there)
            snapshot[lane] = frozenset(kept - gone)
            low.setdefault(lane, 0)
        return Cursor(low, snapshot, self._cursor.session)


def _valid(cursor: Cursor | None, session: object) -> Cursor:
    return cursor if cursor is not None and cursor.session is session else Cursor(session=session)
