"""Every extension point, and the values that cross it. A docstring here is a contract.

`StoreContract` and `TransportContract` in `pillarbox.testing` check an implementation against these words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from pillarbox.cloudevents.event import Binding
from pillarbox.errors import IllegalTransition
from pillarbox.message import Message, State, Waits
from pillarbox.names import Names

__all__ = [
    "Accept",
    "Activity",
    "AsyncWriter",
    "BlockedKey",
    "Claim",
    "Count",
    "Cursor",
    "Entry",
    "Fail",
    "Fence",
    "Finding",
    "Forget",
    "InboxAsk",
    "InboxFailure",
    "InboxSelection",
    "Inherited",
    "Insert",
    "Inspector",
    "Lane",
    "Moved",
    "OpenClaim",
    "Outcome",
    "Pause",
    "Plain",
    "Reading",
    "Received",
    "Receiver",
    "ReceiverFeatures",
    "Redriven",
    "Registry",
    "RelayInfo",
    "Sample",
    "Selection",
    "Settlement",
    "Severity",
    "Start",
    "Store",
    "StoreFeatures",
    "StoreInspector",
    "Transport",
    "TransportFeatures",
    "Trouble",
    "Wakeups",
    "Writer",
]


class StoreFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What a store can do beyond the contract's minimum."""

    name: str
    """The word before `://`, and the name of its test group."""
    late_rows: bool
    """Ids can become visible out of order, and `read` returns the late ones."""
    notifies: bool
    """Writers can wake a sleeping relay."""
    shared: bool
    """Several processes can use it at once."""
    skips_keys: bool = False
    """`read` passes by the keys that its cursor skips. Without it the rest of a hot key must be parked."""


# --- reading -----------------------------------------------------------------------------------


class Cursor(msgspec.Struct, frozen=True):
    """How far each lane has been read. Opaque outside the store that made it; dies with its connection."""

    low: Mapping[int, int] = {}
    """Partition to the highest id already returned; a partition that is missing starts over."""
    snapshot: object = None
    session: object = None
    skip: Sequence[str] = ()
    """Keys whose fresh messages are left out. What comes late of them is not."""

    def skipping(self, keys: Sequence[str]) -> Cursor:
        """Leave these keys out next time: the reader has met enough of them, and knows where the rest begins."""
        return Cursor(self.low, self.snapshot, self.session, keys)

    def restarted(self, partitions: Iterable[int]) -> Cursor:
        """Read these lanes from their start next time: what was given back, or the safety net."""
        again = set(partitions)
        low = {partition: mark for partition, mark in self.low.items() if partition not in again}
        return Cursor(low, self.snapshot, self.session)


class Reading(msgspec.Struct, frozen=True):
    """What one read saw, in id order."""

    messages: Sequence[Message]
    cursor: Cursor
    complete: frozenset[int] = frozenset()
    """Lanes that were read to their end: none of their fresh messages was left for a later read."""


class BlockedKey(msgspec.Struct, frozen=True):
    """A key with a `retry`, `parked` or `held` message."""

    partition: int
    key: str
    front: Waits
    """What the first of them waits for. `parked`: whatever it waited for is gone, and it can go."""


# --- owning lanes ------------------------------------------------------------------------------


class Lane(msgspec.Struct, frozen=True):
    """One destination's share of one partition, under one ownership."""

    destination: str
    partition: int
    epoch: int


class Fence(msgspec.Struct, frozen=True):
    """Proof of ownership that goes with every write: these lanes of one destination, at these epochs."""

    relay_id: UUID
    destination: str
    epochs: Mapping[int, int]
    """Partition to epoch."""

    def narrowed(self, partitions: Iterable[int]) -> Fence:
        """The same proof for some of the lanes."""
        return Fence(self.relay_id, self.destination, {p: self.epochs[p] for p in partitions})


class Claim(msgspec.Struct, frozen=True):
    """A batch in a relay's hands. `number` is the relay's own count, so repeating a claim is harmless."""

    number: int
    message_ids: Sequence[int]
    strikes: int = 0
    """How often a relay died with these in its hands."""


class Inherited(msgspec.Struct, frozen=True):
    """Messages that were in a dead relay's hands, now in the new owner's, under one claim of its own."""

    claim: Claim
    messages: Sequence[Message]


class RelayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A relay's row in the registry."""

    relay_id: UUID
    service: str
    host: str
    pid: int
    version: str
    destinations: Sequence[str]
    reachable: Sequence[str]
    """Those of its destinations that answered last time."""
    asleep: bool = False
    """It asks writers to wake it."""
    started_at: datetime | None = None
    expires_at: datetime | None = None


