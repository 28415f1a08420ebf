"""PostgreSQL store: what relays and operators do. `queries` answers what operators and monitors ask."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.clock import Clock
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.handoff import HandoffMark, PruneStep, ServerLog, SlotStatus
from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Action,
    BlockedKey,
    BlockedKeyCount,
    BulkResult,
    Claim,
    Count,
    Cursor,
    DestinationRequest,
    DueMark,
    DueMessage,
    FailureGroup,
    Fence,
    HistoryPartition,
    IdleLanes,
    InboxActivity,
    InboxCount,
    InboxFailure,
    InboxRecord,
    InboxSelection,
    JournalEntry,
    KeyMessages,
    Lane,
    LaneBacklog,
    OpenClaim,
    Order,
    Pause,
    PhaseCount,
    QuietLanes,
    ReadResult,
    RecoveredClaim,
    Registry,
    RelayInfo,
    Rollup,
    Selection,
    Settlement,
    StoreFacts,
    StoreFeatures,
    TableStatus,
    Tries,
    Wakeups,
)
from pillarbox.durations import FOREVER, LONGEST, check_duration
from pillarbox.errors import ConfigError, Fenced, StoreRefused
from pillarbox.message import TABLES, Message, Names, State, Waits
from pillarbox.stores.compatibility import FIRST_DECLARED, SchemaVersion
from pillarbox.stores.migrations import check_release, load_release
from pillarbox.stores.postgres.checks import PostgresFacts, build_findings, read_facts
from pillarbox.stores.postgres.connection import Database, Now, Pooler
from pillarbox.stores.postgres.dialect import PostgresDialect, build_statements, find_lack
from pillarbox.stores.postgres.driver import Connection, DriverName
from pillarbox.stores.postgres.handoff import HandoffLog
from pillarbox.stores.postgres.handoff import build_findings as build_handoff_findings
from pillarbox.stores.postgres.history import Purge
from pillarbox.stores.postgres.notifications import listen
from pillarbox.stores.postgres.partitions import Partitions
from pillarbox.stores.postgres.portable.reading import NoNotifications, NoPartitions, PortableReading
from pillarbox.stores.postgres.queries import Parameters, PostgresQueries, inbox_parameters
from pillarbox.stores.postgres.rows import message_from_row
from pillarbox.stores.postgres.sharing import SharedDatabase
from pillarbox.stores.rules import (
    Keep,
    check_keep,
    choose_ids,
    compute_fingerprint,
    describe_closing,
    eligible_states,
    explain_empty_batch,
    find_fingerprint,
    list_possible_ids,
    list_purged_statuses,
    select_missing,
)
from pillarbox.stores.sql import build_conditions
from pillarbox.stores.unreadable import NO_TIME, decode_labels, is_key_of_lane
from pillarbox.stores.urls import format_address
from pillarbox.stores.waiting import DueSearch, split_by_key

__all__ = ["PostgresStore", "Snapshot", "build_small_read"]

_NEVER: Final = 2**63 - 1
log: Final = logging.getLogger("pillarbox.store")
_MARKS_ABOVE: Final = (
    "%d lanes of %s are marked as done with beyond ids that were drawn later: the sequence went back, by a restore or "
    "a failover that lost commits. The marks are removed; run `pillarbox schema verify`."
)
_SQL_ASCII: Final = (
    "The database of the store has the encoding SQL_ASCII, in which PostgreSQL does not know what its texts mean; "
    "create a database with ENCODING 'UTF8' TEMPLATE template0, and restore a dump of this one into it."
)
_LANES_PER_READ: Final = 8
"""A full read spreads over at least so many lanes, so that one lane's backlog does not crowd out other keys."""
_LEAST_DONE: Final = 1_000
"""A lane's mark is written when it wins at least so many ids: to walk fewer dead rows costs nothing."""
_LANES_ASKED_AT_ONCE: Final = 32
"""Of so many lanes the blocked keys are read in two statements."""
_WAITS: Final[Mapping[str, Waits]] = {waits.value: waits for waits in Waits}
_COUNTED_READS: Final = 64
"""After a large payload so many reads count bytes as they go: where one is, more are likely."""
_LATE_PER_LIMIT: Final = 10
_MIN_LATE_LIMIT: Final = 1_000


