"""SQLite store: a file that any number of processes of one machine share."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.store import NO_BYTE_LIMIT, Cursor, ReadResult, StoreFeatures, TableStatus, Wakeups
from pillarbox.errors import ConfigError, StoreError
from pillarbox.message import TABLES, Names
from pillarbox.stores.rules import Keep
from pillarbox.stores.sqlite.checks import SqliteFacts, build_findings, read_facts
from pillarbox.stores.sqlite.connection import Database, Synchronous, Transaction, build_statements
from pillarbox.stores.sync_sql.batch import cut_batch, find_complete_lanes, select_batch
from pillarbox.stores.sync_sql.rows import decode_ids, messages_from_rows
from pillarbox.stores.sync_sql.store import SyncSqlStore

__all__ = ["SqliteStore"]

_PARTITION: Final = 3
"""Column of a row."""
_POLL_INTERVAL: Final = 0.005
"""Seconds between two looks for commits of others."""


class SqliteStore(SyncSqlStore[Database]):
    """`Store` in an SQLite file, which any number of processes of one machine share.

    `clock` is the store's clock. `keep` says what stays of a delivered message. With `synchronous="normal"` no
    commit waits for the disk: a power cut may take back the last ones, though never damage the file. A writer
    that holds the file longer than `busy_timeout` is a `StoreUnavailable`.
    """

    features: Final = StoreFeatures(name="sqlite", late_rows=False, notifies=False, shared=True, skips_keys=True)

    def __init__(
        self,
        path: str | Path,
        *,
        schema: None = None,
        prefix: str = "pillarbox_",
        clock: Clock | None = None,
        keep: Keep = "full",
        synchronous: Synchronous = "full",
        busy_timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        if schema is not None:
            raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")
        if synchronous not in ("full", "normal"):
            raise ConfigError(f"synchronous is {synchronous!r}: write 'full' or 'normal'.")
        self._names = Names(prefix=prefix)
        database = Database(
            Path(path),
            statements=build_statements(self._names),
            clock=SystemClock() if clock is None else clock,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
        )
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
            low = {partition: valid.low.get(partition, 0) for partition in partitions}
            ids, ends = _select_fresh(tx, destination, low, limit=limit, max_bytes=max_bytes, skip=valid.skip)
            rows = tx.query("read", {"ids": ids}) if ids else []
            return rows, _advance(valid, rows, ends), frozenset(ends)

        # Rows are decoded here and not in the store's one thread, which every other call waits for.
        rows, advanced, complete = await self._database.read(work)
        return ReadResult(messages_from_rows(rows), advanced, complete)

    async def tables(self) -> Sequence[TableStatus]:
        rows = await self._database.query("tables", {"tables": [self._names.bare(table) for table in TABLES]})
        return [TableStatus(name=name, rows=None, bytes=None, dead_rows=None) for (name,) in rows]

    def wakeups(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[Wakeups]:
        return _poll_commits(self._database, wake)

    async def inspect(self) -> Sequence[Finding]:
        """Return settings and shortages that could lose or delay messages. Changes nothing."""
        return build_findings(await self.read_facts())

    async def read_facts(self) -> SqliteFacts:
        """Read the settings and sizes that the findings are drawn from."""
        return await read_facts(self._database)


# --- fresh messages ---


def _select_fresh(
    tx: Transaction, destination: str, low: dict[int, int], *, limit: int, max_bytes: int, skip: Sequence[str]
) -> tuple[list[int], dict[int, int]]:
    """Go in rounds over the lanes that may have more, until there are enough ids; return them and the complete lanes.

    A complete lane comes with the highest id in it where keys were skipped, else with 0.
    """
    chosen: list[int] = []
    complete: dict[int, int] = {}
    lanes: dict[int, int] = {}
    while low and len(chosen) < limit:
        room = limit - len(chosen)
        share = max(1, room // len(low))
        ahead, ends = _read_ahead(tx, {"destination": destination, "limit": 2 * share, "skip": list(skip)}, low)
        batch = select_batch(list(ahead.values()), floor=max(1, share // 2), limit=room)
        lanes |= {id_: partition for partition, ids in ahead.items() for id_ in ids}
        low = {partition: ids[-1] for partition, ids in ahead.items() if len(ids) == 2 * share}
        complete |= {p: ends[p] for p in find_complete_lanes(ahead.keys() - low.keys(), ahead, set(batch))}
        chosen += batch
    fitting = cut_batch(tx, chosen, max_bytes)
    cut = {lanes[id_] for id_ in chosen[len(fitting) :]}
    return fitting, {partition: end for partition, end in complete.items() if partition not in cut}


def _read_ahead(
    tx: Transaction, values: dict[str, object], low: dict[int, int]
) -> tuple[dict[int, list[int]], dict[int, int]]:
    name = "read_ahead_skipping" if values["skip"] else "read_ahead"
    rows = tx.query(name, values | {"low": msgspec.json.encode(low).decode()})
    ahead = {partition: decode_ids(ids) for partition, ids, _ in rows}
    return ahead, {partition: end or 0 for partition, _, end in rows}


def _advance(cursor: Cursor, rows: Sequence[Any], ends: Mapping[int, int]) -> Cursor:
    """Return the marks after a read. Rows come in id order, so the last of a lane is its mark, or the lane's end."""
    low = {**cursor.low, **{row[_PARTITION]: row[0] for row in rows}}
    low |= {partition: end for partition, end in ends.items() if end > low.get(partition, 0)}
    return Cursor(low, None, cursor.session)


# --- wake-ups ---


@asynccontextmanager
async def _poll_commits(database: Database, wake: Callable[[], None]) -> AsyncIterator[Wakeups]:
    """Call `wake` soon after another connection committed, while the block runs. SQLite itself notifies nobody."""
    poller = _Poller(database, wake)
    task = asyncio.create_task(poller.run())
    try:
        yield poller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Poller:
    """Reads the file's `data_version` on a connection of its own, which never reads or writes a row.

    That version counts the commits of the store too. The version on the store's own connection counts those of
    others only, and is read when something changed: a busy relay must not wake itself.
    """

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self.is_listening = False

    async def run(self) -> None:
        with closing(sqlite3.connect(self._database.path, isolation_level=None, timeout=0)) as connection:
            version, others = _read_version(connection), await self._read_others()
            self.is_listening = True
            self._wake()  # a commit between the two reads changes neither from now on
            while True:
                await asyncio.sleep(_POLL_INTERVAL)
                if (latest := _read_version(connection)) != version:
                    version, before, others = latest, others, await self._read_others()
                    if others != before or others is None:
                        self._wake()

    async def _read_others(self) -> int | None:
        """Return the version that only others change; None while it cannot be read."""
        try:
            return await self._database.call(_read_version)
        except StoreError:
            return None


def _read_version(connection: sqlite3.Connection) -> int | None:
    try:
        version: int = connection.execute("pragma data_version").fetchone()[0]
    except sqlite3.OperationalError:
        return None
    return version