class Registry(msgspec.Struct, frozen=True):
    """Who is alive and who owns what, at one moment of the store's clock."""

    now: datetime
    relays: Sequence[RelayInfo]
    """Live ones only: not expired, and not promising to live longer than a lease."""
    owners: Mapping[str, Mapping[int, UUID]]
    """Destination to partition to live owner. What is missing is free."""


# --- outcomes ----------------------------------------------------------------------------------


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a message that was not delivered. Absolute values: writing it twice changes nothing."""

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

    def check(self) -> None:
        """`IllegalTransition` for what is no outcome of an undelivered message. Every store asks before it writes."""
        if self.state in (State.DELIVERED, State.SENDING) or (self.state is State.PENDING) != (self.waits is not None):
            waits = "nothing" if self.waits is None else self.waits.value
            raise IllegalTransition(
                f"Message {self.message_id} is sending and trouble cannot make it {self.state.value}, waiting for "
                f"{waits}; close it as failed, skipped or discarded, or leave it pending with a reason to wait."
            )


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of one or several claims, recorded together or not at all."""

    delivered: Sequence[int] = ()
    troubles: Sequence[Trouble] = ()
    returned: Sequence[int] = ()
    """Given back untouched: out of the claim, nothing else changes."""
    finished: Sequence[int] = ()
    """Numbers of the claims that have nothing left in them."""
    touched: Sequence[int] = ()
    """Numbers of the claims that keep something: the ids above are taken out of them."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the journal: a failed attempt or what a person did."""

    message_id: UUID | None
    destination: str
    action: str
    at: datetime
    by: str
    attempt: int | None = None
    error: str | None = None
    detail: str | None = None


# --- asking and operating ----------------------------------------------------------------------


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages: every condition that is set must hold."""

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
    since: datetime | None = None
    """Created at or after."""
    until: datetime | None = None
    """Created before."""
    changed_before: datetime | None = None
    """Last change before."""
    min_attempts: int | None = None
    after: int = 0
    """Ids above this one: where the previous page ended."""


class Moved(msgspec.Struct, frozen=True):
    """What one batch of an operator's action changed."""

    count: int
    last_id: int
    """Pass as `Selection.after` for the next batch."""
    without_payload: int = 0
    """Selected, but left alone: their payload was not kept."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages share a destination, topic and state."""

    destination: str
    topic: str | None
    """None: more of them, whose topics were not looked at."""
    state: State
    due: bool
    """False for what waits for a later time."""
    count: int
    oldest_at: datetime | None
    """When the oldest of them was due (open) or changed (closed), of those that were looked at."""
    more: bool = False
    """So many or more: the look ended there."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One of the latest deliveries."""

    destination: str
    topic: str
    latency: timedelta
    """From when it was due to when it was recorded as delivered."""
    end_to_end: timedelta
    """From when it happened."""
    at: datetime
    """When it was recorded as delivered."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What happened lately, as far as it was looked at."""

    delivered: Sequence[Sample]
    """The latest deliveries in the window, newest first."""
    attempts_failed: Mapping[str, int]
    """Destination to how many attempts failed in the window."""
    complete: bool
    """Nothing in the window was left out for want of room."""


class OpenClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that has been in a relay's hands for long."""

    relay_id: UUID
    claimed_at: datetime
    message_ids: Sequence[int]
    strikes: int


class InboxSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which failed messages of inboxes: every condition that is set must hold."""

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
    """All that came, as `pillarbox.receiving.received_from` reads it."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that a person, or the relay itself, stopped."""

    destination: str
    by: str
    at: datetime
    reason: str


class Wakeups(Protocol):
    """A standing request to be woken."""

    @property
    def is_listening(self) -> bool:
        """Whether a wake-up would arrive now."""


