"""SQLite store: a file that any number of processes of one machine share."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Claim,
    Cursor,
    Fence,
    ReadResult,
    Settlement,
    StoreFacts,
    StoreFeatures,
    TableStatus,
    Wakeups,
)
from pillarbox.durations import check_duration
from pillarbox.errors import ConfigError, StoreError
from pillarbox.message import TABLES, Message, Names
from pillarbox.stores.migrations import latest_version
from pillarbox.stores.rules import Keep
from pillarbox.stores.sqlite.checks import SqliteFacts, build_findings, read_facts
from pillarbox.stores.sqlite.connection import Database, Synchronous, Transaction, build_statements, get_code
from pillarbox.stores.sqlite.packing import MOST_PACKED, unpack_messages
from pillarbox.stores.sqlite.procedures import build_claim, build_delivery, build_procedures, decode_revisions
from pillarbox.stores.sqlite.sharing import SharedFiles
from pillarbox.stores.sync_sql.batch import cut_batch, find_complete_lanes, select_batch
from pillarbox.stores.sync_sql.database import Transaction as SyncTransaction
from pillarbox.stores.sync_sql.store import SyncSqlStore
from pillarbox.tasks import cancel_all

__all__ = ["SqliteStore"]

_decode_blocked = msgspec.json.Decoder(list[tuple[int, int, int]]).decode
_decode_lanes = msgspec.json.Decoder(list[tuple[int, list[int], int]]).decode
"""Decode what lies ahead of each lane: its ids, and its end."""
_POLL_INTERVAL: Final = 0.005
"""Seconds between two looks for commits of others."""

_LATEST: Final = latest_version("sqlite")


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
        reads_only: bool = False,
        shared: SharedFiles | None = None,
    ) -> None:
        if schema is not None:
            raise ConfigError("SQLite has no schemas: leave the schema out, and set a prefix if names collide.")
        if synchronous not in ("full", "normal"):
            raise ConfigError(f"synchronous is {synchronous!r}: write 'full' or 'normal'.")
        check_duration(busy_timeout, "busy_timeout")
        self._names = Names(prefix=prefix)
        statements = build_statements(self._names)
        database = Database(
            Path(path),
            statements=statements,
            procedures=build_procedures(statements),
            clock=SystemClock() if clock is None else clock,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            shared=shared,
            reads_only=reads_only,
        )
        super().__init__(database, name=self.features.name, keep=keep, reads_only=reads_only)

    def __str__(self) -> str:
        return f"sqlite:///{self._database.path}"

    async def read(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        cursor: Cursor | None,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> ReadResult:
        def work(tx: Transaction) -> ReadResult:
            valid = cursor if cursor is not None and cursor.session is tx.session else Cursor(session=tx.session)
            low = {partition: valid.low.get(partition, 0) for partition in partitions}
            ids, size, ends = _select_fresh(tx, destination, low, limit=limit, max_bytes=max_bytes, skip=valid.skip)
            messages = self._read_messages(tx, ids, size=size) if ids else []
            return ReadResult(messages, _advance(valid, messages, ends), frozenset(ends))

        return await self._database.read(work)

    def _find_blocked(
        self, tx: SyncTransaction, destination: str, keys: Sequence[tuple[int, str]], *, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        if not all(key.isprintable() for _, key in keys):  # JSON may not be able to hold it
            return super()._find_blocked(tx, destination, keys, limit=limit)
        values = {"destination": destination, "keys": list(keys), "limit": limit}
        ((found,),) = tx.query("find_blocked_of_keys", values)
        return _decode_blocked(found)

    def _find_blocked_keys(
        self, tx: SyncTransaction, destination: str, partitions: Sequence[int]
    ) -> Sequence[tuple[int, Any, str]]:
        return tx.query("blocked_keys", {"destination": destination, "partitions": list(partitions)})

    def _read_messages(self, tx: SyncTransaction, ids: Sequence[int], *, size: int | None = None) -> Sequence[Message]:
        """Read messages by id, in id order: packed, if their payloads are small. `size` is their sum, if known."""
        if size is None:
            ((size,),) = tx.query("total_size", {"ids": list(ids)})
        messages = _read_packed(tx, ids) if size <= MOST_PACKED else None
        return super()._read_messages(tx, ids) if messages is None else messages

    @property
    def _runs_procedures(self) -> bool:
        """They are made for the tables of this release. For those of its neighbours statements have variants."""
        return self._schema_version == _LATEST

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        if claim.message_ids and not park and self._runs_procedures:
            rows = await self._database.write_at_once("claim_at_once", build_claim(fence, claim))
            if rows:
                return decode_revisions(rows[0][0])
        return await super().claim(fence, claim, park=park)

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        delivery = build_delivery(fence, settlement, keep=self._keep) if self._runs_procedures else None
        if delivery is not None and await self._database.write_at_once("deliver_at_once", delivery) is not None:
            return ()
        return await super().settle(fence, settlement)

    async def tables(self) -> Sequence[TableStatus]:
        rows = await self._database.query("tables", {"tables": [self._names.bare(table) for table in TABLES]})
        return [TableStatus(name=name, rows=None, bytes=None, dead_rows=None) for (name,) in rows]

    async def facts(self) -> StoreFacts:
        ((version, server, size),) = await self._database.query("facts")
        return StoreFacts(schema_version=version, server=f"SQLite {server}", bytes=size)

    def wakeups(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[Wakeups]:
        database = self._database
        if database.shared is None:
            return _poll_commits(database, wake)
        return database.shared.poller.watch(database.path, lambda: _read_others(database), wake)

    async def inspect(self) -> Sequence[Finding]:
        """Return settings and shortages that could lose or delay messages. Changes nothing."""
        return build_findings(await self.read_facts())

    async def read_facts(self) -> SqliteFacts:
        """Read the settings and sizes that the findings are drawn from."""
        return await read_facts(self._database)


# --- fresh messages ---


def _select_fresh(
    tx: Transaction, destination: str, low: dict[int, int], *, limit: int, max_bytes: int, skip: Sequence[str]
) -> tuple[list[int], int, dict[int, int]]:
    """Go in rounds over the lanes that may have more, until there are enough ids.

    Returns the ids, the most bytes that their payloads have, and the complete lanes. A complete lane comes with the
    highest id in it where keys were skipped, else with 0.
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
    ((size,),) = tx.query("total_size", {"ids": chosen}) if chosen else ((0,),)
    fitting = chosen if size < max_bytes else cut_batch(tx, chosen, max_bytes)
    cut = {lanes[id_] for id_ in chosen[len(fitting) :]}
    return fitting, size, {partition: end for partition, end in complete.items() if partition not in cut}


