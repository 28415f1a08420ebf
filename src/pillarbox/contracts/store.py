"""Contract of a store, by audience, and the values that cross it.

A relay uses a `RelayStore`, operators use an `OperatorStore`, dashboards and alerts a `MonitorStore`. A `Store` is all
three. `StoreContract` in `pillarbox.testing` checks every promise below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from pillarbox.contracts.finding import Finding
from pillarbox.errors import IllegalTransition
from pillarbox.message import Message, State, Waits

__all__ = [
    "BLOCKED_WALKED",
    "FRESH_WALKED",
    "GROUPS_WALKED",
    "JOURNAL_LINES",
    "LATENCY_BOUNDS",
    "NO_BYTE_LIMIT",
    "SOURCES_WALKED",
    "Action",
    "AnyStore",
    "BlockedKey",
    "BlockedKeyCount",
    "BulkResult",
    "Claim",
    "Count",
    "Cursor",
    "DestinationRequest",
    "DueMark",
    "DueMessage",
    "FailedOutcome",
    "FailureGroup",
    "Fence",
    "HistoryPartition",
    "IdleLanes",
    "InboxActivity",
    "InboxCount",
    "InboxFailure",
    "InboxRecord",
    "InboxSelection",
    "JournalEntry",
    "KeyMessages",
    "Lane",
    "LaneBacklog",
    "MonitorStore",
    "OpenClaim",
    "OperatorStore",
    "Order",
    "PartitionedStore",
    "Pause",
    "Phase",
    "PhaseCount",
    "QuietLanes",
    "ReadResult",
    "RecoveredClaim",
    "Registry",
    "RegistryDigestStore",
    "RelayInfo",
    "RelayStore",
    "Rollup",
    "Selection",
    "Settlement",
    "Store",
    "StoreFacts",
    "StoreFeatures",
    "StoreInspector",
    "TableStatus",
    "Tries",
    "VersionedStore",
    "Wakeups",
]


NO_BYTE_LIMIT: Final = 2**62
"""`max_bytes` of a read that only its count limits."""
JOURNAL_LINES: Final = 100_000
"""The most lines of the journal that one answer looks at."""
GROUPS_WALKED: Final = 1_000
BLOCKED_WALKED: Final = 1_000
SOURCES_WALKED: Final = 1_000
FRESH_WALKED: Final = 10_000
LATENCY_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds at which one bucket of latencies ends and the next begins, in rollups and metrics alike."""


class Order(StrEnum):
    """Order of found messages. Only by id, up or down, can they be read page by page."""

    ID = "id"
    ATTEMPTS = "attempts"
    """Most attempts first."""
    NEWEST = "newest"
    """Last changed first."""
    LATEST = "latest"
    """Highest id first: page by page with `Selection.before`."""


class Phase(StrEnum):
    """Where an open message stands. What is pending is either due or later; retried and parked ones are among these."""

    DUE = "due"
    """Its time to be sent has come, whatever it waits for now: as `Store.counts` and all figures have it."""
    LATER = "later"
    """Its time to be sent has not come: its writer or an operator deferred it."""
    RETRY = "retry"
    """It waits for another attempt."""
    PARKED = "parked"
    """Behind an earlier message of its key."""
    HELD = "held"
    """Failed, and its key waits with it."""


class AnyStore(Protocol):
    """Methods that relays, operators and monitors have in common.

    All times are the store's own clock. Every method is one transaction. A lost connection, a full pool or a server
    that is away raises `StoreUnavailable`; after it the caller knows nothing of the outcome, and repeating the call is
    safe. A write that the database forbids because of its values raises `StoreRefused`; nothing of it was written, and
    repeating it changes nothing.
    """

    @property
    def features(self) -> StoreFeatures:
        """Abilities of this store beyond the contract's minimum."""

    async def open(self) -> None:
        """Connect and check the schema; `SchemaMissing`, `SchemaOutdated` or `SchemaNewer` where it does not fit."""

    async def close(self) -> None:
        """Close every connection. Closing twice is harmless."""

    async def now(self) -> datetime:
        """Return the time of the store's clock."""

    async def registry(self, *, lease: timedelta) -> Registry:
        """Return the live relays and the lanes they own.

        An `expires_at` further ahead than the relay's own lease counts as expired: a wrong clock wrote it. `lease` is
        for rows without one, which an older release wrote.
        """

    async def pauses(self) -> Sequence[Pause]:
        """List the destinations that are paused."""

    async def find(
        self, selection: Selection, *, limit: int, payloads: bool = True, order: Order = Order.ID
    ) -> Sequence[Message]:
        """Find messages, open and closed, with their state, the first `limit` of them in this order.

        `payloads=False` leaves the bytes out.
        """

    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        """Count the tries of each message that failed, by its id; a message without one is left out.

        It counts from when the message was last sent again by a person, as attempts do, at its present destination.
        Every try has a line in the journal, so the count is exact, and neither writing nor sending pays for it.
        """

    async def claims(
        self, *, older_than: timedelta, limit: int = 50, relay_id: UUID | None = None
    ) -> Sequence[OpenClaim]:
        """List batches that have been in a relay's hands for this long, oldest first; of one relay, or of all."""