class Store(Protocol):
    """Keeps messages, claims, lanes and relays. The relay, the monitor and the operator use only this.

    All times are the store's own clock. Every method is one transaction. A lost connection, a full pool or a
    server that is away raises `StoreUnavailable`; after it the caller knows nothing of the outcome, and
    repeating the call is safe.
    """

    @property
    def features(self) -> StoreFeatures:
        """What this store can do beyond the minimum."""

    async def open(self) -> None:
        """Connect and check the schema; `SchemaMissing`, `SchemaOutdated` or `SchemaNewer` where it does not fit."""

    async def close(self) -> None:
        """Let go of every connection. Closing twice is harmless."""

    async def now(self) -> datetime:
        """The store's clock."""

    # reading

    async def read(self, destination: str, *, partitions: Sequence[int], cursor: Cursor | None, limit: int) -> Reading:
        """Fresh messages of these lanes above the cursor, and all that became visible late below it.

        At most `limit` fresh ones, the lanes taking turns in the order of `partitions`; within a lane no
        visible fresh message is passed over for a later one. Late ones come in addition. Changes nothing.

        Where the store skips keys, fresh ones of the keys in `cursor.skip` are passed over all the same: they do
        not come, and the mark of a lane that was read to its end stands above them.
        """

    async def read_due(
        self, destination: str, *, partitions: Sequence[int], limit: int, skip: Sequence[int] = ()
    ) -> Sequence[Message]:
        """Deferred and retrying messages whose time has come, longest due first, without the ids in `skip`."""

    async def read_key(
        self, destination: str, *, partition: int, key: str, after: int, limit: int
    ) -> Sequence[Message]:
        """The messages of one key that are blocked (`retry`, `parked`, `held`), by id, above `after`."""

    async def blocked_keys(self, destination: str, *, partitions: Sequence[int]) -> Sequence[BlockedKey]:
        """Each key with a blocked message, once. Costs one probe per key, however many wait behind it."""

    async def next_due(self, destination: str, *, partitions: Sequence[int]) -> datetime | None:
        """When the next deferred or retrying message of these lanes comes due; None if there is none."""

    # claiming and settling: fenced

    async def claim(self, fence: Fence, claim: Claim, *, park: Sequence[int] = ()) -> None:
        """Record the batch as in this relay's hands, and park what waits behind an earlier message.

        Parked are messages that are fresh or deferred; a claim without messages only parks. Committed when it
        returns. `Fenced` names the lanes that belong to another relay, and nothing is written. Repeating a claim
        with the same number changes nothing.
        """

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        """Record outcomes: delivered rows close, troubled ones close or wait, ids leave their claims.

        `Fenced` as in `claim`. What is no longer open is left alone, so repeating is harmless. Trouble is
        durable when this returns; a delivery may be lost by a crash of the database, which costs a repeat.
        """

    # membership

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        """Enter the registry, alive for one lease."""

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        """Live for another lease. False when already expired or gone: then everything must be dropped."""

    async def registry(self, *, lease: timedelta) -> Registry:
        """The live relays and the lanes they own. An `expires_at` more than `lease` ahead counts as expired."""

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[Inherited]]:
        """Own those of the lanes that are free, and inherit what was in the dead owners' hands.

        One transaction: the lane's row is locked (what another relay is taking is skipped), its epoch raised,
        the dead relay's ids in it move into claims of this relay numbered from `claim_number`, one claim per count of
        strikes; the expired relay's row goes. Durable when it returns. They are told with one strike more than their
        new claims keep: until they are claimed anew none of them is under way, and dying with them proves nothing.
        A lane this relay owns already is returned under a new epoch too.
        """

    async def release(self, fence: Fence) -> None:
        """Give lanes up at once, and drop this relay's claims on messages in them. Not owning one is fine."""

    async def leave(self, relay_id: UUID) -> None:
        """Release every lane, drop every claim, and leave the registry."""

    async def forget(self, *, stale_after: timedelta) -> int:
        """Remove relays that expired this long ago and claims whose relay is gone and whose lanes are free."""

    def wakeups(self, wake: Callable[[], None]) -> AbstractAsyncContextManager[Wakeups]:
        """Call `wake` soon after a writer committed, as far as the store can tell, while the block runs.

        Silence proves nothing: polling stays correct without it. A store that needs it is told by `renew`'s `asleep`
        when anybody wants to be woken.
        """

    # operating: every one lands in the journal with `by`

    async def redrive(self, selection: Selection, *, by: str, limit: int, to: str | None = None) -> Moved:
        """Send failed, held, skipped or discarded messages again, in id order, attempts back at 0.

        With `to` they go to that destination instead. A skipped one needs it. Other states are not touched;
        asked for by id alone they are an `IllegalTransition`.
        """

    async def replay(self, selection: Selection, *, by: str, limit: int) -> Moved:
        """Send delivered messages again, same message id, in id order."""

    async def discard(self, selection: Selection, *, by: str, reason: str, limit: int) -> Moved:
        """Close pending, held or failed messages without sending. One in a relay's hands is refused."""

    async def defer(self, selection: Selection, *, until: datetime, by: str, limit: int) -> Moved:
        """Let pending messages wait until then. Attempts stay. The key waits with them."""

    async def purge(self, state: State, *, older_than: timedelta, limit: int) -> int:
        """Delete closed messages of that state, oldest first, with their journal."""

    async def purge_ids(self, ids: Sequence[int]) -> int:
        """Delete these closed messages: what an archive has taken."""

    async def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        """Delete dedup records that are done and older than the window."""

    async def redrive_inbox(self, selection: InboxSelection, *, by: str, limit: int) -> int:
        """Have failed messages of an inbox handled again, longest failed first, with all their attempts; how many."""

    async def discard_inbox(self, selection: InboxSelection, *, by: str, reason: str, limit: int) -> int:
        """Close failed messages of an inbox as done, without handling them; how many."""

    async def note(self, action: str, *, by: str, detail: str) -> None:
        """Tell the journal what a person did to the store as a whole: a line about no message, of destination `*`."""

    async def pause(self, destination: str, *, by: str, reason: str) -> None:
        """Stop delivery to a destination until resumed. Messages wait; nothing is spent."""

    async def resume(self, destination: str, *, by: str) -> bool:
        """Start it again. False when it was not paused."""

    async def pauses(self) -> Sequence[Pause]:
        """Which destinations are paused."""

    # asking

    async def find(self, selection: Selection, *, limit: int, payloads: bool = True) -> Sequence[Message]:
        """Messages, open and closed, with their state, by id. `payloads=False` leaves the bytes out."""

    async def count(self, selection: Selection) -> int:
        """How many messages are selected, exactly. Looks at every one of them."""

    async def journal(self, *, message_id: UUID | None = None, limit: int = 100) -> Sequence[Entry]:
        """What went wrong and what people did, oldest first; of one message, or the latest of all."""

    async def inbox_failures(self, selection: InboxSelection, *, limit: int) -> Sequence[InboxFailure]:
        """Messages that consumers could not handle, longest failed first."""

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        """Messages by destination, topic and state. No count looks at more than `limit` rows.

        A store may look at fewer where it costs much: at the topics of the first alone (the others count without
        one), or at the latest alone. Whatever was left uncounted is told as `more`.
        """

    async def oldest_due(self) -> Mapping[str, datetime]:
        """Destination to when the longest waiting of its open messages was due. Exact, one probe per lane.

        What is parked waits for another message, and does not count.
        """

    async def activity(self, *, window: timedelta, limit: int = 10_000) -> Activity:
        """What was delivered and what failed since then, looking at no more than the latest `limit` of each."""

    async def claims(self, *, older_than: timedelta, limit: int = 50) -> Sequence[OpenClaim]:
        """Batches that have been in a relay's hands for this long, oldest first."""


