"""Reading without snapshots: each read begins at the start of its lanes, and passes over what it returned before.

Ids can become visible late, and not every server tells which transactions were in progress. So the cursor keeps the
ids that were returned and are still open, as on MariaDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from pillarbox.contracts.store import Cursor, HistoryPartition, IdleLanes, QuietLanes, ReadResult
from pillarbox.message import State
from pillarbox.stores.postgres.connection import Database, Now
from pillarbox.stores.postgres.driver import Connection
from pillarbox.stores.postgres.rows import message_from_row
from pillarbox.stores.rules import cut_sizes
from pillarbox.stores.sql import Statements
from pillarbox.stores.sync_sql.batch import find_complete_lanes, select_batch

__all__ = ["NoNotifications", "NoPartitions", "PortableReading"]

_PARTITION: Final = 3


class PortableReading:
    """Reads and looks at lanes by plain statements."""

    def __init__(self, database: Database, sql: Statements, *, now: Now) -> None:
        self._database = database
        self._sql = sql
        self._now = now

    async def read(
        self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int, max_bytes: int
    ) -> ReadResult:
        """Return fresh messages of the lanes, late ones in addition to the limits."""
        async with self._database.quick() as connection:
            session = self._database.session
            if cursor is None or cursor.session is not session:
                cursor = Cursor(session=session)
            fresh = _FreshRead(connection, self._sql, destination, cursor, partitions)
            ids, complete = await fresh.select(limit, max_bytes)
            if ids is None:
                return ReadResult((), Cursor(session=session))
            rows = sorted(await connection.fetch(self._sql["read_ids"], ids), key=lambda row: row[0]) if ids else []
        return ReadResult([message_from_row(row) for row in rows], fresh.advance(ids, rows), complete)

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        """Return the destinations that have nothing fresh or due. Whoever has none in hand has read all of them."""
        if not idle:
            return {}
        lanes = [(name, partition) for name, each in idle.items() for partition in each.partitions]
        async with self._database.quick() as connection:
            found = await connection.fetch(
                self._sql["peek"], [name for name, _ in lanes], [lane for _, lane in lanes], list(idle), self._now()
            )
        has_something = {name for kind, name in found if kind != "blocked"}
        has_blocked = {name for kind, name in found if kind == "blocked"}
        return {
            name: QuietLanes(lanes.cursor, has_blocked=name in has_blocked)
            for name, lanes in idle.items()
            if name not in has_something
        }


class _FreshRead:
    """One read of fresh messages, in rounds over the lanes that may have more until there are enough."""

    def __init__(
        self, connection: Connection, sql: Statements, destination: str, cursor: Cursor, partitions: Sequence[int]
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._destination = destination
        self._cursor = cursor
        self._partitions = partitions
        snapshot: Any = cursor.snapshot or {}
        self._known = {lane: set(snapshot.get(lane, ())) if lane in cursor.low else set() for lane in partitions}
        self._seen: dict[int, list[int]] = {lane: [] for lane in partitions}
        self._sizes: dict[int, int] = {}

    async def select(self, limit: int, max_bytes: int) -> tuple[list[int] | None, frozenset[int]]:
        """Return the ids to read, and the lanes that have no more.

        None instead of ids: the late ones are too large for one read, and every lane must start over.
        """
        late: list[int] = []
        fresh: list[int] = []
        complete: set[int] = set()
        lanes = list(self._partitions)
        while lanes and len(fresh) < limit:
            room = limit - len(fresh)
            share = max(1, room // len(lanes))
            ahead, more = await self._read_ahead(lanes, 2 * share)
            behind = {id_ for lane, ids in ahead.items() for id_ in ids if id_ <= self._cursor.low.get(lane, 0)}
            new = {lane: [id_ for id_ in ids if id_ not in behind] for lane, ids in ahead.items()}
            batch = select_batch(list(new.values()), floor=max(1, share // 2), limit=room)
            late += behind
            fresh += batch
            taken = {*behind, *batch}
            for lane, ids in ahead.items():
                self._known[lane].update(taken.intersection(ids))
            complete |= find_complete_lanes(set(lanes) - more, new, set(batch))
            lanes = [lane for lane in lanes if lane in more]
        if len(late) > 1 and len(self._cut(late, max_bytes)) < len(late):
            return None, frozenset()
        fitting = self._cut(fresh, max_bytes)
        if dropped := set(fresh[len(fitting) :]):
            cut = {lane for lane in self._partitions if not dropped.isdisjoint(self._known[lane])}
            complete -= cut
            for lane in cut:
                self._known[lane] -= dropped
        return sorted({*late, *fitting}), frozenset(complete)

    def _cut(self, ids: Sequence[int], max_bytes: int) -> list[int]:
        return cut_sizes([(id_, self._sizes[id_]) for id_ in ids], max_bytes)

    async def _read_ahead(self, lanes: Sequence[int], count: int) -> tuple[dict[int, list[int]], set[int]]:
        """Return the next unknown ids of each lane, and the lanes that may have more."""
        limit = count + max(len(self._known[lane]) for lane in lanes)
        for lane in lanes:
            self._seen[lane] = []
        rows = await self._connection.fetch(self._sql["read_ahead"], self._destination, list(lanes), limit)
        for lane, id_, size in sorted(rows):
            self._seen[lane].append(id_)
            self._sizes[id_] = size
        ahead = {lane: [id_ for id_ in self._seen[lane] if id_ not in self._known[lane]] for lane in lanes}
        return ahead, {lane for lane in lanes if len(self._seen[lane]) >= limit}

    def advance(self, ids: Sequence[int], rows: Sequence[Any]) -> Cursor:
        """Return the cursor after this read: of each lane, the ids that were returned and were still fresh.

        An id that was known and is gone was settled. Beyond the last id that this read saw, all known ones stay.
        """
        low = dict(self._cursor.low)
        for row in rows:
            low[row[_PARTITION]] = max(row[0], low.get(row[_PARTITION], 0))
        gone = set(ids) - {row[0] for row in rows}
        snapshot: Any = dict(self._cursor.snapshot or {})  # type: ignore[call-overload]
        for lane in self._partitions:
            seen = self._seen[lane]
            last = seen[-1] if seen else 0
            kept = {id_ for id_ in self._known[lane] if id_ > last} | self._known[lane].intersection(seen)
            snapshot[lane] = frozenset(kept - gone)
            low.setdefault(lane, 0)
        return Cursor(low, snapshot, self._cursor.session)


class NoNotifications:
    """Not every server notifies a client of a commit: relays poll."""

    is_listening: Final = False


class NoPartitions:
    """History is one table: nothing is added ahead of ids, and rows are deleted one by one."""

    async def extend(self) -> int:
        return 0

    async def find_expired(self, ages: Mapping[State, timedelta], *, after: int | None) -> HistoryPartition | None:  # noqa: ARG002 - as `Partitions`
        return None

    async def drop(self, partition: HistoryPartition) -> int:  # noqa: ARG002 - as `Partitions`
        return 0

    async def list_spared(self, older_than: timedelta) -> list[tuple[int, int]]:  # noqa: ARG002 - as `Partitions`
        return []