class PostgresStore:
    """`Store` on PostgreSQL 13 or newer, through asyncpg or psycopg.

    `clock` replaces the server's clock, for tests. `keep` is what stays of a delivered message. With
    `pooler="transaction"` nothing depends on a session: no prepared statement, no setting outside a transaction. With
    `reads_only` nothing is written, so tables will do that this release may only read. `dialect="portable"` uses
    nothing that only PostgreSQL itself has: see docs/distributed-sql.md.
    With `shared` it borrows the connections that all stores of this database share, in place of its own.
    """

    features = StoreFeatures(name="postgresql", late_rows=True, notifies=True, shared=True, skips_keys=True)

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        clock: Clock | None = None,
        keep: Keep = "full",
        pooler: Pooler = "none",
        driver: DriverName | None = None,
        connections: int = 4,
        timeout: timedelta = timedelta(seconds=30),
        reads_only: bool = False,
        dialect: PostgresDialect = "native",
        shared: SharedDatabase | None = None,
    ) -> None:
        check_keep(keep)
        check_duration(timeout, "timeout")
        self._shared = shared
        self._url = url
        self._reads_only = reads_only
        self._schema_version: int | None = None
        """Version of the tables that the statements are chosen for."""
        self._names = Names(schema, prefix)
        self._keep = keep
        self._now: Now = _server_now if clock is None else clock.now
        is_portable = dialect == "portable"
        self._sql = build_statements(self._names, dialect=dialect)
        self._settle_renumbered = self._small_read = ""
        self._use_version(None)
        self._database = Database(
            url,
            driver=driver,
            pooler=pooler,
            connections=connections,
            timeout=timeout,
            dialect=dialect,
            shared=shared,
        )
        self._reading: PortableReading | None = None
        if is_portable:
            self.features = StoreFeatures(name="postgresql", late_rows=True, notifies=False, shared=True)
            self._reading = PortableReading(self._database, self._sql, now=self._now)
        self._queries = PostgresQueries(self._database, self._sql, now=self._now)
        self._learned = _Learned(None)
        self._counted_reads = 0
        """How many of the next reads count bytes as they go."""
        self._partitions = NoPartitions() if is_portable else Partitions(self._database, self._sql, read_now=self.now)
        self._purge = Purge(self._database, self._sql, now=self._now, partitions=self._partitions)
        self._log = HandoffLog(self._database, self._sql, names=self._names)

    # --- lifecycle ---

    def __str__(self) -> str:
        return format_address(self._url)

    async def open(self) -> None:
        await self._database.open()
        try:
            async with self._database.quick() as connection:
                if await connection.fetchval(self._sql["is_sql_ascii"]):
                    raise ConfigError(_SQL_ASCII)
                if self._reading is None and (lack := await find_lack(connection, self._names)) is not None:
                    raise ConfigError(lack)
            await self.check_schema()
        except BaseException:
            await self._database.close()
            raise

    async def check_schema(self) -> int:
        async with self._database.quick() as connection:
            found = SchemaVersion.build(await connection.fetchval(self._sql["schema_version"]))
            if found.version >= FIRST_DECLARED:
                found = SchemaVersion.build(*await connection.fetchrow(self._sql["schema_declared"]))
        check_release(found, load_release("postgresql"), writes=not self._reads_only)
        if found.version != self._schema_version:
            self._use_version(found.version)
        return found.version

    def _use_version(self, version: int | None) -> None:
        """Run the statements for tables of this version from now on."""
        self._sql.use_version(version)
        self._settle_renumbered = self._sql["settle"].replace("/* id */ id", self._sql["replaced_id"])
        self._small_read = build_small_read(self._sql["read"])
        self._schema_version = version

    async def close(self) -> None:
        await self._database.close()

    async def now(self) -> datetime:
        if (now := self._now()) is not None:
            return now
        async with self._database.quick() as connection:
            server_now: datetime = await connection.fetchval("select statement_timestamp()")
        return server_now

    def wakeups(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[Wakeups]:
        if self._reading is not None:
            return nullcontext(NoNotifications())
        table = self._names.table("outbox")
        if self._shared is None:
            return listen(self._database.driver, self._url, table=table, wake=wake)

        async def find_oid() -> str:
            async with self._database.quick() as connection:
                return str(await connection.fetchval("select $1::regclass::oid", table))

        return self._shared.listener.listen(find_oid, wake)

    # --- reading ---

    async def read(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        cursor: Cursor | None,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> ReadResult:
        if self._reading is not None:
            return await self._reading.read(
                destination, partitions=partitions, cursor=cursor, limit=limit, max_bytes=max_bytes
            )
        async with self._database.quick() as connection:
            session = self._database.session
            if cursor is None or cursor.session is not session:
                cursor = Cursor(session=session)
            if cold := [lane for lane in partitions if lane not in cursor.low and lane not in cursor.whole]:
                cursor = msgspec.structs.replace(
                    cursor, low={**cursor.low, **await self._fetch_done(connection, destination, cold)}
                )
            rows = await self._fetch_messages(
                connection, *_read_parameters(destination, partitions, cursor, limit), max_bytes
            )
        result = _build_read_result(rows, partitions, cursor, limit=limit, max_bytes=max_bytes)
        went_back = isinstance(cursor.snapshot, Snapshot) and cursor.snapshot.is_ahead_of(result.cursor.snapshot)
        self._database.note_server(rows[0][15], went_back=went_back)
        if self._database.session is not session:
            # The marks are of a server that had more, or other, messages: what stands below them was not read.
            return ReadResult((), Cursor({}, None, self._database.session))
        learned = self._recall()
        learned.highest = max([learned.highest, *(message.id for message in result.messages[-1:])])
        if result.complete - cursor.low.keys() and not any(result.cursor.low.values()):
            # All that were read have no message. Without a mark every further read would walk their dead rows again.
            return await self._mark_empty_lanes(result)
        return result

    async def _fetch_messages(self, connection: Connection, *parameters: object) -> Sequence[Any]:
        """Return the rows of a read. Most payloads are small: only where one is not, bytes are counted row by row."""
        if not self._counted_reads:
            rows = await connection.fetch(self._small_read, *parameters)
            if all(row[8] is not None or row[2] is None for row in rows[1:]):
                return rows
            self._counted_reads = _COUNTED_READS
        self._counted_reads -= 1
        return await connection.fetch(self._sql["read"], *parameters)

    async def mark_lanes(self, relay_id: UUID) -> None:
        if self._reading is not None:  # without snapshots nobody knows that no earlier id will come
            return
        table = self._names.table("outbox")
        async with self._database.quick() as connection:
            learned = self._recall()
            last = learned.highest  # before the statement: others read meanwhile, and of later transactions
            # After the id was read, and not the end of a snapshot: transactions that run may be above that.
            tx, started_at, last_id = await connection.fetchrow(self._sql["inspect_server"], table)
            done, tx = learned.done, int(tx)
            went_back = (done is not None and tx < done.tx) or (last_id is not None and last_id < last)
            self._database.note_server(started_at, went_back=went_back)
            if self._recall() is not learned:
                await self._remove_marks(connection)
                return
            if done is not None:
                lanes = await connection.fetch(
                    self._sql["lanes_find_done"], relay_id, done.last_id, done.tx, _LEAST_DONE
                )
                if lanes:
                    columns = (list(column) for column in zip(*lanes, strict=True))
                    await connection.execute(self._sql["lanes_mark_done"], *columns, done.tx, started_at, table)
        learned.done = _Done(last, tx)

    def _recall(self) -> _Learned:
        """Return what was learned from the server that answers now: nothing yet, if it is another one than before."""
        if self._learned.session is not self._database.session:
            self._learned = _Learned(self._database.session)
        return self._learned

    async def _fetch_done(
        self, connection: Connection, destination: str, partitions: Sequence[int]
    ) -> Mapping[int, int]:
        """Return where the first read of each lane may begin. Marks that cannot be true are removed."""
        rows = await connection.fetch(self._sql["lanes_done"], destination, partitions, self._names.table("outbox"))
        if any(is_above for *_, is_above in rows):
            await self._remove_marks(connection)
        return {partition: done_to for partition, done_to, is_above in rows if not is_above}

    async def _remove_marks(self, connection: Connection) -> None:
        """Remove the marks that the sequence went back below, of whoever's lanes."""
        removed = await connection.fetch(self._sql["lanes_unmark"], self._names.table("outbox"))
        if removed:
            log.warning(_MARKS_ABOVE, len(removed), ", ".join(sorted({row[0] for row in removed})))

    async def _mark_empty_lanes(self, result: ReadResult) -> ReadResult:
        async with self._database.quick() as connection:
            last = await connection.fetchval(self._sql["last_id"], self._names.table("outbox"))
        cursor = result.cursor
        low = {lane: (last or 0) if lane in result.complete else low for lane, low in cursor.low.items()}
        return ReadResult(result.messages, Cursor(low, cursor.snapshot, cursor.session), result.complete)

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        if self._reading is not None:
            return await self._reading.peek(idle)
        async with self._database.quick() as connection:
            session = self._database.session
            known = {
                name: (lanes, lanes.cursor.snapshot)
                for name, lanes in idle.items()
                if lanes.cursor.session is session and isinstance(lanes.cursor.snapshot, Snapshot)
            }
            if not known:
                return {}
            before = [snapshot for _, snapshot in known.values()]
            marks = [
                (name, partition, lanes.cursor.low.get(partition, 0))
                for name, (lanes, _) in known.items()
                for partition in lanes.partitions
            ]
            rows = await connection.fetch(
                self._sql["peek"], *(list(column) for column in zip(*marks, strict=True)),
                sorted({xid for snapshot in before for xid in snapshot.in_progress}),
                min(snapshot.first_unborn for snapshot in before), max(low for *_, low in marks), _MIN_LATE_LIMIT,
                list(known), self._now(),
            )  # fmt: skip
        (_, text, started_at, late), *found = rows
        snapshot = Snapshot.parse(text)
        self._database.note_server(started_at, went_back=any(one.is_ahead_of(snapshot) for one in before))
        if self._database.session is not session or late >= _MIN_LATE_LIMIT:
            return {}
        has_something = {name for kind, name, *_ in found if kind != "blocked"}
        has_blocked = {name for kind, name, *_ in found if kind == "blocked"}
        return {
            name: QuietLanes(
                Cursor({lane: lanes.cursor.low.get(lane, 0) for lane in lanes.partitions}, snapshot, session),
                has_blocked=name in has_blocked,
            )
            for name, (lanes, _) in known.items()
            if name not in has_something
        }

    async def find_due(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        limit: int,
        after: DueMark | None = None,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[DueMessage]:
        search = DueSearch(partitions, limit=limit, after=after)
        async with self._database.quick() as connection:
            while lanes := search.next_lanes():
                times = [None if mark is None else mark.available_at for mark in lanes.values()]
                ids = [0 if mark is None else mark.id for mark in lanes.values()]
                # Each lane comes in its own order. A sort in SQL would cost the pinned plan: see `connection.py`.
                rows = await connection.fetch(
                    self._sql["find_due"], destination, list(lanes), times, ids, search.share, self._now()
                )
                search.add(lanes, rows)
        return search.choose(max_bytes)

    async def read_due(self, destination: str, ids: Sequence[int]) -> Sequence[Message]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["read_due"], list(ids), destination, self._now())
        return [message_from_row(row) for row in sorted(rows, key=_by_row_id)]

    async def read_keys(
        self,
        destination: str,
        keys: Sequence[tuple[int, str]],
        *,
        key_limit: int,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[KeyMessages]:
        partitions, names = [partition for partition, _ in keys], [key for _, key in keys]
        async with self._database.quick() as connection:
            rows = await connection.fetch(
                self._sql["read_keys"], destination, partitions, names, key_limit, limit, max_bytes
            )
        found = [((row[3], row[7]), message_from_row(row)) for row in rows]
        return split_by_key(keys, found, key_limit=key_limit, limit=limit, max_bytes=max_bytes)

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        # Nothing is sent of a lane that was taken over until this is known: of many lanes it is asked side by side.
        middle = len(partitions) // 2 if len(partitions) >= _LANES_ASKED_AT_ONCE else 0
        parts = [part for part in (partitions[:middle], partitions[middle:]) if part]
        found = await asyncio.gather(*(self._read_blocked(destination, part) for part in parts))
        return [key for keys in found for key in keys]

    async def _read_blocked(self, destination: str, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["blocked_keys"], destination, list(partitions))
        return [
            BlockedKey(partition, key, _WAITS[front], astray=not is_key_of_lane(key, partition))
            for partition, key, front in rows
        ]

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        async with self._database.quick() as connection:
            due: datetime | None = await connection.fetchval(self._sql["next_due"], destination, list(partitions))
        return due

    async def tried_for(self, destination: str, *, message_ids: Sequence[UUID]) -> Mapping[UUID, timedelta]:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["tries"], list(message_ids), destination, self._now())
        return {row[0]: max(row[6] - row[5], timedelta(0)) for row in rows if row[5] is not None}

    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        return await self._queries.count_tries(messages)

    # --- claims ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        parked = sorted(park)
        async with self._database.quick() as connection:
            passed = await connection.fetch(
                self._sql["claim"], *_fence_parameters(fence), claim.number, list(claim.message_ids), claim.strikes,
                parked, self._now(), [park[message_id] for message_id in parked],
            )  # fmt: skip
        _check_fence(fence, passed)
        return dict(passed)

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        for outcome in settlement.failures:
            outcome.check()
        try:
            return await self._record(fence, settlement)
        except StoreRefused:
            # History may have one of the ids already. Looking for each would cost every settlement an index probe.
            return await self._record(fence, settlement, renumbers=True)

    async def _record(self, fence: Fence, settlement: Settlement, *, renumbers: bool = False) -> Collection[int]:
        # A lost delivery costs a repeat, so it need not wait for the disk. A lost failure would lose the reason.
        if not settlement.failures:
            async with self._database.quick() as connection:
                return await self._settle(connection, fence, settlement, renumbers=renumbers)
        unclaimed: list[int] = []
        async with self._database.durable() as connection:
            if settlement.claims:
                # Before they are settled, and with a snapshot of its own: behind the locks nothing of it changes.
                await connection.fetch(self._sql["lanes_share"], fence.destination, sorted(fence.epochs))
                rows = await connection.fetch(self._sql["claimed_ids"], fence.relay_id, list(settlement.claims))
                claimed = {row[0] for row in rows}
                unclaimed, settlement = settlement.list_unclaimed(claimed), settlement.narrow(claimed)
            await self._settle(connection, fence, settlement, renumbers=renumbers)
            if settlement.failures:
                await connection.execute(
                    self._sql["record_failures"], fence.relay_id, fence.destination, list(fence.epochs),
                    *_failure_columns(settlement, await self._read_errors(connection, settlement)), self._now(),
                )  # fmt: skip
        return unclaimed

    async def _read_errors(self, connection: Connection, settlement: Settlement) -> Mapping[int, str]:
        """Return the last errors of messages that fail without one: those stay, and say to which group they belong."""
        ids = [
            one.message_id for one in settlement.failures if one.error is None and compute_fingerprint(one) is not None
        ]
        return dict(await connection.fetch(self._sql["last_errors"], ids)) if ids else {}

    async def _settle(
        self, connection: Connection, fence: Fence, settlement: Settlement, *, renumbers: bool
    ) -> Collection[int]:
        taken_out = [*settlement.delivered, *(one.message_id for one in settlement.failures), *settlement.returned]
        delivered, sent = sorted(settlement.delivered), settlement.message_ids
        passed = await connection.fetch(
            self._settle_renumbered if renumbers else self._sql["settle"], *_fence_parameters(fence), delivered,
            list(settlement.finished), list(settlement.touched), taken_out if settlement.touched else [], self._keep,
            self._now(), [sent.get(message_id) for message_id in delivered] if sent else [],
            list(settlement.returned),
        )  # fmt: skip
        _check_fence(fence, passed)
        return (passed[0][1] or ()) if passed else ()

    # --- membership ---

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        await self._database.prepare_heartbeat(lease=lease)
        async with self._database.durable() as connection:
            await connection.execute(
                self._sql["register"], relay.relay_id, relay.service, relay.host, relay.pid, relay.version,
                list(relay.destinations), list(relay.reachable), relay.asleep, lease, self._now(),
                msgspec.json.encode(relay.labels).decode() if relay.labels else None,
            )  # fmt: skip

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        async with self._database.quick(heartbeat=True) as connection:
            renewed = await connection.fetchval(
                self._sql["renew"], relay_id, lease, list(reachable), asleep, self._now()
            )
        return renewed is not None

    async def registry(self, *, lease: timedelta) -> Registry:
        async with self._database.quick() as connection:
            rows = await connection.fetch(self._sql["registry"], self._now(), lease)
        return _registry_from_rows(rows)

    async def registry_digest(self, *, lease: timedelta) -> object:
        async with self._database.quick() as connection:
            return tuple(await connection.fetchrow(self._sql["registry_digest"], self._now(), lease))

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        # In a transaction of its own: a relay that freezes after it must not let others wait for the new rows.
        async with self._database.quick() as connection:
            await connection.execute(self._sql["lanes_create"], destination, list(partitions))
        async with self._database.durable() as connection:
            if await connection.fetchval(self._sql["relay_pin"], relay_id) is None:
                return (), ()
            owners = dict(await connection.fetch(self._sql["lanes_lock"], destination, list(partitions)))
            dead = await self._find_dead(connection, owners.values(), relay_id, lease=lease)
            free = [p for p, owner in owners.items() if owner is None or owner in dead or owner == relay_id]
            lanes = [
                Lane(destination, partition, epoch, revision, owners[partition] if owners[partition] in dead else None)
                for partition, epoch, revision in await connection.fetch(
                    self._sql["lanes_take"], relay_id, destination, free
                )
            ]
            holders = [*dead, relay_id]
            if dead:
                await connection.fetch(self._sql["claims_queue"], sorted(dead), destination)
            claims = dict(
                await connection.fetch(
                    self._sql["claims_recover"], relay_id, holders, destination, free, claim_number, self._now()
                )
            )
            if claims:
                await connection.execute(self._sql["claims_hand_over"], relay_id, list(claims), holders)
            await connection.execute(self._sql["relays_forget"], list(dead), timedelta(0), lease, self._now())
        return lanes, await self._read_recovered(relay_id, claims, destination, free) if claims else ()

    async def _find_dead(
        self, connection: Connection, owners: Iterable[UUID | None], relay_id: UUID, *, lease: timedelta
    ) -> set[UUID]:
        others = {owner for owner in owners if owner is not None and owner != relay_id}
        live = await connection.fetch(self._sql["relays_live"], list(others), lease, self._now())
        return others - {row[0] for row in live}

    async def _read_recovered(
        self, relay_id: UUID, claims: Mapping[int, int], destination: str, partitions: Sequence[int]
    ) -> Sequence[RecoveredClaim]:
        """Read the messages of claims that were taken over, given as numbers and strikes. No lock is held any more."""
        async with self._database.quick() as connection:
            rows = await connection.fetch(
                self._sql["claims_read"], relay_id, list(claims), destination, list(partitions)
            )
        messages: dict[int, list[Message]] = defaultdict(list)
        for row in sorted(rows, key=_by_row_id):
            messages[row[22]].append(message_from_row(row))
        return [
            RecoveredClaim(Claim(number, [message.id for message in found], claims[number] + 1), found)
            for number, found in sorted(messages.items())
        ]

    async def release(self, fence: Fence) -> None:
        async with self._database.durable() as connection:
            released = [row[0] for row in await connection.fetch(self._sql["lanes_release"], *_fence_parameters(fence))]
            rows = await connection.fetch(self._sql["claims_in_lanes"], fence.relay_id, fence.destination, released)
            await connection.execute(self._sql["claims_trim"], fence.relay_id, [row[0] for row in rows])

    async def leave(self, relay_id: UUID) -> None:
        async with self._database.durable() as connection:
            await connection.execute(self._sql["relay_leave"], relay_id)
            await connection.execute(self._sql["lanes_leave"], relay_id)

    async def forget(self, *, stale_after: timedelta) -> int:
        async with self._database.durable() as connection:
            status = await connection.execute(self._sql["relays_forget"], None, stale_after, None, self._now())
            await connection.execute(self._sql["claims_forget"])
        return int(status.rsplit(" ", 1)[1])  # such as `DELETE 3`

    # --- queries ---

    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        return await self._queries.find(selection, limit=limit, payloads=payloads, order=order)

    async def count(self, selection: Selection, *, limit: int | None = None) -> int:
        return await self._queries.count(selection, limit=limit)

    async def find_key(
        self, destination: str, *, partition: int, key: str, after: int = 0, limit: int = 10
    ) -> Sequence[int]:
        return await self._queries.find_key(destination, partition=partition, key=key, after=after, limit=limit)

    async def count_phases(self, *, limit: int = 100_000) -> Sequence[PhaseCount]:
        return await self._queries.count_phases(limit=limit)

    async def lane_backlogs(self, destination: str, *, limit: int = 1_000) -> Sequence[LaneBacklog]:
        return await self._queries.lane_backlogs(destination, limit=limit)

    async def inbox_activity(self, *, window: timedelta, limit: int = 10_000) -> Sequence[InboxActivity]:
        return await self._queries.inbox_activity(window=window, limit=limit)

    async def facts(self) -> StoreFacts:
        return await self._queries.facts()

    async def journal(
        self,
        *,
        message_id: UUID | None = None,
        destination: str | None = None,
        by: str | None = None,
        actions: Sequence[str] | None = None,
        messages: bool = True,
        before: int | None = None,
        limit: int = 100,
    ) -> Sequence[JournalEntry]:
        return await self._queries.journal(
            message_id=message_id, destination=destination, by=by, actions=actions, messages=messages, before=before,
            limit=limit,
        )  # fmt: skip

    async def failure_groups(
        self, *, destination: str | None = None, limit: int = 100, counted_to: int = 10_000
    ) -> Sequence[FailureGroup]:
        return await self._queries.failure_groups(destination, limit=limit, counted_to=counted_to)

    async def count_blocked(
        self, destination: str, *, limit: int = 50, counted_to: int = 1_000
    ) -> Sequence[BlockedKeyCount]:
        return await self._queries.count_blocked(destination, limit=limit, counted_to=counted_to)

    async def inbox_records(self, message_ids: Sequence[str]) -> Sequence[InboxRecord]:
        return await self._queries.inbox_records(message_ids)

    async def tables(self) -> Sequence[TableStatus]:
        return await self._queries.tables({self._names.bare(table): self._names.table(table) for table in TABLES})

    async def requests(self) -> Sequence[DestinationRequest]:
        return await self._queries.requests()

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        return await self._queries.inbox_failures(selection, limit=limit)

    async def inbox_counts(self, *, limit: int = 100_000) -> Sequence[InboxCount]:
        return await self._queries.inbox_counts(limit=limit)

    async def pauses(self) -> Sequence[Pause]:
        return await self._queries.pauses()

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        return await self._queries.counts(limit=limit)

    async def oldest_due(self) -> Mapping[str, datetime]:
        return await self._queries.oldest_due()

    async def rollups(self, *, window: timedelta, step: timedelta = timedelta(minutes=1)) -> Sequence[Rollup]:
        return await self._queries.rollups(window=window, step=step)

    async def claims(
        self, *, older_than: timedelta, limit: int = 50, relay_id: UUID | None = None
    ) -> Sequence[OpenClaim]:
        return await self._queries.claims(older_than=older_than, limit=limit, relay_id=relay_id)

    async def inspect(self) -> Sequence[Finding]:
        return build_findings(await self.read_facts())

    async def read_facts(self) -> PostgresFacts:
        """Read the settings, sessions and rights that the findings are drawn from."""
        return await read_facts(self._database, self._sql, names=self._names)

    # --- operations on messages ---

    async def redrive(
        self, selection: Selection, *, by: str, limit: int, to: str | None = None, reason: str | None = None
    ) -> BulkResult:
        states = eligible_states(Action.REDRIVEN, selection, to=to)
        return await self._reopen(Action.REDRIVEN, selection, states, by=by, limit=limit, to=to, reason=reason)

    async def replay(self, selection: Selection, *, by: str, limit: int, reason: str | None = None) -> BulkResult:
        states = eligible_states(Action.REPLAYED, selection)
        return await self._reopen(Action.REPLAYED, selection, states, by=by, limit=limit, reason=reason)

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        states = eligible_states(Action.DISCARDED, selection)
        values = (_to_values(states), reason, by, limit)
        return await self._run_batch("discard", Action.DISCARDED, selection, *values, open_states=states, limit=limit)

    async def defer(
        self, selection: Selection, *, until: datetime, by: str, limit: int, reason: str | None = None
    ) -> BulkResult:
        # The statement knows pending messages only: where they are not wanted, it may take none.
        states = eligible_states(Action.DEFERRED, selection)
        values = (until, by, limit if states else 0, reason)
        return await self._run_batch("defer", Action.DEFERRED, selection, *values, open_states=states, limit=limit)

    async def _reopen(
        self,
        action: Action,
        selection: Selection,
        states: Sequence[State],
        *,
        by: str,
        limit: int,
        to: str | None = None,
        reason: str | None = None,
    ) -> BulkResult:
        values = (_to_values(states), State.FAILED in states, to, limit, action.value, by, reason)
        return await self._run_batch("reopen", action, selection, *values)

    async def _run_batch(
        self,
        statement: str,
        action: Action,
        selection: Selection,
        *values: object,
        open_states: Sequence[State] | None = None,
        limit: int = 0,
    ) -> BulkResult:
        """Change the first messages of a selection. With `open_states` it changes open ones, whose lanes it locks."""
        async with self._database.unpinned() as connection:
            able: list[int] = []
            if open_states is not None:
                parked = action is not Action.DEFERRED
                able = await self._lock_lanes(connection, selection, open_states, limit=limit, parked=parked)
                values = (*values, self._now(), able)
            else:
                values = (*values, self._now())
            parameters = Parameters(values)
            where = build_conditions(selection, parameters)
            count, last_id, bare = await connection.fetchrow(self._sql.fill(statement, where), *parameters.values)
        if last_id is not None:
            return BulkResult(count, last_id, bare)
        if able and selection.ids is None and selection.message_ids is None:
            return BulkResult(0, max(able))  # relays claimed all of them meanwhile, and there may be more
        named = Selection(ids=selection.ids, message_ids=selection.message_ids)
        found = await self._queries.find(named, limit=1, payloads=False)
        return explain_empty_batch(selection, [(message.id, message.state) for message in found], action)

    async def _lock_lanes(
        self, connection: Connection, selection: Selection, states: Sequence[State], *, limit: int, parked: bool
    ) -> list[int]:
        """Lock the lanes of open messages to the end of the transaction; return those that no live relay has."""
        parameters = Parameters((_to_values(states), limit, self._now(), parked))
        where = build_conditions(selection, parameters)
        able: list[int] = await connection.fetchval(self._sql.fill("lanes_change", where), *parameters.values)
        if able:
            await connection.execute(self._sql["claims_free"], able, self._now())
        return able

    # --- retention ---

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        if older_than == FOREVER:
            return 0
        return await self._purge.run_once(state, older_than=older_than, limit=limit)

    async def purge_archived(self, messages: Sequence[Message]) -> int:
        known = [one for one in messages if one.status_at is not None]
        values = ([one.id for one in known], _to_values([one.state for one in known]), [one.status_at for one in known])
        return await self._delete("purge_archived", *values)

    async def extend_history(self) -> int:
        return await self._partitions.extend()

    async def find_expired_partition(
        self, ages: Mapping[State, timedelta], *, after: int | None = None
    ) -> HistoryPartition | None:
        return await self._partitions.find_expired(ages, after=after)

    async def drop_partition(self, partition: HistoryPartition) -> int:
        return await self._partitions.drop(partition)

    async def list_spared_ids(self, *, older_than: timedelta) -> Sequence[tuple[int, int]]:
        return await self._partitions.list_spared(older_than)

    # --- hand-off ---

    async def describe_server(self) -> ServerLog:
        return await self._log.describe_server()

    async def slot(self, name: str) -> SlotStatus | None:
        return await self._log.slot(name)

    async def mark_log(self) -> HandoffMark:
        return await self._log.mark()

    async def prune_handed_off(
        self,
        destination: str,
        *,
        mark: HandoffMark | None,
        older_than: timedelta,
        after: int,
        limit: int,
    ) -> PruneStep:
        return await self._log.prune(
            destination, mark=mark, older_than=older_than, after=after, limit=limit, now=self._now()
        )

    async def inspect_handoff(self, destination: str, *, slot: str, publication: str) -> Sequence[Finding]:
        facts = await self._log.read_facts(destination, slot=slot, publication=publication)
        return build_handoff_findings(facts)

    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        async with self._database.unpinned() as connection:
            known = await connection.fetch(self._sql["restore_known"], [message.message_id for message in messages])
            missing = select_missing(messages, [(row[0], row[1]) for row in known])
            if not missing:
                return 0
            found = [row[0] for row in await connection.fetch(self._sql["restore_ids"], list_possible_ids(missing))]
            ids = choose_ids(missing, taken=found, highest=-min(found))
            await connection.execute(
                self._sql["restore"], *_restored_columns(missing, ids), by, self._now(),
                [describe_closing(message) for message in missing], [find_fingerprint(one) for one in missing],
            )  # fmt: skip
        return len(missing)

    async def purge_inbox(self, *, older_than: timedelta, limit: int, failed: bool = False) -> int:
        if older_than == FOREVER:
            return 0
        deleted = 0
        for status, with_content in list_purged_statuses(failed=failed):
            values = (older_than, limit - deleted, self._now(), status, with_content)
            deleted += await self._delete("purge_inbox", *values)
        return deleted

    async def purge_journal(self, *, older_than: timedelta, limit: int) -> int:
        if older_than == FOREVER:
            return 0
        return await self._delete("purge_journal", older_than, limit, self._now())

    async def purge_rollups(self, *, older_than: timedelta, limit: int) -> int:
        if older_than == FOREVER:
            return 0
        return await self._delete("purge_rollups", older_than, limit, self._now())

    async def _delete(self, statement: str, *values: object) -> int:
        async with self._database.durable(limited=False) as connection:
            deleted: int = await connection.fetchval(self._sql[statement], *values)
        return deleted

    # --- operations on inboxes ---

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int, reason: str | None = None) -> int:
        return await self._change_inbox("redrive_inbox", *inbox_parameters(selection), limit, by, self._now(), reason)

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        return await self._change_inbox("discard_inbox", *inbox_parameters(selection), limit, by, self._now(), reason)

    async def _change_inbox(self, statement: str, *values: object) -> int:
        async with self._database.unpinned() as connection:
            changed: int = await connection.fetchval(self._sql[statement], *values)
        return changed

    # --- operations on destinations and the store ---

    async def note(
        self,
        action: str,
        *,
        by: str,
        detail: str,
        destination: str = "*",
        reason: str | None = None,
        selection: str | None = None,
    ) -> None:
        async with self._database.durable() as connection:
            await connection.execute(
                self._sql["journal_store"], action, by, detail, self._now(), destination, reason, selection
            )

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        async with self._database.durable() as connection:
            await connection.execute(self._sql["pause"], destination, by, reason, self._now())

    async def resume(self, destination: str, *, by: str, reason: str | None = None) -> bool:
        async with self._database.durable() as connection:
            resumed: Any = await connection.fetchval(self._sql["resume"], destination, by, self._now(), reason)
        return resumed is not None

    async def probe(self, destination: str, *, by: str) -> bool:
        async with self._database.durable() as connection:
            asked: Any = await connection.fetchval(self._sql["probe"], destination, by, self._now(), LONGEST)
        return asked is not None

    async def record_backlog(self, relay_id: UUID, *, destinations: Sequence[str], limit: int) -> None:
        async with self._database.quick() as connection:
            await connection.execute(self._sql["record_backlog"], relay_id, list(destinations), limit, self._now())


def _server_now() -> None:
    """Return None: the statements then take the server's time."""


def _to_values(states: Sequence[State]) -> list[str]:
    return [state.value for state in states]


# --- one read: parameters, result, marks ---


class _Done(msgspec.Struct, frozen=True):
    """An id up to which lanes may be done with, once every transaction has ended that began before `tx`."""

    last_id: int
    tx: int


class _Learned(msgspec.Struct):
    """Everything that was learned from one server, and is forgotten with it: the next one may have lost commits."""

    session: object
    highest: int = 0
    """The highest id of a message that was read."""
    done: _Done | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """Transactions that a read could not see: those in progress then, and all that began later."""

    in_progress: Sequence[int] = ()
    first_unborn: int = _NEVER

    def is_ahead_of(self, later: object) -> bool:
        """Return whether a later snapshot knows fewer transactions: then the server has lost some."""
        return isinstance(later, Snapshot) and later.first_unborn < self.first_unborn < _NEVER

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse PostgreSQL's `xmin:xmax:xip,xip`."""
        _, xmax, running = text.split(":")
        return cls([int(xid) for xid in running.split(",") if xid], int(xmax))


def _read_parameters(destination: str, partitions: Sequence[int], cursor: Cursor, limit: int) -> tuple[object, ...]:
    snapshot = cursor.snapshot if isinstance(cursor.snapshot, Snapshot) else Snapshot()
    low = [cursor.low.get(partition, 0) for partition in partitions]
    return (
        destination, list(partitions), low, _lane_limit(partitions, limit), limit,
        snapshot.in_progress, snapshot.first_unborn, max(low, default=0), _late_limit(limit), list(cursor.skip),
    )  # fmt: skip


_RUNNING_SUM: Final = "sum(octet_length(o.payload)) over (rows between unbounded preceding and 1 preceding)"
_FRESH_PAYLOAD: Final = "key, payload, content_type, headers"


def build_small_read(read: str) -> str:
    """Build the read without its running sum of bytes, for which the server must store every row once more.

    A fresh payload that is larger than its share of the limit of bytes does not come. So the limit holds, whatever the
    rows have; but where a payload is missing, the read must be made again with the sum.
    """
    before, _, after = read.partition(_RUNNING_SUM)
    first, payload, rest = after.partition(_FRESH_PAYLOAD)
    small = payload.replace("payload", "case when octet_length(payload) <= $11::bigint / $5 then payload end")
    return f"{before}0::bigint{first}{small}{rest}"


def _lane_limit(partitions: Sequence[int], limit: int) -> int:
    """Return the most messages that one lane may fill of a read."""
    return -(-limit // min(_LANES_PER_READ, len(partitions) or 1))


def _late_limit(limit: int) -> int:
    return max(_MIN_LATE_LIMIT, limit * _LATE_PER_LIMIT)


def _build_read_result(
    rows: Sequence[Any], partitions: Sequence[int], cursor: Cursor, *, limit: int, max_bytes: int
) -> ReadResult:
    """Build the result of a read. The first row has the snapshot, the number of late rows and the server's start.

    Where keys were skipped, rows without a destination come too: the highest fresh id of each lane.
    """
    snapshot = Snapshot.parse(rows[0][2])
    if rows[0][19] >= _late_limit(limit):
        # More came late than one read should carry (a huge slow transaction): start over, which passes over nothing.
        # Late ones that are too large in sum report the highest number.
        return ReadResult((), Cursor({}, snapshot, cursor.session))
    ends = {row[3]: row[0] for row in rows if row[2] is None} if cursor.skip else {}
    messages = sorted([message_from_row(row) for row in rows[1:] if row[2] is not None], key=_by_id)
    low = {partition: cursor.low.get(partition, 0) for partition in partitions}
    fresh = dict.fromkeys(partitions, 0)
    size = 0
    for message in messages:
        if message.id > low[message.partition]:
            low[message.partition] = message.id
            fresh[message.partition] += 1
            size += len(message.payload)
    complete = _find_complete_lanes(fresh, _lane_limit(partitions, limit), limit, is_cut=size >= max_bytes)
    low |= {partition: end for partition, end in ends.items() if partition in complete}
    # Nothing is left in a lane that was read to its end, so its mark may stand as high as any: what was not visible
    # comes late. A mark that stays low would let every read walk the dead rows of the lane.
    low |= dict.fromkeys(complete, max(low.values(), default=0))
    return ReadResult(messages, Cursor(low, snapshot, cursor.session), complete)


def _find_complete_lanes(
    fresh: Mapping[int, int], lane_limit: int, limit: int, *, is_cut: bool = False
) -> frozenset[int]:
    """Return the lanes that ended before they, or the whole read, were cut off. `fresh` is in the order of reading.

    A read that was cut by its bytes ended in the last lane that has messages.
    """
    complete = set()
    read, last = 0, sum(fresh.values()) if is_cut else limit
    for partition, count in fresh.items():
        read += count
        if count < lane_limit and read < min(last, limit):
            complete.add(partition)
    return frozenset(complete)


def _by_id(message: Message) -> int:
    return message.id


def _by_row_id(row: Any) -> int:
    id_: int = row[0]
    return id_


# --- the fence, and outcomes as columns ---


def _fence_parameters(fence: Fence) -> tuple[object, ...]:
    # Everybody locks lanes in the same order.
    lanes = sorted(fence.epochs)
    return fence.relay_id, fence.destination, lanes, [fence.epochs[lane] for lane in lanes]


def _check_fence(fence: Fence, passed: Iterable[Any]) -> None:
    """Raise `Fenced` unless every lane of the fence passed. The statement wrote nothing if one of them did not."""
    if lost := fence.epochs.keys() - {row[0] for row in passed}:
        raise Fenced(fence.destination, lost)


def _failure_columns(settlement: Settlement, errors: Mapping[int, str]) -> tuple[list[object], ...]:
    rows = [
        (
            outcome.message_id, outcome.state.value, None if outcome.waits is None else outcome.waits.value,
            outcome.attempts, outcome.error, outcome.delay, outcome.detail, outcome.action, outcome.forward_to,
            settlement.message_ids.get(outcome.message_id),
            compute_fingerprint(outcome, error=errors.get(outcome.message_id)),
        )
        for outcome in settlement.failures
    ]  # fmt: skip
    return tuple(list(column) for column in zip(*rows, strict=True))


def _restored_columns(messages: Sequence[Message], ids: Sequence[int]) -> tuple[list[object], ...]:
    rows = [
        (
            id_, one.message_id, one.destination, one.partition, one.kind.value, one.type, one.topic, one.key,
            one.payload if one.payload_kept else None, one.content_type,
            msgspec.json.encode(one.headers).decode() if one.headers else None, one.source, one.subject,
            one.correlation_id, one.causation_id, one.event_time, one.created_at, one.available_at, one.attempts,
            one.last_error, one.state.value,
        )
        for one, id_ in zip(messages, ids, strict=True)
    ]  # fmt: skip
    return tuple(list(column) for column in zip(*rows, strict=True))


# --- claims and relays from rows ---


def _registry_from_rows(rows: Sequence[Any]) -> Registry:
    """Build the registry. The first row has the time, each other one a relay, or the lanes of an owner."""
    relays = [_relay_from_row(row) for row in rows[1:] if row[12] is None]
    live = {relay.relay_id for relay in relays}
    owners: dict[str, dict[int, UUID]] = defaultdict(dict)
    for row in rows[1 + len(relays) :]:
        if (owner := row[0]) in live:
            owners[row[12]].update(dict.fromkeys(row[13], owner))
    return Registry(rows[0][8], sorted(relays, key=_by_relay_id), owners)


def _relay_from_row(row: Sequence[Any]) -> RelayInfo:
    (
        relay_id,
        service,
        host,
        pid,
        version,
        destinations,
        reachable,
        asleep,
        started_at,
        expires_at,
        lease,
        labels,
        *_,
    ) = row
    served = _to_texts(destinations)
    return RelayInfo(
        relay_id=relay_id, service=service, host=host, pid=pid, version=version,
        destinations=served, reachable=served if reachable is None else _to_texts(reachable), asleep=asleep,
        started_at=started_at or NO_TIME, expires_at=expires_at or NO_TIME, lease=lease,
        labels=decode_labels(labels),
    )  # fmt: skip


def _to_texts(stored: list[Any]) -> list[str]:
    """Return the texts of an array, which may have null and more dimensions among them."""
    return stored if set(map(type, stored)) == {str} else [text for text in stored if isinstance(text, str)]


def _by_relay_id(relay: RelayInfo) -> UUID:
    return relay.relay_id
