"""MariaDB and MySQL store, through PyMySQL in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from pillarbox.clock import Clock
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Cursor,
    ReadResult,
    RelayInfo,
    StoreFacts,
    StoreFeatures,
    TableStatus,
    Wakeups,
)
from pillarbox.durations import check_duration
from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.message import Names, State, Waits
from pillarbox.stores.mariadb.checks import MariadbFacts, build_findings, read_facts
from pillarbox.stores.mariadb.connection import Database, Transaction
from pillarbox.stores.mariadb.reading import FreshRead
from pillarbox.stores.mariadb.waiting import find_blocked, find_due, walk_blocked_keys
from pillarbox.stores.mariadb.wakeups import watch_commits
from pillarbox.stores.rules import Keep
from pillarbox.stores.statistics import FailureCount
from pillarbox.stores.sync_sql.batch import name_keys
from pillarbox.stores.sync_sql.database import Transaction as SyncTransaction
from pillarbox.stores.sync_sql.rows import messages_from_rows, to_microseconds, to_time
from pillarbox.stores.sync_sql.store import SyncSqlStore
from pillarbox.stores.unreadable import clean_text
from pillarbox.stores.urls import format_address

__all__ = ["MariadbStore"]

_WAITS: Final = 18
"""Column of a row."""
_OLDEST_LOOKED_UP: Final = 100_000
"""The most waiting messages of a destination that are looked at for the oldest: no index has their times."""


class MariadbStore(SyncSqlStore[Database]):
    """`Store` on MariaDB 10.6 or MySQL 8.0, or newer, through PyMySQL in threads.

    `schema` is the database of the tables, where it is not the URL's. `keep` says what stays of a delivered message;
    `clock` is the server's unless given. A server that does not answer within `timeout` is a `StoreUnavailable`.
    Without `wakeups` an idle relay only polls.
    """

    features: Final = StoreFeatures(name="mysql", late_rows=True, notifies=True, shared=True, skips_keys=True)

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
        wakeups: bool = True,
        reads_only: bool = False,
    ) -> None:
        check_duration(timeout, "timeout")
        self._url = url
        self._names = Names(schema, prefix)
        self._watches = wakeups
        self._asleep = asyncio.Event()
        self._asleep.set()
        database = Database(url, names=self._names, clock=clock, connections=connections, timeout=timeout)
        super().__init__(database, name=self.features.name, keep=keep, reads_only=reads_only)

    def __str__(self) -> str:
        return format_address(self._url)

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
            fresh = FreshRead(tx, destination, valid, partitions)
            ids, complete = fresh.select(limit, max_bytes)
            if ids is None:
                return [], Cursor(session=tx.session), frozenset()
            # Two statements, two snapshots: in between an operator may have let one of them wait.
            rows = [row for row in tx.query("read", {"ids": ids}) if row[_WAITS] is None] if ids else []
            return rows, fresh.advance(ids, rows), complete

        # Rows are decoded here and not in the store's threads, which other calls wait for.
        rows, advanced, complete = await self._database.read_committed(work)
        return ReadResult(messages_from_rows(rows), advanced, complete)

    def _find_due(self, tx: SyncTransaction, each: Sequence[Mapping[str, object]]) -> Sequence[Any]:
        return find_due(tx, each)

    def _find_blocked(
        self, tx: SyncTransaction, destination: str, keys: Sequence[tuple[int, str]], *, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        return find_blocked(tx, name_keys(destination, keys, limit=limit))

    def _find_blocked_keys(
        self, tx: SyncTransaction, destination: str, partitions: Sequence[int]
    ) -> Sequence[tuple[int, str, str]]:
        return walk_blocked_keys(tx, destination, partitions)

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

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        self._note_sleep(relay.asleep)
        await super().register(relay, lease=lease)

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        self._note_sleep(asleep)
        return await super().renew(relay_id, lease=lease, reachable=reachable, asleep=asleep)

    def _note_sleep(self, asleep: bool) -> None:
        """Have nobody watch for commits while the relay of this store is busy."""
        if asleep:
            self._asleep.set()
        else:
            self._asleep.clear()

    async def facts(self) -> StoreFacts:
        ((version, server, _),) = await self._database.query("facts")
        name = "MariaDB" if "mariadb" in server.lower() else "MySQL"
        facts = StoreFacts(schema_version=version, server=f"{name} {clean_text(server)}")
        try:
            ((seconds,),) = await self._database.query("inspect_transactions")
        except StoreUnavailable:
            raise
        except StoreError:  # it takes the right PROCESS
            return replace(facts, hidden_transactions=True)
        return replace(facts, oldest_transaction=None if seconds is None else timedelta(seconds=int(seconds)))

    @asynccontextmanager
    async def wakeups(self, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
        if not self._watches:
            yield _NoWakeups()
            return
        async with watch_commits(self._url, names=self._names, wake=wake, asleep=self._asleep) as watcher:
            yield watcher

    async def inspect(self) -> Sequence[Finding]:
        """Return server settings that could lose or delay messages. Changes nothing."""
        return build_findings(await self.read_facts())

    async def read_facts(self) -> MariadbFacts:
        """Read the settings and tables that the findings are drawn from."""
        return await read_facts(self._database)


class _NoWakeups:
    """Nobody watches for commits: relays poll."""

    is_listening: Final = False
