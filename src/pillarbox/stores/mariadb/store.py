"""MariaDB and MySQL store, through PyMySQL in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from pillarbox.clock import Clock
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.store import NO_BYTE_LIMIT, Cursor, ReadResult, StoreFeatures, TableStatus, Wakeups
from pillarbox.message import Names, State, Waits
from pillarbox.stores.mariadb.checks import MariadbFacts, build_findings, read_facts
from pillarbox.stores.mariadb.connection import Database, Transaction
from pillarbox.stores.rules import Keep
from pillarbox.stores.statistics import FailureCount
from pillarbox.stores.sync_sql.batch import cut_batch, find_complete_lanes, select_batch
from pillarbox.stores.sync_sql.database import Transaction as SyncTransaction
from pillarbox.stores.sync_sql.rows import decode_ids, messages_from_rows, to_microseconds, to_time
from pillarbox.stores.sync_sql.store import SyncSqlStore
from pillarbox.stores.unreadable import clean_text

__all__ = ["MariadbStore"]

_PARTITION: Final = 3
_WAITS: Final = 18
"""Columns of a row."""
_OLDEST_LOOKED_UP: Final = 100_000
"""The most waiting messages of a destination that are looked at for the oldest: no index has their times."""


class MariadbStore(SyncSqlStore[Database]):
    """`Store` on MariaDB 10.6 or MySQL 8.0, or newer, through PyMySQL in threads.

    `schema` is the database of the tables, where it is not the URL's. `keep` says what stays of a delivered message;
    `clock` is the server's unless given. A server that does not answer within `timeout` is a `StoreUnavailable`.
    """

    features: Final = StoreFeatures(name="mysql", late_rows=True, notifies=False, shared=True)

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        clock: Clock | None = None,
        keep: Keep = "full",
        connections: int = 4,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        database = Database(url, names=Names(schema, prefix), clock=clock, connections=connections, timeout=timeout)
        super().__init__(database, name=self.features.name, keep=keep)

    async def read(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        cursor: Cursor | None,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> ReadResult:
        def work(tx: Transaction) -> tuple[list[Any], Cursor, frozenset[int]]:
            valid = cursor if cursor is not None and cursor.session is tx.session else Cursor(session=tx.session)
            fresh = _FreshRead(tx, destination, valid, partitions)
            ids, complete = fresh.select(limit, max_bytes)
            if ids is None:
                return [], Cursor(session=tx.session), frozenset()
            # Two statements, two snapshots: in between an operator may have let one of them wait.
            rows = [row for row in tx.query("read", {"ids": ids}) if row[_WAITS] is None] if ids else []
            return rows, fresh.advance(ids, rows), complete

        # Rows are decoded here and not in the store's threads, which other calls wait for.
        rows, advanced, complete = await self._database.read_committed(work)
        return ReadResult(messages_from_rows(rows), advanced, complete)

    def _find_purgeable(self, tx: SyncTransaction, values: Mapping[str, object], limit: int) -> Sequence[int]:
        # The index of closed messages is by destination, so each is asked for its oldest.
        rows = [
            (status_at, id_)
            for (destination,) in tx.query("ended_destinations", values)
            for id_, status_at in tx.query("purge_due", {**values, "destination": destination})
        ]
        return [id_ for _, id_ in sorted(rows)[:limit]]

    async def oldest_due(self) -> Mapping[str, datetime]:
        oldest = dict(await super().oldest_due())

        def work(tx: SyncTransaction) -> None:
            # Each destination by itself: many that wait for one must not hide those of another.
            for (destination,) in tx.query("open_destinations"):
                for waits in (Waits.RETRY, Waits.PARKED):
                    values = {"destination": destination, "waits": waits.value, "limit": _OLDEST_LOOKED_UP}
                    ((at,),) = tx.query("oldest_waiting", values)
                    if at is not None:
                        name, since = clean_text(destination), to_time(at)
                        oldest[name] = min(since, oldest.get(name, since))

        await self._database.read(work)
        return oldest

    def _count_failures(self, tx: SyncTransaction, counted_to: int) -> Sequence[FailureCount]:
        # No index has fingerprints, for every delivery would pay for it. So the latest failures are grouped.
        counts: list[FailureCount] = []
        places = {"failed": tx.query("ended_destinations", {"state": State.FAILED.value}),
                  "held": tx.query("held_destinations")}  # fmt: skip
        for name, destinations in places.items():
            for (destination,) in destinations:
                rows = tx.query(f"{name}_groups", {"destination": destination, "limit": counted_to})
                more = sum(row[1] for row in rows) >= counted_to
                counts += [
                    FailureCount(
                        clean_text(destination), fingerprint, int(count), name == "held", more, to_time(first_at),
                        to_time(last_at), int(keys),
                    )
                    for fingerprint, count, first_at, last_at, keys in rows
                ]  # fmt: skip
        return counts

    def _describe_failures(self, tx: SyncTransaction, part: FailureCount) -> FailureCount:
        values = {
            "destination": part.destination, "fingerprint": part.fingerprint,
            "last_at": None if part.last_at is None else to_microseconds(part.last_at),
        }  # fmt: skip
        rows = tx.query("held_latest" if part.held else "failed_latest", values)
        return replace(part, example_id=rows[0][0] if rows else None)

    async def tables(self) -> Sequence[TableStatus]:
        rows = await self._database.query("tables", self._database.table_values())
        return [
            TableStatus(
                name=clean_text(name), rows=None if count is None else int(count),
                bytes=None if size is None else int(size), dead_rows=None,
            )
            for name, count, size in rows
        ]  # fmt: skip

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:  # noqa: ARG002 - never called
        yield _NoNotifications()

    async def inspect(self) -> Sequence[Finding]:
        """Return server settings that could lose or delay messages. Changes nothing."""
        return build_findings(await self.read_facts())

    async def read_facts(self) -> MariadbFacts:
        """Read the settings and tables that the findings are drawn from."""
        return await read_facts(self._database)


class _NoNotifications:
    """MySQL notifies no client of a commit: relays poll."""

    is_listening: Final = False


class _FreshRead:
    """One read of fresh messages, in rounds over the lanes that may have more until there are enough.

    Ids can become visible late, and MySQL tells no client which transactions were in progress. So a read starts at
    the beginning of each lane and passes over the ids that the cursor knows: those returned before and still open.
    """

    def __init__(self, tx: Transaction, destination: str, cursor: Cursor, partitions: Sequence[int]) -> None:
        self._tx = tx
        self._destination = destination
        self._cursor = cursor
        self._partitions = partitions
        snapshot: Any = cursor.snapshot or {}
        self._known = {lane: set(snapshot.get(lane, ())) if lane in cursor.low else set() for lane in partitions}
        self._seen: dict[int, list[int]] = {lane: [] for lane in partitions}

    def select(self, limit: int, max_bytes: int) -> tuple[list[int] | None, frozenset[int]]:
        """Return the ids to read, late ones in addition to the limits, and the lanes that have no more.

        None instead of ids: the late ones are too large for one read, and every lane must start over.
        """
        late: list[int] = []
        fresh: list[int] = []
        complete: set[int] = set()
        lanes = list(self._partitions)
        while lanes and len(fresh) < limit:
            room = limit - len(fresh)
            share = max(1, room // len(lanes))
            ahead, more = self._read_ahead(lanes, 2 * share)
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
        if len(late) > 1 and len(cut_batch(self._tx, late, max_bytes)) < len(late):
            return None, frozenset()
        fitting = cut_batch(self._tx, fresh, max_bytes)
        if dropped := set(fresh[len(fitting) :]):
            cut = {lane for lane in self._partitions if not dropped.isdisjoint(self._known[lane])}
            complete -= cut
            for lane in cut:
                self._known[lane] -= dropped
        return sorted({*late, *fitting}), frozenset(complete)

    def _read_ahead(self, lanes: Sequence[int], count: int) -> tuple[dict[int, list[int]], set[int]]:
        """Return the next unknown ids of each lane, and the lanes that may have more."""
        limits = {lane: count + len(self._known[lane]) for lane in lanes}
        each: list[dict[str, object]] = [
            {"destination": self._destination, "partition": lane, "limit": limits[lane]} for lane in lanes
        ]
        for lane, ids in self._tx.union("read_ahead", each):
            self._seen[lane] = [] if ids is None else decode_ids(f"[{ids}]")
        ahead = {lane: [id_ for id_ in self._seen[lane] if id_ not in self._known[lane]] for lane in lanes}
        return ahead, {lane for lane in lanes if len(self._seen[lane]) >= limits[lane]}

    def advance(self, ids: Sequence[int], rows: Sequence[Any]) -> Cursor:
        """Return the cursor after this read: of each lane, the ids that were returned and were still fresh.

        An id that was known and is gone was settled. Beyond the last id that this read saw, all known ones stay.
        """
        low = dict(self._cursor.low)
        for row in rows:
            low[row[_PARTITION]] = max(row[0], low.get(row[_PARTITION], 0))
        gone = set(ids) - {row[0] for row in rows}
        snapshot = dict(self._cursor.snapshot or {})  # type: ignore[call-overload]
        for lane in self._partitions:
            seen = self._seen[lane]
            last = seen[-1] if seen else 0
            kept = {id_ for id_ in self._known[lane] if id_ > last} | self._known[lane].intersection(seen)
            snapshot[lane] = frozenset(kept - gone)
            low.setdefault(lane, 0)
        return Cursor(low, snapshot, self._cursor.session)
