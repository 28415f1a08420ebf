"""Methods of `Store` that are the same over every blocking driver."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from msgspec.structs import replace

from pillarbox.contracts.store import (
    BLOCKED_WALKED,
    FRESH_WALKED,
    GROUPS_WALKED,
    JOURNAL_LINES,
    NO_BYTE_LIMIT,
    SOURCES_WALKED,
    Action,
    BlockedKey,
    BlockedKeyCount,
    BulkResult,
    Claim,
    Count,
    DestinationRequest,
    DueMark,
    DueMessage,
    FailureGroup,
    Fence,
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
    Phase,
    PhaseCount,
    QuietLanes,
    RecoveredClaim,
    Registry,
    RelayInfo,
    Rollup,
    Selection,
    Settlement,
    Tries,
)
from pillarbox.durations import FOREVER, LONGEST
from pillarbox.errors import StoreRefused
from pillarbox.message import PARTITIONS, Message, State, Waits
from pillarbox.stores.compatibility import FIRST_DECLARED, SchemaVersion
from pillarbox.stores.migrations import check_release, load_release
from pillarbox.stores.rules import (
    Keep,
    build_inbox_counts,
    check_keep,
    choose_ids,
    cut_sizes,
    describe_closing,
    eligible_states,
    explain_empty_batch,
    list_possible_ids,
    list_purged_statuses,
    list_states,
    select_missing,
)
from pillarbox.stores.sql import sort_rows
from pillarbox.stores.statistics import (
    FAILURES_LOOKED_UP,
    FailureCount,
    RecordedTries,
    attach_tries,
    build_rollup,
    build_tries,
    check_step,
    choose_largest,
    mark_truncated,
    merge_counts,
    merge_failures,
)
from pillarbox.stores.sync_sql.batch import name_keys
from pillarbox.stores.sync_sql.claims import (
    RelayGone,
    add_to_rollup,
    free_messages,
    read_recovered,
    record_claim,
    release_lanes,
    settle,
    take_lanes,
)
from pillarbox.stores.sync_sql.database import Database, Transaction
from pillarbox.stores.sync_sql.rows import (
    closed_values,
    count_from_row,
    encode_json,
    from_microseconds,
    inbox_failure_from_row,
    inbox_record_from_row,
    journal_entry_from_row,
    messages_from_rows,
    open_claim_from_row,
    pause_from_row,
    relay_from_row,
    relay_values,
    requests_from_rows,
    stored_message_from_row,
    to_duration,
    to_microseconds,
    to_time,
)
from pillarbox.stores.unreadable import NO_ID, NO_TIME, clean_text, is_key_of_lane
from pillarbox.stores.waiting import DueSearch, split_by_key

__all__ = ["SyncSqlStore"]

D = TypeVar("D", bound=Database)

_BEFORE_ALL: Final = -(2**63)
_AFTER_ALL: Final = 2**63 - 1
_OPEN: Final = (State.PENDING, State.SENDING, State.FAILED)
_FINDS: Final = {
    "find_pending": {State.PENDING},
    "find_sending": {State.SENDING},
    "find_held": {State.FAILED},
    "find_delivered": {State.DELIVERED},
    "find_ended": {State.FAILED, State.SKIPPED, State.DISCARDED},
}
"""Statement to the states it finds. Each runs on its own, so that each goes through its own index."""
_WAITING: Final[Mapping[Phase | None, Sequence[str]]] = {
    Phase.LATER: (Waits.DEFERRED.value, Waits.RETRY.value),
    Phase.RETRY: (Waits.RETRY.value,),
    Phase.PARKED: (Waits.PARKED.value,),
}
"""Phases that are found by the index of what waits, and what waits so."""
_NO_LIMIT: Final = 2**31
_ENDED: Final = (State.FAILED, State.SKIPPED, State.DISCARDED)


class SyncSqlStore(Generic[D]):
    """Base of a store over a blocking driver. A store adds `features`, `read`, `wakeups`, `facts` and `inspect`.

    A base class, and not a part that a store owns: a store would only repeat every signature to forward it.

    `name` selects the store's migrations. `keep` says what stays of a delivered message. With `reads_only` nothing is
    written, so tables will do that this release may only read.
    """

    def __init__(self, database: D, *, name: str, keep: Keep, reads_only: bool = False) -> None:
        check_keep(keep)
        self._database = database
        self._name = name
        self._keep: Keep = keep
        self._reads_only = reads_only
        self._schema_version: int | None = None
        """Version of the tables that the statements are chosen for."""

    async def open(self) -> None:
        await self._database.open()
        self._schema_version = None
        try:
            await self.check_schema()
        except BaseException:
            await self._database.close()
            raise

    async def check_schema(self) -> int:
        ((version,),) = await self._database.query("schema_version")
        found = SchemaVersion.build(version)
        if found.version >= FIRST_DECLARED:
            ((version, readable_from, writable_from),) = await self._database.query("schema_declared")
            found = SchemaVersion.build(version, readable_from, writable_from)
        check_release(found, load_release(self._name), writes=not self._reads_only)
        if found.version != self._schema_version:
            self._database.use_version(found.version)
            self._schema_version = found.version
        return found.version

    async def close(self) -> None:
        await self._database.close()

    async def now(self) -> datetime:
        return await self._database.read(lambda tx: from_microseconds(tx.now))

    # --- reading what waits ---

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        # Any fresh message counts, also below the mark of its lane: whoever has none in hand has read all of them.
        each = [
            {"destination": destination, "partitions": list(lanes.partitions), "number": number}
            for number, (destination, lanes) in enumerate(idle.items())
        ]
        rows = await self._database.read(lambda tx: tx.union("peek", each) if each else [])
        found = {number: (has_something, has_blocked) for number, has_something, has_blocked in rows}
        return {
            destination: QuietLanes(lanes.cursor, has_blocked=bool(found[number][1]))
            for number, (destination, lanes) in enumerate(idle.items())
            if not found[number][0]
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

        def work(tx: Transaction) -> None:
            while lanes := search.next_lanes():
                each = [
                    {"destination": destination, "partition": lane, "limit": search.share, **_mark_values(mark)}
                    for lane, mark in lanes.items()
                ]
                rows = self._find_due(tx, each)
                search.add(lanes, [(*row[:4], _to_due_time(row[4]), row[5]) for row in rows])

        await self._database.read(work)
        return search.choose(max_bytes)

    def _find_due(self, tx: Transaction, each: Sequence[Mapping[str, object]]) -> Sequence[Any]:
        """Return the next due messages of each lane, `limit` of them at most."""
        return tx.union("find_due", each)

    async def read_due(self, destination: str, ids: Sequence[int]) -> Sequence[Message]:
        values = {"destination": destination, "ids": list(ids)}
        return messages_from_rows(await self._database.query("read_due", values))

    async def read_keys(
        self,
        destination: str,
        keys: Sequence[tuple[int, str]],
        *,
        key_limit: int,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[KeyMessages]:
        def work(tx: Transaction) -> list[tuple[tuple[int, str], Message]]:
            found = sorted(self._find_blocked(tx, destination, keys, limit=key_limit) if keys else [])[:limit]
            ids = cut_sizes([(id_, size) for _, id_, size in found], max_bytes)
            messages = {message.id: message for message in self._read_messages(tx, ids)} if ids else {}
            return [(keys[number], messages[id_]) for number, id_, _ in found[: len(ids)]]

        found = await self._database.read(work)
        return split_by_key(keys, found, key_limit=key_limit, limit=limit, max_bytes=max_bytes)

    def _find_blocked(
        self, tx: Transaction, destination: str, keys: Sequence[tuple[int, str]], *, limit: int
    ) -> Sequence[tuple[int, int, int]]:
        """Return the first blocked messages of each key: the number of the key, the id, the size."""
        return tx.union("find_blocked", name_keys(destination, keys, limit=limit))

    def _read_messages(self, tx: Transaction, ids: Sequence[int]) -> Sequence[Message]:
        """Read messages by id, in id order."""
        return messages_from_rows(tx.query("read", {"ids": list(ids)}))

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        rows = await self._database.read(lambda tx: self._find_blocked_keys(tx, destination, partitions))
        return [
            BlockedKey(partition, key, Waits(front), astray=not is_key_of_lane(key, partition))
            for partition, key, front in rows
            if isinstance(key, str)
        ]

    @abstractmethod
    def _find_blocked_keys(
        self, tx: Transaction, destination: str, partitions: Sequence[int]
    ) -> Sequence[tuple[int, Any, str]]:
        """Return the lane of each key with a blocked message, the key, and what its first message waits for."""

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        lanes = {"destination": destination, "partitions": list(partitions)}
        ((due,),) = await self._database.query("next_due", lanes)
        return None if due is None else to_time(due)

    async def tried_for(self, destination: str, *, message_ids: Sequence[UUID]) -> Mapping[UUID, timedelta]:
        def work(tx: Transaction) -> Mapping[UUID, timedelta]:
            now = from_microseconds(tx.now)
            return {
                message_id: max(now - one.unspent_at, timedelta(0))
                for (message_id, _), one in _read_tries(tx, message_ids, destination=destination).items()
                if one.unspent_at is not None
            }

        return await self._database.read(work)

    # --- claims ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        return await self._database.write_relaxed(lambda tx: record_claim(tx, fence, claim, park=park))

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        for failure in settlement.failures:
            failure.check()
        # A lost delivery costs a repeat, but a lost failure would spend an attempt that nobody knows of.
        write = self._database.write if settlement.failures else self._database.write_relaxed
        try:
            return await write(lambda tx: settle(tx, fence, settlement, keep=self._keep))
        except StoreRefused:
            # History may have one of the ids already. Looking for each would cost every settlement an index probe.
            return await write(lambda tx: settle(tx, fence, settlement, keep=self._keep, renumbers=True))

    # --- membership ---

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        self._database.limit_answers(lease=lease)
        values = relay_values(relay) | {"lease": to_duration(lease)}
        await self._database.write(lambda tx: tx.execute("register", values))

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        values = {
            "relay_id": str(relay_id), "lease": to_duration(lease), "reachable": encode_json(reachable),
            "asleep": asleep,
        }  # fmt: skip
        return await self._database.write_heartbeat(lambda tx: tx.execute("renew", values)) == 1

    async def registry(self, *, lease: timedelta) -> Registry:
        def work(tx: Transaction) -> Registry:
            rows = tx.query("relays_live", {"lease": to_duration(lease)})
            relays = [relay for row in rows if (relay := relay_from_row(row)) is not None]
            live = {str(relay.relay_id): relay.relay_id for relay in relays}
            owners: dict[str, dict[int, UUID]] = {}
            for destination, partition, owner in tx.query("lanes_owned"):
                if owner in live and type(partition) is int:
                    owners.setdefault(destination, {})[partition] = live[owner]
            return Registry(from_microseconds(tx.now), relays, owners)

        return await self._database.read(work)

    async def registry_digest(self, *, lease: timedelta) -> object:
        def work(tx: Transaction) -> object:
            relays = tx.query("relays_digest", {"lease": to_duration(lease)})
            return [tuple(row) for row in relays], [tuple(row) for row in tx.query("lanes_digest")]

        return await self._database.read(work)

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        def work(tx: Transaction) -> tuple[Sequence[Lane], Sequence[Claim]]:
            return take_lanes(
                tx, str(relay_id), destination, partitions=partitions, lease=lease, claim_number=claim_number
            )

        # A row that does not exist cannot be locked. They are created in a transaction of their own: a relay that
        # freezes after it must not let others wait for them.
        new = {"destination": destination, "partitions": list(partitions)}
        await self._database.write_relaxed(lambda tx: tx.execute("lanes_create", new))
        try:
            lanes, claims = await self._database.write(work)
        except RelayGone:
            return (), ()
        if not claims:
            return lanes, ()
        return lanes, await self._database.read(lambda tx: read_recovered(tx, lanes, claims))

    async def release(self, fence: Fence) -> None:
        await self._database.write(lambda tx: release_lanes(tx, fence))

    async def leave(self, relay_id: UUID) -> None:
        def work(tx: Transaction) -> None:
            # Its row goes first: that waits for a take which is under way, and what it took is seen below.
            for name in ("relays_leave", "lanes_leave", "claims_leave"):
                tx.execute(name, {"relay_id": str(relay_id)})

        await self._database.write(work)

    async def mark_lanes(self, relay_id: UUID) -> None:
        """Do nothing: no dead rows stand at the start of a lane."""

    async def forget(self, *, stale_after: timedelta) -> int:
        def work(tx: Transaction) -> int:
            forgotten = tx.execute("relays_forget", {"stale_after": to_duration(stale_after)})
            tx.execute("claims_forget")
            return forgotten

        return await self._database.write(work)

    # --- operations ---

    async def redrive(
        self, selection: Selection, *, by: str, limit: int, to: str | None = None, reason: str | None = None
    ) -> BulkResult:
        return await self._reopen(Action.REDRIVEN, selection, by=by, limit=limit, to=to, reason=reason)

    async def replay(self, selection: Selection, *, by: str, limit: int, reason: str | None = None) -> BulkResult:
        return await self._reopen(Action.REPLAYED, selection, by=by, limit=limit, reason=reason)

    async def _reopen(
        self,
        action: Action,
        selection: Selection,
        *,
        by: str,
        limit: int,
        to: str | None = None,
        reason: str | None = None,
    ) -> BulkResult:
        """Let closed and held messages wait as retries. Those whose payload was not kept stay closed."""
        states = eligible_states(action, selection, to=to)

        def work(tx: Transaction) -> BulkResult:
            messages = _find(tx, selection, states=states, limit=limit)
            values = {"ids": [message.id for message in messages if message.payload_kept], "to": to}
            _note_messages(tx, messages, action, by=by, reason=reason)
            for name in ("reopen_held", "reopen_anew", "reopen_closed", "delete_closed"):
                tx.execute(name, values)
            return _finish(tx, action, selection, messages)

        return await self._database.write(work)

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        states = eligible_states(Action.DISCARDED, selection)

        def work(tx: Transaction) -> BulkResult:
            messages = _find_in_locked_lanes(tx, selection, states=states, limit=limit)
            values = {"ids": [message.id for message in messages], "reason": reason}
            _note_messages(tx, messages, Action.DISCARDED, by=by, reason=reason)
            for name in ("discard_failed", "discard_open", "close_discarded"):
                tx.execute(name, values)
            for destination, count in sorted(Counter(message.destination for message in messages).items()):
                add_to_rollup(tx, destination, str(NO_ID), {"discarded": count})
            return _finish(tx, Action.DISCARDED, selection, messages)

        return await self._database.write(work)

    async def defer(
        self, selection: Selection, *, until: datetime, by: str, limit: int, reason: str | None = None
    ) -> BulkResult:
        states = eligible_states(Action.DEFERRED, selection)

        def work(tx: Transaction) -> BulkResult:
            messages = _find_in_locked_lanes(tx, selection, states=states, limit=limit, parked=False)
            _note_messages(tx, messages, Action.DEFERRED, by=by, reason=reason)
            tx.execute("defer", {"ids": [message.id for message in messages], "until": to_microseconds(until)})
            return _finish(tx, Action.DEFERRED, selection, messages)

        return await self._database.write(work)

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        if older_than >= FOREVER:
            return 0
        values = {"state": state.value, "older_than": to_duration(older_than), "limit": limit}
        return await self._database.write(lambda tx: _delete_closed(tx, self._find_purgeable(tx, values, limit)))

    def _find_purgeable(self, tx: Transaction, values: Mapping[str, object], limit: int) -> Sequence[int]:
        """Return the ids of the oldest closed messages that outlived their retention."""
        return [row[0] for row in tx.query("purge_due", values)[:limit]]

    async def purge_archived(self, messages: Sequence[Message]) -> int:
        archived = {
            (one.id, one.state.value, to_microseconds(one.status_at)) for one in messages if one.status_at is not None
        }

        def work(tx: Transaction) -> int:
            rows = tx.query("closed_now", {"ids": [one.id for one in messages]})
            return _delete_closed(tx, [row[0] for row in rows if tuple(row) in archived])

        return await self._database.write(work)

    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        def work(tx: Transaction) -> int:
            named = {"message_ids": [str(message.message_id) for message in messages]}
            known = [(UUID(message_id), destination) for message_id, destination in tx.query("restore_known", named)]
            missing = select_missing(messages, known)
            if not missing:
                return 0
            taken = {row[0] for row in tx.query("restore_taken", {"ids": list_possible_ids(missing)})}
            ((highest,),) = tx.query("restore_highest")
            for message, id_ in zip(missing, choose_ids(missing, taken=taken, highest=highest), strict=True):
                values = closed_values(message) | {"id": id_, "by": by, "detail": describe_closing(message)}
                tx.execute("restore", values)
                tx.execute("journal_restored", values)
            return len(missing)

        return await self._database.write(work)

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
        values = {
            "action": action, "by": by, "detail": detail, "destination": destination, "reason": reason,
            "selection": selection,
        }  # fmt: skip
        await self._database.write(lambda tx: tx.execute("journal_store", values))

    async def purge_journal(self, *, older_than: timedelta, limit: int) -> int:
        if older_than >= FOREVER:
            return 0
        values = {"older_than": to_duration(older_than), "limit": limit}
        return await self._database.write(lambda tx: tx.execute("purge_general", values))

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        def work(tx: Transaction) -> None:
            if tx.execute("pause", {"destination": destination, "by": by, "reason": reason}):
                _note(tx, destination, Action.PAUSED, by=by, reason=reason)

        await self._database.write(work)

    async def resume(self, destination: str, *, by: str, reason: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            resumed = tx.execute("resume", {"destination": destination}) > 0
            if resumed:
                _note(tx, destination, Action.RESUMED, by=by, reason=reason)
            return resumed

        return await self._database.write(work)

    async def probe(self, destination: str, *, by: str) -> bool:
        def work(tx: Transaction) -> bool:
            rows = tx.query("relays_live", {"lease": to_duration(LONGEST)})
            relays = [relay for row in rows if (relay := relay_from_row(row)) is not None]
            if not any(destination in relay.destinations for relay in relays):
                return False
            tx.execute("probe", {"destination": destination})
            _note(tx, destination, Action.PROBED, by=by)
            return True

        return await self._database.write(work)

    async def requests(self) -> Sequence[DestinationRequest]:
        return requests_from_rows(await self._database.query("requests"))

    async def record_backlog(self, relay_id: UUID, *, destinations: Sequence[str], limit: int) -> None:
        each = [
            {"number": number, "destination": destination, "limit": limit}
            for number, destination in enumerate(destinations)
        ]
        rows = await self._database.read(lambda tx: tx.union("backlog", each) if each else [])
        counted = {destinations[number]: min(int(count), limit) for number, count in rows if count}

        def work(tx: Transaction) -> None:
            for destination, count in sorted(counted.items()):
                add_to_rollup(tx, destination, str(relay_id), {"backlog": count})

        if counted:
            await self._database.write_relaxed(work)

    async def pauses(self) -> Sequence[Pause]:
        return [pause_from_row(row) for row in await self._database.query("pauses")]

    # --- inbox ---

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        return await self._database.read(lambda tx: _find_inbox_failures(tx, selection, limit))

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int, reason: str | None = None) -> int:
        return await self._database.write(
            lambda tx: _change_inbox(tx, "redrive_inbox", selection, limit, Action.REDRIVEN, by=by, reason=reason)
        )

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        return await self._database.write(
            lambda tx: _change_inbox(tx, "discard_inbox", selection, limit, Action.DISCARDED, by=by, reason=reason)
        )

    async def purge_inbox(self, *, older_than: timedelta, limit: int, failed: bool = False) -> int:
        if older_than >= FOREVER:
            return 0

        def work(tx: Transaction) -> int:
            deleted = 0
            for status, with_content in list_purged_statuses(failed=failed):
                values = {
                    "older_than": to_duration(older_than), "limit": limit - deleted, "status": status,
                    "with_content": None if with_content is None else int(with_content),
                }  # fmt: skip
                deleted += tx.execute("purge_inbox", values)
            return deleted

        return await self._database.write(work)

    async def inbox_counts(self, *, limit: int = 100_000) -> Sequence[InboxCount]:
        rows = await self._database.query("inbox_counts", {"limit": limit})
        found = [(consumer, count, to_time(at)) for consumer, count, at in rows]
        return build_inbox_counts(found, limit=limit)

    async def inbox_records(self, message_ids: Sequence[str]) -> Sequence[InboxRecord]:
        values = {"message_ids": list(message_ids), "limit": SOURCES_WALKED}
        rows = await self._database.query("inbox_records", values) if message_ids else []
        return [inbox_record_from_row(row) for row in rows]

    # --- queries ---

    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        states = list_states(selection)
        return await self._database.read(
            lambda tx: _find(tx, selection, states=states, limit=limit, payloads=payloads, order=order)
        )

    async def count(self, selection: Selection, *, limit: int | None = None) -> int:
        states = list_states(selection)
        if not states:
            return 0
        if limit is not None or selection.phase is not None:  # the view does not know when a message is due
            most = _NO_LIMIT if limit is None else limit
            return await self._database.read(lambda tx: _count_to(tx, selection, states=states, limit=most))

        def work(tx: Transaction) -> int:
            values = {"states": [state.value for state in states]}
            # The view has no fingerprints.
            name = "count_selected" if selection.fingerprint is None else "count_failed"
            ((count,),) = tx.query(name, values, selection=selection)
            return int(count)

        return await self._database.read(work)

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
        if message_id is not None and not messages:
            return []
        values: dict[str, object] = {
            "message_id": str(message_id), "destination": destination, "by": by, "all_actions": actions is None,
            "actions": [str(action) for action in actions or ()], "before": _AFTER_ALL if before is None else before,
            "after": _BEFORE_ALL,
        }  # fmt: skip
        is_filtered = destination is not None or by is not None or actions is not None

        def work(tx: Transaction) -> list[Any]:
            if message_id is not None:
                return tx.query("journal_message", values | {"limit": limit})
            if not messages:
                return tx.query("journal_general", values | {"limit": limit})
            if is_filtered and (ends := tx.query("journal_end", values | {"limit": JOURNAL_LINES})):
                values["after"] = ends[0][0]
            return tx.query("journal_latest", values | {"limit": limit})

        return [journal_entry_from_row(row) for row in await self._database.read(work)]

    async def failure_groups(
        self, *, destination: str | None = None, limit: int = 100, counted_to: int = 10_000
    ) -> Sequence[FailureGroup]:
        def work(tx: Transaction) -> Sequence[FailureGroup]:
            counts = self._count_failures(tx, counted_to)
            largest = choose_largest([one for one in counts if destination in (None, one.destination)], limit=limit)
            parts = [part for group in largest for part in group]
            parts = [self._describe_failures(tx, part) for part in parts]
            ids = [part.example_id for part in parts if part.example_id is not None]
            # A failed and a held message may have the same id, after a restore that took the counter back.
            found = _find(tx, Selection(ids=ids), states=[State.FAILED], limit=2 * len(ids)) if ids else []
            shared = {group[0].group: _count_keys(tx, group[0]) for group in largest if len(group) > 1}
            groups = merge_failures(parts, found, counted_to=counted_to, keys=shared)
            return attach_tries(groups, _read_tries(tx, [group.example.message_id for group in groups]))

        return await self._database.read(work)

    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        names = [message.message_id for message in messages]
        return build_tries(messages, await self._database.read(lambda tx: _read_tries(tx, names)))

    def _count_failures(self, tx: Transaction, counted_to: int) -> Sequence[FailureCount]:
        """Count the messages of each group, of those in history and of those that are held."""
        values = {"limit": counted_to, "groups": GROUPS_WALKED}
        return [
            FailureCount(clean_text(destination), fingerprint, count, held=name == "held_groups")
            for name in ("failed_groups", "held_groups")
            for destination, fingerprint, count in tx.query(name, values)
        ]

    def _describe_failures(self, tx: Transaction, part: FailureCount) -> FailureCount:
        """Return a count with the times, the keys and the latest message of the group."""
        values = {"destination": part.destination, "fingerprint": part.fingerprint, "limit": FAILURES_LOOKED_UP}
        ((first_at, last_at, keys, id_),) = tx.query("held_detail" if part.held else "failed_detail", values)
        return replace(part, first_at=to_time(first_at), last_at=to_time(last_at), keys=int(keys), example_id=id_)

    async def count_blocked(
        self, destination: str, *, limit: int = 50, counted_to: int = 1_000
    ) -> Sequence[BlockedKeyCount]:
        def work(tx: Transaction) -> Sequence[BlockedKeyCount]:
            rows = [
                row
                for waits in (Waits.RETRY, Waits.HELD)
                for row in tx.query(
                    "blocking", {"destination": destination, "waits": waits.value, "limit": BLOCKED_WALKED}
                )
            ]
            keys = list(dict.fromkeys((row[0], row[1]) for row in sorted(rows, key=lambda row: row[2])))[:limit]
            each = [
                {"destination": destination, "partition": partition, "key": key, "number": number,
                 "limit": counted_to + 1}
                for number, (partition, key) in enumerate(keys)
            ]  # fmt: skip
            heads = {row[1]: row for row in (tx.union("blocked_head", each) if each else []) if row[2] != Waits.PARKED}
            found = _find(tx, Selection(ids=list(heads)), states=_OPEN, limit=len(heads)) if heads else []
            found = [message for message in found if message.waits is not None]
            found.sort(key=lambda message: (heads[message.id][3], message.id))
            return [
                BlockedKeyCount(
                    destination=destination, partition=keys[heads[head.id][0]][0], key=keys[heads[head.id][0]][1],
                    head=head, waiting=heads[head.id][4] - 1, more=heads[head.id][4] > counted_to,
                )
                for head in found
            ]  # fmt: skip

        return await self._database.read(work)

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        def work(tx: Transaction) -> Sequence[Count]:
            counts: list[Count] = []
            for (destination,) in tx.query("open_destinations"):
                counts += _count(tx, "count_fresh", {"destination": destination}, limit=limit)
                for waits in Waits:
                    values = {"destination": destination, "waits": waits.value}
                    counts += _count(tx, "count_waiting", values, limit=limit)
            for state in _ENDED:
                for (destination,) in tx.query("ended_destinations", {"state": state.value}):
                    values = {"destination": destination, "state": state.value}
                    counts += _count(tx, "count_ended", values, limit=limit)
            return merge_counts(counts)

        return await self._database.read(work)

    async def find_key(
        self, destination: str, *, partition: int, key: str, after: int = 0, limit: int = 10
    ) -> Sequence[int]:
        values = {
            "destination": destination, "partition": partition, "key": key, "after": after, "limit": limit,
            "fresh": FRESH_WALKED,
        }  # fmt: skip
        return [row[0] for row in await self._database.query("key_ids", values)]

    async def count_phases(self, *, limit: int = 100_000) -> Sequence[PhaseCount]:
        def work(tx: Transaction) -> list[tuple[str, Phase, int]]:
            found = []
            for (destination,) in tx.query("open_destinations"):
                values = {"destination": destination, "limit": limit}
                ((later,),) = tx.query("count_later", values)
                found.append((clean_text(destination), Phase.LATER, int(later)))
                for phase in (Phase.RETRY, Phase.PARKED, Phase.HELD):
                    ((count,),) = tx.query("count_reason", values | {"waits": phase.value})
                    found.append((clean_text(destination), phase, int(count)))
            return found

        return [
            PhaseCount(destination=destination, phase=phase, count=count, more=count >= limit)
            for destination, phase, count in await self._database.read(work)
            if count
        ]

    async def lane_backlogs(self, destination: str, *, limit: int = 1_000) -> Sequence[LaneBacklog]:
        each = [{"destination": destination, "partition": lane, "limit": limit} for lane in range(PARTITIONS)]
        rows = await self._database.read(lambda tx: tx.union("lane_backlog", each))
        backlogs = []
        for lane, *numbers in rows:
            due, times = sum(int(count) for count in numbers[:3]), [to_time(at) for at in numbers[3:] if at is not None]
            if due:
                more = max(int(count) for count in numbers[:3]) >= limit or due >= limit
                oldest_at = min(times, default=None)
                backlogs.append(LaneBacklog(partition=int(lane), due=min(due, limit), more=more, oldest_at=oldest_at))
        return backlogs

    async def inbox_activity(self, *, window: timedelta, limit: int = 10_000) -> Sequence[InboxActivity]:
        def work(tx: Transaction) -> tuple[int, list[Any], list[Any]]:
            rows = tx.query("inbox_activity", {"window": to_duration(window), "limit": limit})
            return tx.now, tx.query("inbox_consumers", {"limit": SOURCES_WALKED}), rows

        now, consumers, rows = await self._database.read(work)
        since = from_microseconds(now) - window
        if sum(int(row[1]) for row in rows) >= limit:
            since = min(to_time(row[4]) for row in rows)
        known = {clean_text(row[0]): row for row in rows}
        return [
            InboxActivity(
                consumer=name, handled=int(known[name][1]) if name in known else 0,
                duplicates=int(known[name][2]) if name in known else 0, since=since,
                last_at=to_time(known[name][3]) if name in known else None,
            )
            for name in sorted(clean_text(consumer) for (consumer,) in consumers)
        ]  # fmt: skip

    async def oldest_due(self) -> Mapping[str, datetime]:
        rows = await self._database.query("oldest_due")
        return {clean_text(destination): to_time(at) for destination, at in rows}

    async def rollups(self, *, window: timedelta, step: timedelta = timedelta(minutes=1)) -> Sequence[Rollup]:
        values = {"window": to_duration(window), "step": check_step(step) * 1_000_000}
        rows = await self._database.query("rollups", values)
        return [build_rollup(clean_text(row[0]), to_time(row[1]), row[2:]) for row in rows]

    async def purge_rollups(self, *, older_than: timedelta, limit: int) -> int:
        if older_than >= FOREVER:
            return 0
        values = {"older_than": to_duration(older_than), "limit": limit}
        return await self._database.write(lambda tx: tx.execute("purge_rollups", values))

    async def claims(
        self, *, older_than: timedelta, limit: int = 50, relay_id: UUID | None = None
    ) -> Sequence[OpenClaim]:
        relay = None if relay_id is None else str(relay_id)
        values = {"older_than": to_duration(older_than), "limit": limit, "relay_id": relay}
        return [open_claim_from_row(row) for row in await self._database.query("claims_old", values)]


def _find(
    tx: Transaction,
    selection: Selection,
    *,
    states: Sequence[State],
    limit: int,
    payloads: bool = False,
    parked: bool = True,
    order: Order = Order.ID,
) -> list[Message]:
    """Return the first of the selected messages that are in one of these states, in this order."""
    names, values = _choose_finds(tx, selection, states)
    values |= {"limit": limit, "payloads": payloads, "parked": parked}
    rows = [row for name in names for row in tx.query(name, values, selection=selection, order=order)]
    return [stored_message_from_row(row) for row in sort_rows(rows, order)[:limit]]


def _choose_finds(
    tx: Transaction, selection: Selection, states: Sequence[State]
) -> tuple[list[str], dict[str, object]]:
    """Return the statements that find these states, and their values."""
    names = [name for name, found in _FINDS.items() if not found.isdisjoint(states)]
    values: dict[str, object] = {"states": [state.value for state in states]}
    if selection.phase is not None:
        names = [name for name in names if name in ("find_pending", "find_held")]  # what is in a phase is open
    if selection.phase in _WAITING:
        names = ["find_waiting"] if names else []
        values |= {"waiting": list(_WAITING[selection.phase]), "of": selection.destination}
    elif selection.tried or selection.min_attempts:
        # Messages that were tried are never fresh: smaller indexes find them.
        names = ["find_tried" if name == "find_pending" else name for name in names]
    if len(names) > 1:
        # One time for all: a message whose relay expires between two statements would be neither pending nor sending.
        values["now"] = tx.now
    return names, values


def _count_to(tx: Transaction, selection: Selection, *, states: Sequence[State], limit: int) -> int:
    """Count by the statements that find, so that each state is counted by its index."""
    total = 0
    names, values = _choose_finds(tx, selection, states)
    for name in names:
        each = values | {"limit": limit - total, "payloads": False, "parked": True}
        ((count,),) = tx.query(name, each, selection=selection, counted=True)
        total += int(count)
        if total >= limit:
            break
    return total


def _read_tries(
    tx: Transaction, message_ids: Sequence[UUID], *, destination: str | None = None
) -> Mapping[tuple[UUID, str], RecordedTries]:
    """Read the failed tries of messages from the journal."""
    if not message_ids:
        return {}
    values = {"destination": destination, "message_ids": [str(message_id) for message_id in message_ids]}
    times = ((row, _to_known_time(row[4]), _to_known_time(row[5])) for row in tx.query("tries", values))
    return {
        (UUID(row[0]), clean_text(row[1])): RecordedTries(int(row[2]), int(row[3]), first_at, unspent_at)
        for row, first_at, unspent_at in times
    }


def _to_known_time(stored: Any) -> datetime | None:
    return None if (at := to_time(stored)) is NO_TIME else at


def _count_keys(tx: Transaction, one: FailureCount) -> int:
    """Count the keys of a group whose messages are in both tables: a key may be in each."""
    values = {"destination": one.destination, "fingerprint": one.fingerprint, "limit": FAILURES_LOOKED_UP}
    return len({row[0] for name in ("failed_keys", "held_keys") for row in tx.query(name, values)})


def _find_in_locked_lanes(
    tx: Transaction, selection: Selection, *, states: Sequence[State], limit: int, parked: bool = True
) -> list[Message]:
    """Find messages that an operator is about to change, with the lanes of the open ones locked to the commit.

    A claim locks its lanes too. So the first search only tells the lanes; the second one sees every claim in them.
    """
    found = _find(tx, selection, states=states, limit=limit, parked=parked)
    lanes = {(one.destination, one.partition) for one in found if one.state is State.PENDING or one.waits is not None}
    for destination, partition in sorted(lanes):
        tx.execute("lane_change", {"destination": destination, "partition": partition})
    ids = [message.id for message in found]
    if lanes:
        found = _find(tx, replace(selection, ids=ids), states=states, limit=limit, parked=parked)
        free_messages(tx, {message.id for message in found})
    return found


def _count(tx: Transaction, name: str, values: Mapping[str, object], *, limit: int) -> list[Count]:
    counts = [count_from_row(row) for row in tx.query(name, {**values, "limit": limit})]
    return mark_truncated(counts, limit=limit)


def _finish(tx: Transaction, action: Action, selection: Selection, messages: Sequence[Message]) -> BulkResult:
    """Return how many messages were changed; or refuse, if none was."""
    if not messages:
        named = Selection(ids=selection.ids, message_ids=selection.message_ids)
        found = _find(tx, named, states=tuple(State), limit=1) if selection.ids or selection.message_ids else []
        return explain_empty_batch(selection, [(message.id, message.state) for message in found], action)
    changed = sum(message.payload_kept for message in messages)
    return BulkResult(changed, messages[-1].id, len(messages) - changed)


def _note_messages(
    tx: Transaction, messages: Sequence[Message], action: Action, *, by: str, reason: str | None = None
) -> None:
    """Record an action on messages that are about to be changed, in id order.

    The database copies their message ids: that of an unreadable row need not be one that Python can hold.
    """
    ids = [message.id for message in messages if message.payload_kept]
    tx.execute("journal_messages", {"ids": ids, "action": action.value, "by": by, "reason": reason})


def _note(tx: Transaction, destination: str, action: Action, *, by: str, reason: str | None = None) -> None:
    values = {"message_id": None, "destination": destination, "action": action.value, "by": by, "reason": reason}
    tx.execute("journal_note", values)


def _delete_closed(tx: Transaction, ids: Sequence[int]) -> int:
    values = {"ids": list(ids)}
    tx.execute("purge_journal", values)
    return tx.execute("delete_closed", values)


def _find_inbox_failures(
    tx: Transaction, selection: InboxSelection, limit: int, *, with_content: bool = False
) -> list[InboxFailure]:
    values = {
        "with_content": with_content,
        "consumer": selection.consumer, "all_ids": selection.message_ids is None,
        "message_ids": list(selection.message_ids or ()),
        "error": None if selection.error is None else selection.error.casefold(), "limit": limit,
    }  # fmt: skip
    return [inbox_failure_from_row(row) for row in tx.query("inbox_failures", values)]


def _change_inbox(
    tx: Transaction,
    name: str,
    selection: InboxSelection,
    limit: int,
    action: Action,
    *,
    by: str,
    reason: str | None = None,
) -> int:
    failures = _find_inbox_failures(tx, selection, limit, with_content=action is Action.REDRIVEN)
    for one in failures:
        values = {"consumer": one.consumer, "source": one.source, "message_id": one.message_id, "reason": reason}
        tx.execute(name, values)
        tx.execute("journal_inbox", values | {"action": action.value, "by": by})
    return len(failures)


def _mark_values(mark: DueMark | None) -> dict[str, object]:
    if mark is None or mark.available_at is None:
        return {"after": _BEFORE_ALL, "after_id": 0 if mark is None else mark.id}
    return {"after": to_microseconds(mark.available_at), "after_id": mark.id}


def _to_due_time(stored: int) -> datetime | None:
    try:
        return from_microseconds(stored)
    except (TypeError, OverflowError, ValueError):
        return None