def _read_ahead(
    tx: Transaction, values: dict[str, object], low: dict[int, int]
) -> tuple[dict[int, list[int]], dict[int, int]]:
    name = "read_ahead_skipping" if values["skip"] else "read_ahead"
    ((found,),) = tx.query(name, values | {"low": msgspec.json.encode(low).decode()})
    lanes = _decode_lanes(found)
    return {partition: ids for partition, ids, _ in lanes}, {partition: end for partition, _, end in lanes}


def _read_packed(tx: SyncTransaction, ids: Sequence[int]) -> Sequence[Message] | None:
    try:
        ((packed, payloads),) = tx.query("read_packed", {"ids": list(ids)})
    except sqlite3.Error as error:
        if get_code(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG):  # JSON cannot hold a value
            return None
        raise
    return unpack_messages(packed, payloads)


def _advance(cursor: Cursor, messages: Sequence[Message], ends: Mapping[int, int]) -> Cursor:
    """Return the marks after a read. It is in id order, so the last of a lane is its mark, or the lane's end."""
    low = {**cursor.low, **{message.partition: message.id for message in messages}}
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
        await cancel_all([task])


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
            version, others = _read_version(connection), await _read_others(self._database)
            self.is_listening = True
            self._wake()  # a commit between the two reads changes neither from now on
            while True:
                await asyncio.sleep(_POLL_INTERVAL)
                if (latest := _read_version(connection)) != version:
                    version, before, others = latest, others, await _read_others(self._database)
                    if others != before or others is None:
                        self._wake()


async def _read_others(database: Database) -> int | None:
    """Return the version that only others change; None while it cannot be read."""
    try:
        return await database.call(_read_version)
    except StoreError:
        return None


def _read_version(connection: sqlite3.Connection) -> int | None:
    try:
        version: int = connection.execute("pragma data_version").fetchone()[0]
    except sqlite3.OperationalError:
        return None
    return version