@runtime_checkable
class StoreInspector(Protocol):
    """A store whose database has settings that can lose commits, or rights that can be missing, and that can look."""

    async def inspect(self) -> Sequence[Finding]:
        """What is set or missing there that could lose or delay messages. Changes nothing.

        `StoreUnavailable` as every method. What the login may not see is said in a finding.
        """


# --- transports --------------------------------------------------------------------------------


class TransportFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What a transport promises."""

    name: str
    batch: int = 500
    """How many messages one `send` takes at most. 1: each message is answered on its own."""
    ordered_window: bool = False
    """Several messages of a key may be under way: the broker stops the later ones at the first failure."""
    max_payload: int | None = None
    """The largest payload in bytes that the broker is known to take."""


class Outcome(msgspec.Struct, frozen=True):
    """The broker's answer for one message. `delivered` is said only on its own word."""

    delivered: bool
    error: str | None = None
    rejected: bool = False
    """It will never be taken: the message's own fault."""
    retry_after: timedelta | None = None
    """The broker's own word on when to try again."""
    detail: str | None = None
    """More for the journal: a redacted stack trace, the broker's full answer."""
    lost: bool = False
    """The connection broke before this one was answered, after others were. Costs it no attempt."""


class Severity(Enum):
    """How bad a finding is."""

    INFO = "info"
    WARNING = "warning"
    """Messages can be lost or delayed when something else goes wrong too."""
    CRITICAL = "critical"
    """Messages are lost, or cannot be delivered."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know about a store or a destination, and what to do about it."""

    code: str
    """A stable name such as `rabbitmq.queue-not-durable`."""
    severity: Severity
    what: str
    why: str
    fix: str


class Transport(Protocol):
    """Speaks to one broker. One instance per destination; `send` may be called again before the last call ended."""

    @property
    def features(self) -> TransportFeatures:
        """What this transport promises."""

    async def open(self) -> None:
        """Connect; `TransportUnavailable` when the broker cannot be reached."""

    async def close(self) -> None:
        """Disconnect. Closing twice is harmless."""

    async def ping(self) -> None:
        """Ask the broker whether it is there, without a message; `TransportUnavailable` when not."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Deliver each message; answer for each, in the same order.

        `delivered` is said only on the broker's own word. Raises `TransportUnavailable` when the broker
        cannot be reached, or the connection broke before any was answered; when it broke after some were, the
        others are `lost`. What was not answered for was not delivered.
        """