class RelayStore(AnyStore, Protocol):
    """Store of a relay: reads lanes, claims and settles messages, and shares the lanes between relays."""

    # --- reading ---

    # Every read ends at `limit` messages, or with the message whose payload brings the sum of payloads to `max_bytes`.
    # The database applies both limits, so no more than that is fetched. At least one message comes if there is one.

    async def read(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        cursor: Cursor | None,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> ReadResult:
        """Read fresh messages of these lanes above the cursor, and all that became visible late below it.

        The limits are for fresh ones, the lanes taking turns in the order of `partitions`; within a lane no visible
        fresh message is passed over for a later one. Late ones come in addition. If those are too many or too large for
        one read, nothing comes and every lane starts over. Changes nothing.

        Where the store skips keys, fresh ones of the keys in `cursor.skip` are passed over all the same: they do not
        come, and the mark of a lane that was read to its end stands above them.
        """

    async def peek(self, idle: Mapping[str, IdleLanes]) -> Mapping[str, QuietLanes]:
        """Look into the lanes of many destinations at once; return the destinations that have nothing to read.

        Quiet is a destination of which, in these lanes, `read` would return no message from its cursor, neither fresh
        nor late, and `find_due` would find none. It comes with the cursor to read from next time, which passes over
        nothing either. One that is not returned may have something, or its cursor is of another connection: its lanes
        must be read. The cost in round trips does not grow with the number of destinations. Changes nothing.
        """

    async def find_due(
        self,
        destination: str,
        *,
        partitions: Sequence[int],
        limit: int,
        after: DueMark | None = None,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[DueMessage]:
        """Find deferred and retrying messages that are due, longest due first, beyond the mark.

        `max_bytes` counts their payloads, though none is fetched. What comes due while one read follows the other may
        stand before the mark: that is found by the next search from the start.
        """

    async def read_due(self, destination: str, ids: Sequence[int]) -> Sequence[Message]:
        """Read due messages that were found, by id. What waits no more, or is not due any more, does not come."""

    async def read_keys(
        self,
        destination: str,
        keys: Sequence[tuple[int, str]],
        *,
        key_limit: int,
        limit: int,
        max_bytes: int = NO_BYTE_LIMIT,
    ) -> Sequence[KeyMessages]:
        """Read the blocked messages (`retry`, `parked`, `held`) of these keys, each given with its partition.

        The keys come in their order, each with its first `key_limit` messages by id. The limits of the whole read end
        it in the middle of a key, or before one: what is not reached does not come.
        """

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        """List each key with a blocked message, once. Costs one probe per key, however many wait behind it."""

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        """Return when the next deferred or retrying message of these lanes is due; None if there is none."""

    async def tried_for(self, destination: str, *, message_ids: Sequence[UUID]) -> Mapping[UUID, timedelta]:
        """Return for how long messages have been tried without spending an attempt, whichever relay tried them.

        It begins with the first such try in the journal after a person last had the message sent again. A message that
        was not tried so is left out.
        """

    # --- claims: every write is fenced ---

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        """Record the batch as in this relay's hands, and park what waits behind an earlier message.

        `park` has the message that was read under each id: a row that has another one is left alone, as in `settle`.
        Fresh and deferred messages can be parked; a claim without messages only parks. Committed when it returns.
        `Fenced` names the lanes that belong to another relay, and then nothing is written. Repeating a claim with the
        same number changes nothing.

        Returns the revision of each lane of the fence. If one differs from what the relay knew before it read the
        messages, an operator may have changed them since: they must be given back and read again. An operator's change
        and a claim in the same lane wait for each other, so either the change sees the claim and leaves its messages
        alone, or the claim sees the new revision.
        """

    async def settle(self, fence: Fence, settlement: Settlement) -> Collection[int]:
        """Record outcomes: delivered messages close, failed ones close or wait, ids leave their claims.

        `Fenced` as in `claim`. A message that is no longer open, or in none of the claims that the settlement names, is
        left alone, so repeating is harmless, also after an operator redrove or put off the message. A row that has
        another message under its id than `settlement.message_ids` names is left alone too. Failures are durable when
        this returns; a delivery may be lost by a crash of the database, which costs a repeat.

        Returns the ids of outcomes that are in none of the named claims: an earlier try has recorded them, or a crash
        of the database lost the claims. Such a message may be open, as it was before it was claimed.
        """

    # --- membership ---

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        """Enter the registry, alive for one lease."""

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        """Stay alive for another lease. False when already expired or gone: then everything must be dropped."""

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
        """Take over those of the lanes that are free, and recover what was in their dead owners' hands.

        One transaction: the lane's row is locked (a lane that another relay is taking is skipped), its epoch raised,
        the dead relay's ids in it move into claims of this relay numbered from `claim_number`, one claim per count of
        strikes; the expired relay's row goes. Durable when it returns. The returned claims count one strike more than
        the stored ones: until the messages are claimed anew none of them is being sent, and dying with them proves
        nothing. A lane this relay owns already is returned under a new epoch too. The recovered messages come without
        payload and headers, however much was in the dead owners' hands: they are read again before they are sent.
        `lease` as in `registry`.

        A relay that is not in the registry takes nothing. `leave` and `take` of one relay wait for each other, so a
        take that was still under way when its relay left, because nobody waited for its answer, leaves no lane behind.
        """

    async def release(self, fence: Fence) -> None:
        """Give lanes up at once, and drop this relay's claims on messages in them. Not owning one is fine."""

    async def leave(self, relay_id: UUID) -> None:
        """Release every lane, drop every claim, and leave the registry. The relay takes no lane after it."""

    async def forget(self, *, stale_after: timedelta) -> int:
        """Remove relays that expired this long ago, and claims whose relay is gone and whose lanes are free."""

    async def mark_lanes(self, relay_id: UUID) -> None:
        """Note how far this relay's lanes are done with, so that a first read of them can begin there.

        Called now and then. It changes no answer: a store may skip ids that no fresh message has, nor can ever have,
        because every transaction that could bring one has ended. A store that reads a lane's start for nothing does
        nothing here.
        """

    async def requests(self) -> Sequence[DestinationRequest]:
        """List what operators asked of destinations: those that are paused, and those to probe. One statement."""

    async def record_backlog(self, relay_id: UUID, *, destinations: Sequence[str], limit: int) -> None:
        """Count the due messages of each destination, up to the limit, and note the count in the rollup of this minute.

        Due as in `counts`. Of several counts in one minute the highest stays. A destination with none is not written.
        """

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
        """Add a line to the journal that belongs to no message; as in `OperatorStore`."""

    def wakeups(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[Wakeups]:
        """Call `wake` soon after a writer committed, as far as the store can tell, while the block runs.

        Silence proves nothing: polling stays correct without it. A store whose writers must be asked to notify does it
        while a relay is registered as `asleep`.
        """


@runtime_checkable
class RegistryDigestStore(Protocol):
    """Store that tells cheaply whether its registry has changed. From others it is read whole, each time."""

    async def registry_digest(self, *, lease: timedelta) -> object:
        """Return a value that compares equal as long as `registry` would return the same relays and owners.

        It changes when a relay enters, leaves or expires, reaches other destinations than before, or takes or releases
        a lane; and not when a lease is renewed.
        """


@runtime_checkable
class PartitionedStore(Protocol):
    """Store that keeps closed messages in partitions by their ids, and drops a partition instead of deleting its rows.

    Other stores do not have these methods; the janitor deletes rows there.
    """

    async def extend_history(self) -> int:
        """Add partitions ahead of the ids; return how many. What has no partition is kept all the same."""

    async def find_expired_partition(
        self, ages: Mapping[State, timedelta], *, after: int | None = None
    ) -> HistoryPartition | None:
        """Return the first partition above that id which can be dropped; None if there is none.

        `ages` says how long closed messages are kept, by state; a state that is not in it is kept forever.
        """

    async def drop_partition(self, partition: HistoryPartition) -> int:
        """Remove what has expired in a partition, with its journal; return how many messages. The others stay.

        Raises `StoreBusy`, and changes nothing, if the partition cannot be had at once.
        """

    async def list_spared_ids(self, *, older_than: timedelta) -> Sequence[tuple[int, int]]:
        """List the first and last ids of partitions that are about to expire as a whole: `purge` leaves them alone."""


class OperatorStore(AnyStore, Protocol):
    """Store of operators, and of the janitor. Every change has a line in the journal with `by` and the reason."""

    async def count(self, selection: Selection, *, limit: int | None = None) -> int:
        """Count the selected messages exactly, which reads every one of them; or up to the limit.

        With a limit each state is counted by the index that `find` uses, and counting ends there.
        """

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
        """List lines of the journal, as in `MonitorStore`."""

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
        """Add a line to the journal that belongs to no message: about a destination, or about the whole store (`*`).

        `selection` is the JSON of the `Selection` that a bulk action named.
        """

    # --- messages ---

    async def redrive(
        self, selection: Selection, *, by: str, limit: int, to: str | None = None, reason: str | None = None
    ) -> BulkResult:
        """Send failed, held, skipped or discarded messages again, in id order, attempts back at 0.

        With `to` they go to that destination instead. A skipped one needs it. A selection without states and ids
        means failed and held ones alone: what was discarded or skipped was closed on purpose. Other states are not
        touched; a batch that names only such messages by id is an `IllegalTransition`.
        """

    async def replay(self, selection: Selection, *, by: str, limit: int, reason: str | None = None) -> BulkResult:
        """Send delivered messages again, same message id, in id order."""

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> BulkResult:
        """Close pending, held, failed or skipped messages without sending. One in the hands of a live relay is refused.

        A selection without states and ids means none that are skipped: they must be named.

        What a relay that is gone had in its hands is pending, also before another relay takes its lanes over. It may
        have been delivered.
        """

    async def defer(
        self, selection: Selection, *, until: datetime, by: str, limit: int, reason: str | None = None
    ) -> BulkResult:
        """Let pending messages wait until then. Attempts stay. The key waits with them."""

    # --- destinations ---

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        """Stop delivery to a destination until it is resumed. Messages wait; no attempt is spent."""

    async def resume(self, destination: str, *, by: str, reason: str | None = None) -> bool:
        """Start delivery again. False when it was not paused."""

    async def probe(self, destination: str, *, by: str) -> bool:
        """Have each relay whose breaker of this destination is open try it at once. False: no live relay serves it."""

    # --- retention ---

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        """Delete closed messages of that state that are older, with their journal; return how many.

        The oldest of a destination go first; delivered ones may go in the order of their ids. 0: none is left, but for
        those that a `PartitionedStore` spares.
        """

    async def purge_archived(self, messages: Sequence[Message]) -> int:
        """Delete these closed messages, which an archive has taken, with their journal; return how many.

        A message that was redriven, and perhaps closed again, while the archive was written stays: only what still has
        the state and the time that were archived goes.
        """

    async def purge_inbox(self, *, older_than: timedelta, limit: int, failed: bool = False) -> int:
        """Delete dedup records that are done and older than the window, and those of starts that never ended.

        With `failed`, instead, messages that failed so long ago, and those that were redriven and never handled.
        """

    async def purge_rollups(self, *, older_than: timedelta, limit: int) -> int:
        """Delete counters of minutes that began this long ago."""

    async def purge_journal(self, *, older_than: timedelta, limit: int) -> int:
        """Delete lines of the journal that belong to no message and are older. Other lines go with their message."""

    async def restore(self, messages: Sequence[Message], *, by: str) -> int:
        """Put closed messages of an archive back into history; return how many were not there.

        A message that is there, open or closed, under the same message id and destination is left alone, so repeating
        is harmless. The others are in their old state again, with their attempts, error, payload and times, except
        that they count as closed now: their retention begins anew. The journal says when they were closed.

        They keep their ids where these are free and below the highest that the store has given. Others get one above
        2^52, in the same order, and a new one when they are sent again: the store's counter must never meet them.
        """

    # --- inboxes ---

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        """List the messages that consumers could not handle, longest failed first."""

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int, reason: str | None = None) -> int:
        """Have failed messages of an inbox handled again, longest failed first, with all attempts; return the count.

        Those whose content was not kept are left alone.
        """

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        """Close failed messages of an inbox as done, without handling them; return the count."""


class MonitorStore(AnyStore, Protocol):
    """Store of dashboards, alerts and probes. Nothing here changes anything, and every answer is bounded."""

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        """Count messages by destination, topic and state, except delivered ones: those are in the rollups.

        Each destination is counted by itself, and no count reads more than `limit` rows. A store may look up the topics
        of the first alone; the others count without one. A count that is not complete has `more`.
        """

    async def oldest_due(self) -> Mapping[str, datetime]:
        """Map each destination to when its longest waiting message first could have gone.

        Whatever it waits for: its turn, another attempt, or an earlier message of its key. A held one counts as failed,
        and not here.
        """

    async def inbox_counts(self, *, limit: int = 100_000) -> Sequence[InboxCount]:
        """Count the failed messages of each consumer that has any, by name, among the longest failed `limit`."""

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
        """List the latest lines of the journal that meet every condition, oldest first.

        `messages=False` leaves out what belongs to a message. `before` is the id of a line: only earlier ones come, so
        that the lines can be read page by page. No more than `JOURNAL_LINES` lines are looked at.
        """

    async def rollups(self, *, window: timedelta, step: timedelta = timedelta(minutes=1)) -> Sequence[Rollup]:
        """List the counters of each destination and minute, from the minute in which the window begins to the last.

        With a `step` of several minutes the counters of as many are added up, and of backlogs the highest is taken. A
        step begins at a multiple of its length since 1970; the first one has the minutes that are in the window.

        A settlement and its counts commit together: what is settled is counted, once.
        """

    async def failure_groups(
        self, *, destination: str | None = None, limit: int = 100, counted_to: int = 10_000
    ) -> Sequence[FailureGroup]:
        """Group failed and held messages by destination and fingerprint, the largest groups first; of one, or of all.

        No group is counted further than `counted_to`. Of each destination the first `GROUPS_WALKED` groups are found,
        one walk of an index each. A store whose index has no fingerprints finds those of the latest `counted_to`.
        """

    async def count_blocked(
        self, destination: str, *, limit: int = 50, counted_to: int = 1_000
    ) -> Sequence[BlockedKeyCount]:
        """List the keys that wait for a retried or held message, each with the number of messages parked behind it.

        The longest waiting comes first. Of a key with very many retried messages others may be missing: the first
        `BLOCKED_WALKED` messages of each kind are looked at.
        """

    async def find_key(
        self, destination: str, *, partition: int, key: str, after: int = 0, limit: int = 10
    ) -> Sequence[int]:
        """Return the ids of the first open messages of a key above that id, in order: what waits, and what is held.

        Of fresh ones, which no index knows by their key, the first `FRESH_WALKED` of the lane are looked at.
        """

    async def count_phases(self, *, limit: int = 100_000) -> Sequence[PhaseCount]:
        """Count the messages of each destination in every phase but `due`, none further than `limit`."""

    async def lane_backlogs(self, destination: str, *, limit: int = 1_000) -> Sequence[LaneBacklog]:
        """Count what is due in each lane of a destination that has something, by partition, each up to `limit`.

        Due as in `counts`. Of what waits in a lane the first `limit` are looked at.
        """

    async def inbox_activity(self, *, window: timedelta, limit: int = 10_000) -> Sequence[InboxActivity]:
        """List the consumers that have records, by name, with what each handled in the window.

        It looks at the latest `limit` records that are done, of all consumers together, and writes nothing anywhere:
        consumers pay nothing for it. The first `SOURCES_WALKED` consumers are listed.
        """

    async def facts(self) -> StoreFacts:
        """Return what is known of the database as a whole. Counts nothing."""

    async def inbox_records(self, message_ids: Sequence[str]) -> Sequence[InboxRecord]:
        """List what inboxes know of these messages, by consumer, source and message id.

        It looks for them under each consumer and source, the first `SOURCES_WALKED` of them.
        """

    async def tables(self) -> Sequence[TableStatus]:
        """List the tables of the store with their sizes, by name, as the server estimates them. Counts no row."""


class Store(RelayStore, OperatorStore, MonitorStore, Protocol):
    """Keeps messages, claims, lanes and relays: the whole contract."""


@runtime_checkable
class VersionedStore(Protocol):
    """A store whose tables have a version, which may change while it is open."""

    async def check_schema(self) -> int:
        """Read the version of the tables, use what they have from now on, and return it.

        `SchemaMissing`, `SchemaOutdated` or `SchemaNewer` where this release may not use them.
        """


@runtime_checkable
class StoreInspector(Protocol):
    """A store that can check its database for settings that lose commits, and for missing rights."""

    async def inspect(self) -> Sequence[Finding]:
        """List what is set or missing there that could lose or delay messages. Changes nothing.

        `StoreUnavailable` as every method. What the login may not see is a finding too.
        """


class Wakeups(Protocol):
    """Subscription to the commits of writers."""

    @property
    def is_listening(self) -> bool:
        """True while a wake-up would arrive."""


class StoreFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities of a store beyond the contract's minimum."""

    name: str
    """The word before `://`, and the name of its test group."""
    late_rows: bool
    """Ids can become visible out of order, and `read` returns the late ones."""
    notifies: bool
    """A commit wakes a relay that is registered as asleep."""
    shared: bool
    """Several processes can use it at once."""
    skips_keys: bool = False
    """`read` passes by the keys that its cursor skips. Without it the rest of a hot key must be parked."""


# --- reading ---


class Cursor(msgspec.Struct, frozen=True):
    """Position of reading in each lane. Opaque outside the store that made it; dies with its connection."""

    low: Mapping[int, int] = {}
    """Partition to the highest id already returned; a partition that is missing starts over."""
    snapshot: object = None
    session: object = None
    skip: Sequence[str] = ()
    """Keys whose fresh messages are left out. Late ones of them still come."""
    whole: frozenset[int] = frozenset()
    """Lanes to read from their very start, whatever `mark_lanes` noted."""

    def skip_keys(self, keys: Sequence[str]) -> Cursor:
        """Leave these keys out next time: the reader has enough of them, and knows where the rest begins."""
        return Cursor(self.low, self.snapshot, self.session, keys, self.whole)

    def restart(self, partitions: Iterable[int], *, whole: Iterable[int] = ()) -> Cursor:
        """Read these lanes from their start next time: after messages were given back, or as the safety net.

        `whole` are lanes to read from their very start, as a safety net for the marks of `mark_lanes` too.
        """
        again = {*partitions, *whole}
        low = {partition: mark for partition, mark in self.low.items() if partition not in again}
        return Cursor(low, self.snapshot, self.session, (), frozenset(whole))


class ReadResult(msgspec.Struct, frozen=True):
    """The messages of one read, in id order, and where the next one begins."""

    messages: Sequence[Message]
    cursor: Cursor
    complete: frozenset[int] = frozenset()
    """Lanes that were read to their end: none of their fresh messages was left for a later read."""


class IdleLanes(msgspec.Struct, frozen=True):
    """Lanes of one destination in which nothing was found, and the cursor of the last read of all of them."""

    partitions: Sequence[int]
    cursor: Cursor


class QuietLanes(msgspec.Struct, frozen=True):
    """Lanes of one destination that have nothing to read."""

    cursor: Cursor
    has_blocked: bool
    """`blocked_keys` may list a key of them."""


class DueMark(NamedTuple):
    """Place in the order of due messages."""

    available_at: datetime | None
    """None is before every time: the row has a time that Python cannot hold."""
    id: int


class DueMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that is due, as far as it must be known to decide whether to read it."""

    id: int
    partition: int
    key: str | None
    """None also where the row has something that is no key, or no key of its lane: that orders nothing."""
    waits: Waits
    available_at: datetime | None
    size: int
    """Bytes of its payload."""

    @property
    def mark(self) -> DueMark:
        return DueMark(self.available_at, self.id)


class KeyMessages(msgspec.Struct, frozen=True):
    """The first blocked messages of one key, by id."""

    messages: Sequence[Message]
    complete: bool
    """No more of them wait."""


class BlockedKey(msgspec.Struct, frozen=True):
    """A key with a `retry`, `parked` or `held` message."""

    partition: int
    key: str
    front: Waits
    """Reason why the first of them waits. `parked`: the message it waited for is gone, and it can go."""
    astray: bool = False
    """It is no key, or not one of this lane: others wrote its rows. It blocks nothing, and what waits is closed."""


# --- ownership ---


class Lane(msgspec.Struct, frozen=True):
    """Share that one destination has of one partition, under one ownership."""

    destination: str
    partition: int
    epoch: int
    revision: int = 0
    """Number of the operators' changes to open messages in the lane, when it was taken."""
    taken_from: UUID | None = None
    """The dead relay that owned it until then; None if it was free."""


class Fence(msgspec.Struct, frozen=True):
    """Proof of ownership that goes with every write: these lanes of one destination, at these epochs."""

    relay_id: UUID
    destination: str
    epochs: Mapping[int, int]
    """Partition to epoch."""

    def narrow(self, partitions: Iterable[int]) -> Fence:
        """Return the same proof for some of the lanes."""
        return Fence(self.relay_id, self.destination, {p: self.epochs[p] for p in partitions})


class RelayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A relay's row in the registry."""

    relay_id: UUID
    service: str
    host: str
    pid: int
    version: str
    destinations: Sequence[str]
    reachable: Sequence[str]
    """Its destinations that answered last time."""
    asleep: bool = False
    """It asks writers to wake it."""
    started_at: datetime | None = None
    expires_at: datetime | None = None
    lease: timedelta | None = None
    """How long it asked to count as alive. None in a row that an older release wrote."""
    labels: Mapping[str, str] = {}
    """What its settings say about it: a team, a region. In a row that others wrote, what can be read of them."""


class Registry(msgspec.Struct, frozen=True):
    """The live relays and the owners of lanes, at one moment of the store's clock."""

    now: datetime
    relays: Sequence[RelayInfo]
    """Live ones only: not expired, and not promising to live longer than their own lease."""
    owners: Mapping[str, Mapping[int, UUID]]
    """Destination to partition to live owner. A lane that is missing is free."""


# --- claims and outcomes ---


class Claim(msgspec.Struct, frozen=True):
    """A batch in a relay's hands. `number` is the relay's own count, so repeating a claim is harmless."""

    number: int
    message_ids: Sequence[int]
    strikes: int = 0
    """The number of times that a relay died with these in its hands."""


class RecoveredClaim(msgspec.Struct, frozen=True):
    """Messages that were in a dead relay's hands, now in the new owner's, under one claim of its own."""

    claim: Claim
    messages: Sequence[Message]
    """Without payload and headers."""


class FailedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a message that was not delivered. Absolute values: writing it twice changes nothing."""

    message_id: int
    state: State
    """`failed`, `skipped` or `discarded` close it; `pending` leaves it open under `waits`."""
    waits: Waits | None = None
    attempts: int = 0
    error: str | None = None
    delay: timedelta | None = None
    """From the store's now to the next attempt, for `retry` and `deferred`."""
    detail: str | None = None
    """For the journal alone: the redacted stack trace or the broker's full answer."""
    forward_to: str | None = None
    """Destination to which a failed message goes on at once, with no attempt spent, instead of being closed."""
    spends: bool = True
    """An attempt was spent. Otherwise the message was tried and is not given up: the destination is at fault."""
    tried: bool = True
    """The message was sent. Otherwise it only waits, because its address takes nothing at present."""
    tries: int = 0
    """How often it was tried, with or without an attempt. For the log alone; 0 if not known."""
    tried_for: timedelta | None = None
    """Time since the first of these, for the log alone."""

    @property
    def action(self) -> Action | None:
        """The action of its line in the journal; None for parking and for waiting unsent, which leave no line."""
        if self.waits is Waits.RETRY and not self.tried:
            return None
        if self.waits is Waits.RETRY and not self.spends:
            return Action.TRIED
        return _STATE_ACTIONS.get(self.state) or _WAITS_ACTIONS.get(self.waits or Waits.PARKED)

    def check(self) -> None:
        """Raise `IllegalTransition` if an undelivered message cannot become this. Stores check before they write."""
        if self.state in (State.DELIVERED, State.SENDING) or (self.state is State.PENDING) != (self.waits is not None):
            waits = "nothing" if self.waits is None else self.waits.value
            raise IllegalTransition(
                f"Message {self.message_id} is sending and a failure cannot make it {self.state.value}, waiting for "
                f"{waits}; close it as failed, skipped or discarded, or leave it pending with a reason to wait."
            )
        if self.forward_to is not None and self.state is not State.FAILED:
            raise IllegalTransition(
                f"Message {self.message_id} becomes {self.state.value} and cannot go on to {self.forward_to}: "
                "only a failed one is forwarded."
            )


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of one or several claims, recorded together or not at all."""

    delivered: Sequence[int] = ()
    failures: Sequence[FailedOutcome] = ()
    returned: Sequence[int] = ()
    """Given back untouched: out of the claim, nothing else changes."""
    finished: Sequence[int] = ()
    """Numbers of the claims that have nothing left in them.

    A settlement that names claims, here or below, reaches only messages that are in them. One that arrives a second
    time, because its answer was lost, finds them gone, and changes nothing that an operator did since.
    """
    touched: Sequence[int] = ()
    """Numbers of the claims that keep something: the ids above are taken out of them."""
    message_ids: Mapping[int, UUID] = {}
    """The message that was sent under each id. A row that has another one is left alone: the database lost commits, and
    gave the id to a later message. An id that is missing here goes by itself."""

    @property
    def claims(self) -> Sequence[int]:
        """Numbers of all claims that it names."""
        return [*self.finished, *self.touched]

    def list_unclaimed(self, claimed: Collection[int]) -> list[int]:
        """Return the ids of outcomes whose messages are not in its claims any more."""
        ids = [*self.delivered, *(failure.message_id for failure in self.failures)]
        return [id_ for id_ in ids if id_ not in claimed]

    def list_returned(self, claimed: Collection[int]) -> list[int]:
        """Return the ids that it gives back, as far as they are in its claims. One that names none gives back all."""
        return [id_ for id_ in self.returned if not self.claims or id_ in claimed]

    def narrow(self, claimed: Collection[int]) -> Settlement:
        """Return the settlement without the outcomes of messages that are not in its claims any more."""
        return msgspec.structs.replace(
            self,
            delivered=[id_ for id_ in self.delivered if id_ in claimed],
            failures=[failure for failure in self.failures if failure.message_id in claimed],
        )


# --- actions of operators ---


class Action(StrEnum):
    """The event that a line of the journal records."""

    ATTEMPT_FAILED = "attempt_failed"
    TRIED = "tried"
    """A try that failed and spent no attempt."""
    FAILED = "failed"
    HELD = "held"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    REDRIVEN = "redriven"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    PAUSED = "paused"
    RESUMED = "resumed"
    PURGED = "purged"
    RESTORED = "restored"
    OUTAGE = "outage"
    """A relay found that a destination cannot be reached, or acknowledges nothing."""
    RECOVERED = "recovered"
    """A relay found that it works again."""
    TOOK_OVER = "took_over"
    """A relay took lanes of a dead one."""
    PROBED = "probed"
    """A person had relays try a destination at once."""


_WAITS_ACTIONS: Final = {Waits.RETRY: Action.ATTEMPT_FAILED, Waits.HELD: Action.HELD, Waits.DEFERRED: Action.DEFERRED}
_STATE_ACTIONS: Final = {
    State.FAILED: Action.FAILED,
    State.SKIPPED: Action.SKIPPED,
    State.DISCARDED: Action.DISCARDED,
}


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Line of the journal: a failed attempt, an action of an operator, or a change that a relay noticed."""

    message_id: UUID | None
    destination: str
    action: str
    at: datetime
    by: str
    attempt: int | None = None
    error: str | None = None
    detail: str | None = None
    id: int = 0
    """Its place in the journal: later lines have higher ids."""
    reason: str | None = None
    """Why an operator did it, in the operator's words."""
    selection: str | None = None
    """Which messages a bulk action named: the JSON of its `Selection`, without the conditions that are not set."""


class HistoryPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Partition of history whose messages have expired, but for a few."""

    number: int
    first: int
    last: int
    cutoffs: Mapping[State, datetime] = {}
    """Times before which messages of a state were closed that go; those of other states stay."""
    keep: Sequence[int] = ()
    """Ids that were found to stay."""
    is_detached: bool = False
    """True if it was taken out of history already, by a janitor that ended before it was done."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on messages: every one that is set must hold."""

    ids: Sequence[int] | None = None
    message_ids: Sequence[UUID] | None = None
    states: Sequence[State] | None = None
    destination: str | None = None
    topic: str | None = None
    type: str | None = None
    key: str | None = None
    correlation_id: str | None = None
    error: str | None = None
    """A part of the last error, letter case ignored."""
    fingerprint: str | None = None
    """Failed or held with an error of this fingerprint. Empty: those of none, which an older release closed."""
    since: datetime | None = None
    """Created at or after."""
    until: datetime | None = None
    """Created before."""
    changed_before: datetime | None = None
    """Last change before."""
    min_attempts: int | None = None
    tried: bool = False
    """Has a last error: it was tried and not delivered, or waits because its address takes nothing."""
    after: int = 0
    """Ids above this one: where the previous page ended."""
    before: int | None = None
    """Ids below this one: where the previous page ended that began with the highest."""
    phase: Phase | None = None
    """Open, and in this phase at the time `phase_at`."""
    phase_at: datetime | None = None
    """The time that tells `due` from `later`; needed with these two."""


class BulkResult(msgspec.Struct, frozen=True):
    """The changes of one batch of an operator's action."""

    count: int
    last_id: int
    """Pass as `Selection.after` for the next batch."""
    without_payload: int = 0
    """Selected, but left alone: their payload was not kept."""


class InboxSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on failed messages of inboxes: every one that is set must hold."""

    consumer: str | None = None
    message_ids: Sequence[str] | None = None
    error: str | None = None
    """A part of the last error, letter case ignored."""


class InboxFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a consumer could not handle."""

    consumer: str
    source: str
    message_id: str
    attempts: int
    error: str | None
    failed_at: datetime
    content: bytes
    """The whole delivery, as `pillarbox.decoding.decode_incoming` reads it; empty if the database refused it."""


class InboxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an inbox knows of one message."""

    consumer: str
    source: str
    message_id: str
    status: str
    """`started`, `done` or `failed`."""
    at: datetime
    """Time of the last change."""
    attempts: int
    error: str | None
    duplicates: int = 0
    """How often it came again after it was done."""


class InboxActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What one consumer did of late."""

    consumer: str
    handled: int
    """Messages that it handled between `since` and now."""
    duplicates: int
    """How often these came again."""
    since: datetime
    """When the window began, or the first record that was looked at is from, if there were more."""
    last_at: datetime | None
    """When it last handled one, of those that were looked at."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that a person stopped."""

    destination: str
    by: str
    at: datetime
    reason: str


class DestinationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What operators ask of the relays that serve a destination."""

    destination: str
    pause: Pause | None = None
    probe_at: datetime | None = None
    """When a person last asked to try it at once."""


# --- statistics ---


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages that share a destination, topic and state."""

    destination: str
    topic: str | None
    """None: more of them, whose topics were not looked at."""
    state: State
    due: bool
    """False for messages that wait for a later time."""
    count: int
    oldest_at: datetime | None
    """Time at which the oldest of them was due (open) or changed (closed), of those that were looked at."""
    more: bool = False
    """At least so many: counting ended there."""


class InboxCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages that one consumer could not handle."""

    consumer: str
    failed: int
    oldest_at: datetime
    """Time at which the first of them failed."""
    more: bool = False
    """At least so many: counting ended there."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed and held messages of one destination whose errors have the same fingerprint."""

    destination: str
    fingerprint: str
    """The error with its ids, numbers and quoted values replaced; empty: not classified, see `Selection`."""
    count: int
    more: bool
    """At least so many: counting ended there."""
    first_at: datetime
    last_at: datetime
    """When the first and the last of them failed, of those that were looked at."""
    keys: int
    """Distinct keys among those that were looked at. A store looks at the latest 1,000 or more."""
    example: Message
    """The latest, without payload."""
    tries: Tries | None = None
    """Tries of the example; None if it was never sent."""


class Tries(msgspec.Struct, frozen=True):
    """The tries of a message that failed, whether or not they spent an attempt."""

    count: int
    first_at: datetime
    """Time of the first of them."""

    def find_end(self, message: Message, now: datetime) -> datetime:
        """Return until when the message was tried: now while it is open, else the time at which it ended."""
        is_open = message.state in (State.PENDING, State.SENDING)
        return now if is_open or message.status_at is None else message.status_at


class BlockedKeyCount(msgspec.Struct, frozen=True, kw_only=True):
    """A key that waits for one of its messages."""

    destination: str
    partition: int
    key: str
    head: Message
    """The message that the key waits for, without payload. Its `waits` says what that waits for."""
    waiting: int
    """Messages that stand behind it in the table of what is blocked. Later ones may not have been parked yet."""
    more: bool
    """At least so many: counting ended there."""


class PhaseCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages of a destination that stand in a phase."""

    destination: str
    phase: Phase
    """Not `due`: those are the other pending ones."""
    count: int
    more: bool
    """At least so many: counting ended there."""


class LaneBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in one lane."""

    partition: int
    due: int
    more: bool
    """At least so many: counting ended there."""
    oldest_at: datetime | None
    """When the longest waiting of those that were looked at first could have gone."""


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a database as a whole."""

    schema_version: int | None
    """None: the store has no tables."""
    server: str
    """Its product and version."""
    oldest_transaction: timedelta | None = None
    """How long the oldest open transaction has been open, of those that this login may see."""
    hidden_transactions: bool = False
    """Other logins have sessions, and this one may not look into them."""
    bytes: int | None = None
    """Size of the whole file, where the database is one."""


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Size of one table, with its indexes."""

    name: str
    rows: int | None
    """An estimate of the server's; None where it has none."""
    bytes: int | None
    dead_rows: int | None
    """Rows that were deleted and not cleaned up yet."""


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one destination in one minute, or in a step of several."""

    destination: str
    minute: datetime
    """When the minute or the step began."""
    delivered: int = 0
    failed: int = 0
    """Messages that were given up: closed as failed, held, or forwarded to their dead letter."""
    retried: int = 0
    """Attempts that failed and are made again."""
    discarded: int = 0
    returned: int = 0
    """Messages that relays gave back unsent."""
    backlog: int = 0
    """The most due messages that a relay counted; 0 also where none counted."""
    latency_sum: float = 0.0
    latency_max: float = 0.0
    """Seconds from when a message first could have gone to when it was recorded as delivered."""
    end_to_end_sum: float = 0.0
    end_to_end_max: float = 0.0
    """Seconds from when it happened."""
    latencies: Sequence[int] = (0,) * (len(LATENCY_BOUNDS) + 1)
    """Deliveries by latency. A bucket ends below its bound in `LATENCY_BOUNDS`; the last one has no end."""


class OpenClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that has been in a relay's hands for long."""

    relay_id: UUID
    claimed_at: datetime
    message_ids: Sequence[int]
    strikes: int