@runtime_checkable
class Inspector(Protocol):
    """A transport whose broker has settings that can lose messages, and that can look at them."""

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        """What is set on the broker's side that could lose messages of these topics. Changes nothing.

        `TransportUnavailable` when the broker cannot be reached. What the login may not see is said in a finding.
        """


# --- receivers ---------------------------------------------------------------------------------


class ReceiverFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver promises."""

    name: str
    horizon: timedelta | None = None
    """How long after its first delivery a broker may still deliver a message again, where it has such a limit."""


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """Who a message is when it does not say so itself: it is no CloudEvent, or not a whole one."""

    message_id: str
    """The producer's own id if there is one, or else the place in the broker: the same at every delivery."""
    source: str
    type: str
    topic: str
    key: str | None = None


class Received(msgspec.Struct, kw_only=True, eq=False):
    """A message in a consumer's hands, as it came."""

    headers: Mapping[str, Any]
    body: bytes
    binding: Binding
    """How CloudEvents attributes are written on this wire."""
    plain: Plain
    redelivered: bool = False
    """A consumer may have had it in its hands before, and died."""
    token: Any = None
    """By which the receiver knows it."""


class Receiver(Protocol):
    """Reads one broker for one consumer. What is not acknowledged is delivered again, to this consumer or another."""

    @property
    def features(self) -> ReceiverFeatures:
        """What this receiver promises."""

    async def open(self) -> None:
        """Connect; `TransportUnavailable` when the broker cannot be reached or does not have what is to be read."""

    async def close(self) -> None:
        """Disconnect. What was not acknowledged goes back to the broker. Closing twice is harmless."""

    async def ping(self) -> None:
        """Ask the broker whether it is there; `TransportUnavailable` when not."""

    async def receive(self, *, limit: int) -> Sequence[Received]:
        """The next messages, in the broker's order: at least one, waiting for it, and at most `limit`.

        `TransportUnavailable` when the connection is lost; calling again connects again. Cancelling loses nothing.
        """

    async def acknowledge(self, received: Received) -> None:
        """It is done with, for good. Of a connection that is gone: nothing happens, and it comes again."""

    async def give_back(self, received: Received) -> None:
        """It was not handled; deliver it again, to anybody. Of a connection that is gone: nothing happens.

        Of several, the latest is given back first.
        """


# --- writing -----------------------------------------------------------------------------------


class Insert(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to put into the caller's transaction, as one statement."""

    names: Names
    messages: Sequence[Message]
    """In order. `available_at` is set on those with a fixed time."""
    delay: timedelta | None = None
    """From the database's now, for all of them."""
    serialize_keys: bool = False
    """Lock the keys first, in sorted order, so that ids follow commit order."""


class Accept(msgspec.Struct, frozen=True, kw_only=True):
    """Record a received message as done, in the caller's transaction. Answered with whether it is new."""

    names: Names
    consumer: str
    source: str
    message_id: str


class Start(Accept, frozen=True, kw_only=True):
    """Record that a message is about to be handled again. Answered with how often it was; 0: it is done already."""


class Fail(Accept, frozen=True, kw_only=True):
    """Keep a message as failed, unless it is done. Answered with nothing."""

    attempts: int
    error: str
    message: bytes
    """What came, whole, so that it can be handled again."""


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """Delete records of one consumer that are done and older than the window. Answered with how many."""

    names: Names
    consumer: str
    older_than: timedelta
    limit: int


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for failed messages that a person wants handled again. Answered with the `Fail.message` of each."""

    names: Names
    consumer: str
    limit: int


InboxAsk = Accept | Start | Fail | Redriven | Forget
"""What can be asked of the inbox, in the caller's transaction."""


class Writer(Protocol):
    """Joins a transaction that the caller began on a synchronous handle; never begins, commits or ends one."""

    def insert(self, batch: Insert) -> None:
        """Write the rows, or stage them so that they are written before the transaction can commit.

        `NotInTransaction` when the handle would commit on its own; then nothing was written.
        """

    def ask(self, ask: InboxAsk) -> Any:
        """Do it and answer as it says. Waits for a transaction that is just handling the same message.

        `NotInTransaction` as in `insert`.
        """


class AsyncWriter(Protocol):
    """`Writer` for handles that must be awaited."""

    async def insert(self, batch: Insert) -> None:
        """As `Writer.insert`."""

    async def ask(self, ask: InboxAsk) -> Any:
        """As `Writer.ask`."""
