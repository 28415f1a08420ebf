"""Status of all destinations and relays, read from the tables: for the command line, metrics, probes and alerts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec

from pillarbox.contracts.store import (
    LATENCY_BOUNDS,
    Action,
    Count,
    InboxCount,
    JournalEntry,
    MonitorStore,
    OpenClaim,
    Order,
    Pause,
    Phase,
    PhaseCount,
    Registry,
    RelayInfo,
    Rollup,
    Selection,
    Tries,
)
from pillarbox.durations import check_duration
from pillarbox.message import SKIPPED_DESTINATION, Message, State, Waits
from pillarbox.retry import DEFAULT_RETRY

__all__ = [
    "NOT_GIVEN_UP",
    "RETRIES_COUNTED_TO",
    "STUCK_AFTER",
    "BlockedKeyStatus",
    "DestinationStatus",
    "EndToEnd",
    "Latency",
    "Monitor",
    "NearFailure",
    "Status",
    "TopicStatus",
    "WaitingMessages",
    "build_destinations",
    "compute_latency",
    "count_tries",
    "sum_rollups",
]

STUCK_AFTER: Final = timedelta(minutes=15)
"""Age at which a claim counts as stuck, unless another is configured: far above every send timeout."""
_COUNT_LIMIT: Final = 100_000
_WINDOW: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
_SHORTEST_RATE_WINDOW: Final = timedelta(seconds=1)
_LIST_LIMIT: Final = 50
_WAITING_LIMIT: Final = 200
_MOST_BLOCKED: Final = 10
"""Most destinations whose blocked keys are listed."""
RETRIES_COUNTED_TO: Final = 1_000
"""Most messages of a destination that are counted as waiting for another attempt."""
_MAX_WAITING: Final = 10
"""Most groups of waiting messages. The journal of one message of each is read."""
_JOURNAL_LIMIT: Final = 1_000
NOT_GIVEN_UP: Final = "not given up, because the destination acknowledges nothing else, or its address takes nothing"
_STATES: Final = ("sending", "failed", "skipped", "discarded")
_NONE_HANDED_OFF: Final[Mapping[str, str]] = MappingProxyType({})


class NearFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Number of attempts after which a message is near failure: a share of the attempts of its destination."""

    share: float = 0.6
    attempts: Mapping[str, int | None] = {}
    """Destination to its configured attempts; None where they are not limited. Others have the default."""

    def threshold(self, destination: str) -> int | None:
        """Return the attempts, at least 1 and below the last; None for a destination that never gives up."""
        attempts = self.attempts.get(destination, DEFAULT_RETRY.attempts)
        if attempts is None or attempts < 2:
            return None
        return max(1, min(math.ceil(self.share * attempts - 1e-9), attempts - 1))

    def lowest(self, destination: str | None) -> int | None:
        """Return the threshold of this destination, or the lowest of all destinations, configured or not."""
        if destination is not None:
            return self.threshold(destination)
        thresholds = [self.threshold(name) for name in (*self.attempts, "")]
        return min(threshold for threshold in thresholds if threshold is not None)


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Time that the deliveries of the window took, each from when it first could have gone.

    Percentiles are estimated from the counts of each bucket, as Prometheus does it.
    """

    count: int
    """Deliveries that these figures are computed from."""
    average: timedelta
    p50: timedelta
    p95: timedelta
    p99: timedelta
    longest: timedelta


class EndToEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Time from when the messages delivered in the window happened to their delivery."""

    average: timedelta
    longest: timedelta


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one topic's messages for one destination."""

    topic: str
    due: int
    later: int
    """Pending, and not yet due."""
    sending: int
    failed: int
    skipped: int
    discarded: int


class DestinationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one destination. Counting stops at a limit: the counts named in `more` mean "or more"."""

    name: str
    topics: Sequence[TopicStatus]
    """Counts by topic. Where counting stopped at its limit, they add up to less."""
    due: int
    """Pending, and could have gone: fresh, waiting for another attempt, or behind an earlier message of their key."""
    later: int
    """Pending, and not yet due."""
    sending: int
    failed: int
    """Failed and held ones, which need attention."""
    skipped: int
    """Closed, because no route takes them. They are kept until a person sends or discards them."""
    discarded: int
    oldest_due_at: datetime | None
    """Time at which the longest waiting message first could have gone."""
    delivered: int
    """In the window."""
    retried: int
    """Attempts in the window that failed and are made again."""
    given_up: int
    """Messages that failed in the window, and are redriven, discarded or among `failed` now."""
    latency: Latency | None
    """None: nothing was delivered in the window."""
    end_to_end: EndToEnd | None
    rate: float
    """Deliveries a second, over this minute and the one before."""
    relays: int
    """Live relays that serve it."""
    reachable: int
    """Those of them that can reach it."""
    lanes: int
    """Lanes that a relay owns."""
    pause: Pause | None
    more: Sequence[str] = ()
    """Names of the counts that mean "or more"."""
    handed_off_to: str | None = None
    """Engine that delivers it from the log of the database; None if relays do."""

    @property
    def is_served(self) -> bool:
        return self.relays > 0

    @property
    def retry_rate(self) -> float:
        """Share of the attempts in the window that failed and are made again, 0 to 1."""
        return self.retried / self.attempts if self.attempts else 0.0

    @property
    def attempts(self) -> int:
        """All attempts in the window."""
        return self.delivered + self.retried + self.given_up


class BlockedKeyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A key with messages that wait behind one that failed or is tried again."""

    destination: str
    key: str
    head_id: int
    """The message that they wait for."""
    is_held: bool
    """It has failed, and needs attention. Otherwise it waits for another attempt."""
    error: str | None
    waiting: int
    """Messages behind it."""
    more: bool
    """True if the count stopped at its limit."""


class WaitingMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one topic that are not given up, though their last try failed: no attempt is spent on them.

    The destination acknowledges nothing else, or their address takes nothing at present.
    """

    destination: str
    topic: str
    error: str
    count: int
    more: bool
    """There may be more of them: the list ended there."""
    oldest_id: int
    since: datetime
    """Time at which the oldest of them was written."""
    attempts: int
    """Attempts that the oldest has spent."""
    tries: int
    """How often the oldest was tried. 0: it was not sent, because others showed that its address takes nothing."""
    first_try_at: datetime | None = None
    """Time of the first of these tries."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of everything at one moment of the store's clock."""

    at: datetime
    destinations: Sequence[DestinationStatus]
    relays: Sequence[RelayInfo]
    stuck: Sequence[OpenClaim]
    """Claims that a relay has held for longer than it should."""
    near_failure: Sequence[Message]
    """Pending messages that have few attempts left, without their payloads, most attempts first."""
    tries: Mapping[int, Tries] = {}
    """Tries of the messages near failure, by id."""
    waiting: Sequence[WaitingMessages] = ()
    """Messages that are not given up, though their last try failed, the oldest first."""
    inboxes: Sequence[InboxCount] = ()
    """Failed messages of consumers, by consumer."""
    blocked: Sequence[BlockedKeyStatus] = ()
    """Keys with messages behind one that is held or tried again: of each destination the longest waiting ones."""
    retrying: Mapping[str, int] = {}
    """Messages of each destination that wait for another attempt, up to 1,000. They are among those that are due."""
    counted_to: int = _COUNT_LIMIT
    window: timedelta = _WINDOW
    """Time that deliveries, failed attempts and latencies are of. It begins with a whole minute."""

    @property
    def skipped(self) -> int:
        """Messages that no route takes."""
        return sum(one.skipped for one in self.destinations)

    @property
    def skipped_more(self) -> bool:
        return any("skipped" in one.more for one in self.destinations)

    @property
    def skipped_topics(self) -> Sequence[str]:
        """Topics of the messages that no route takes, as far as they were looked up, most messages first."""
        counts: Counter[str] = Counter()
        for one in self.destinations:
            counts.update({topic.topic: topic.skipped for topic in one.topics if topic.skipped})
        return [topic for topic, _ in counts.most_common()]

    def oldest_age(self, destination: DestinationStatus) -> timedelta:
        """Return for how long a destination's longest waiting message has been due; zero if none is."""
        at = destination.oldest_due_at
        return timedelta(0) if at is None else max(self.at - at, timedelta(0))


class Monitor:
    """Reads the status from a store.

    Its cost is bounded: a count reads at most `counted_to` rows, and a list has at most 50 entries. A claim is in the
    list of the stuck ones after `stuck_after`. `handed_off` names the destinations that another engine delivers.
    """

    def __init__(
        self,
        store: MonitorStore,
        *,
        lease: timedelta = timedelta(seconds=10),
        window: timedelta = _WINDOW,
        stuck_after: timedelta = STUCK_AFTER,
        near_failure: NearFailure | None = None,
        counted_to: int = _COUNT_LIMIT,
        handed_off: Mapping[str, str] = _NONE_HANDED_OFF,
    ) -> None:
        for name, value in (("lease", lease), ("window", window), ("stuck_after", stuck_after)):
            check_duration(value, name)
        self._store = store
        self._handed_off = handed_off
        self._lease = lease
        self._window = window
        self._stuck_after = stuck_after
        self._near_failure = near_failure or NearFailure()
        self._counted_to = counted_to

    async def status(self, *, served: Iterable[str] = ()) -> Status:
        """Read the status. `served` are destinations to include even if the tables have nothing about them."""
        store = self._store
        registry = await store.registry(lease=self._lease)
        counts = await store.counts(limit=self._counted_to)
        oldest = await store.oldest_due()
        rollups = await store.rollups(window=self._window)
        pauses = {pause.destination: pause for pause in await store.pauses()}
        destinations = build_destinations(counts, oldest, rollups, registry, pauses, served=served)
        near_failure = await self._find_near_failure(counts)
        phases = await store.count_phases(limit=RETRIES_COUNTED_TO)
        return Status(
            at=registry.now,
            destinations=[self._mark_handed_off(one) for one in destinations],
            relays=registry.relays,
            stuck=await store.claims(older_than=self._stuck_after, limit=_LIST_LIMIT),
            near_failure=near_failure,
            tries=await store.count_tries(near_failure) if near_failure else {},
            waiting=await self._find_waiting(),
            inboxes=await store.inbox_counts(limit=self._counted_to),
            blocked=await self._find_blocked(phases),
            retrying={one.destination: one.count for one in phases if one.phase is Phase.RETRY},
            counted_to=self._counted_to,
            window=self._window,
        )

    def _mark_handed_off(self, one: DestinationStatus) -> DestinationStatus:
        engine = self._handed_off.get(one.name)
        return one if engine is None else msgspec.structs.replace(one, handed_off_to=engine)

    async def _find_near_failure(self, counts: Sequence[Count]) -> Sequence[Message]:
        found: list[Message] = []
        for name in sorted({count.destination for count in counts if count.state is State.PENDING}):
            threshold = self._near_failure.threshold(name)
            if threshold is not None:
                selection = Selection(states=[State.PENDING], destination=name, min_attempts=threshold)
                found += await self._store.find(selection, limit=_LIST_LIMIT, payloads=False, order=Order.ATTEMPTS)
        return sorted(found, key=lambda message: (-message.attempts, message.id))[:_LIST_LIMIT]

    async def _find_blocked(self, phases: Sequence[PhaseCount]) -> Sequence[BlockedKeyStatus]:
        names = sorted({one.destination for one in phases if one.phase is Phase.PARKED})[:_MOST_BLOCKED]
        found: list[BlockedKeyStatus] = []
        for name in names:
            keys = [one for one in await self._store.count_blocked(name, limit=_LIST_LIMIT) if one.waiting]
            keys.sort(key=lambda one: one.head.waits is not Waits.HELD)
            found += [
                BlockedKeyStatus(
                    destination=name, key=one.key, head_id=one.head.id, is_held=one.head.waits is Waits.HELD,
                    error=one.head.last_error, waiting=one.waiting, more=one.more,
                )
                for one in keys
            ]  # fmt: skip
        return found

    async def _find_waiting(self) -> Sequence[WaitingMessages]:
        selection = Selection(states=[State.PENDING], tried=True)
        found = await self._store.find(selection, limit=_WAITING_LIMIT, payloads=False)
        groups: dict[tuple[str, str, str], list[Message]] = defaultdict(list)
        for message in found:
            groups[message.destination, message.topic, message.last_error or ""].append(message)
        waiting = []
        shown = list(groups.items())[:_MAX_WAITING]
        counted = await self._store.count_tries([messages[0] for _, messages in shown]) if shown else {}
        for (destination, topic, error), messages in shown:
            oldest = messages[0]
            journal = await self._store.journal(message_id=oldest.message_id, limit=_JOURNAL_LIMIT)
            _, is_waiting = count_tries(journal, oldest)
            tries = counted.get(oldest.id)
            if is_waiting and oldest.created_at is not None:
                waiting.append(
                    WaitingMessages(
                        destination=destination, topic=topic, error=error, count=len(messages),
                        more=len(found) == _WAITING_LIMIT, oldest_id=oldest.id, since=oldest.created_at,
                        attempts=oldest.attempts, tries=0 if tries is None else tries.count,
                        first_try_at=None if tries is None else tries.first_at,
                    )
                )  # fmt: skip
        return waiting


# --- pure ---


def count_tries(journal: Sequence[JournalEntry], message: Message) -> tuple[int, bool]:
    """Count the failed tries of a message since a person last acted on it; return also whether it is not given up.

    It is, when its last try spent no attempt, or when it was never tried and waits for its address. One that was just
    sent on from another destination has the error of that one, and can be sent at once.
    """
    actions = [entry.action for entry in journal if entry.destination == message.destination]
    tries = 0
    for action in reversed(actions):
        if action not in (Action.TRIED, Action.ATTEMPT_FAILED):
            break
        tries += 1
    if actions:
        return tries, actions[-1] == Action.TRIED
    at, since = message.available_at, message.status_at
    return 0, at is not None and since is not None and at > since


def build_destinations(
    counts: Sequence[Count],
    oldest: Mapping[str, datetime],
    rollups: Sequence[Rollup],
    registry: Registry,
    pauses: Mapping[str, Pause],
    *,
    served: Iterable[str],
) -> Sequence[DestinationStatus]:
    """Build the status of every known destination, by name; of the reserved one only if it has messages."""
    in_registry = {name for relay in registry.relays for name in relay.destinations} - {SKIPPED_DESTINATION}
    counted = {rollup.destination for rollup in rollups} - {SKIPPED_DESTINATION}
    names = {*served, *in_registry, *counted, *oldest, *pauses, *(count.destination for count in counts)}
    return [
        _build_destination(
            name,
            counts=[count for count in counts if count.destination == name],
            oldest_due_at=oldest.get(name),
            rollups=[rollup for rollup in rollups if rollup.destination == name],
            registry=registry,
            pause=pauses.get(name),
        )
        for name in sorted(names)
    ]


def _build_destination(
    name: str,
    *,
    counts: Sequence[Count],
    oldest_due_at: datetime | None,
    rollups: Sequence[Rollup],
    registry: Registry,
    pause: Pause | None,
) -> DestinationStatus:
    topics = [
        TopicStatus(topic=topic, **_sum_counts([count for count in counts if count.topic == topic]))
        for topic in sorted({count.topic for count in counts if count.topic is not None})
    ]
    total = sum_rollups(name, rollups, at=registry.now)
    return DestinationStatus(
        name=name,
        topics=topics,
        **_sum_counts(counts),
        more=[name for name, group in _group_counts(counts).items() if any(count.more for count in group)],
        oldest_due_at=oldest_due_at,
        delivered=total.delivered,
        retried=total.retried,
        given_up=total.failed,
        latency=compute_latency(total),
        end_to_end=_compute_end_to_end(total),
        rate=_compute_rate(rollups, registry.now),
        relays=sum(name in relay.destinations for relay in registry.relays),
        reachable=sum(name in relay.reachable for relay in registry.relays),
        lanes=len(registry.owners.get(name, {})),
        pause=pause,
        handed_off_to=None,
    )


def sum_rollups(destination: str, rollups: Sequence[Rollup], *, at: datetime) -> Rollup:
    """Add up the counters of several minutes, as if they were one that began at this time."""
    return Rollup(
        destination=destination,
        minute=at,
        delivered=sum(one.delivered for one in rollups),
        failed=sum(one.failed for one in rollups),
        retried=sum(one.retried for one in rollups),
        discarded=sum(one.discarded for one in rollups),
        latency_sum=sum(one.latency_sum for one in rollups),
        latency_max=max((one.latency_max for one in rollups), default=0.0),
        end_to_end_sum=sum(one.end_to_end_sum for one in rollups),
        end_to_end_max=max((one.end_to_end_max for one in rollups), default=0.0),
        latencies=[sum(column) for column in zip(*(one.latencies for one in rollups), strict=True)],
    )


def _compute_rate(rollups: Sequence[Rollup], now: datetime) -> float:
    """Return the deliveries a second since the minute before this one began. Counters are by whole minutes."""
    since = now.replace(second=0, microsecond=0) - _MINUTE
    delivered = sum(rollup.delivered for rollup in rollups if rollup.minute >= since)
    return delivered / max(now - since, _SHORTEST_RATE_WINDOW).total_seconds()


def _sum_counts(counts: Sequence[Count]) -> dict[str, int]:
    return {name: sum(count.count for count in group) for name, group in _group_counts(counts).items()}


def _group_counts(counts: Sequence[Count]) -> dict[str, list[Count]]:
    """Group counts by their names in a status: pending messages are `due` or `later`."""
    groups: dict[str, list[Count]] = {name: [] for name in ("due", "later", *_STATES)}
    for count in counts:
        name = count.state.value
        if count.state is State.PENDING:
            name = "due" if count.due else "later"
        groups[name].append(count)
    return groups


def compute_latency(rollup: Rollup) -> Latency | None:
    """Compute the average, and estimate percentiles within the buckets; None without deliveries."""
    if not rollup.delivered:
        return None
    return Latency(
        count=rollup.delivered,
        average=timedelta(seconds=rollup.latency_sum / rollup.delivered),
        p50=_estimate_percentile(rollup, 0.50),
        p95=_estimate_percentile(rollup, 0.95),
        p99=_estimate_percentile(rollup, 0.99),
        longest=timedelta(seconds=rollup.latency_max),
    )


def _estimate_percentile(rollup: Rollup, share: float) -> timedelta:
    """Return the point in its bucket at which so large a share of the deliveries is reached."""
    wanted = share * sum(rollup.latencies)
    edges = pairwise((0.0, *LATENCY_BOUNDS, rollup.latency_max))
    for (low, high), count in zip(edges, rollup.latencies, strict=True):
        if count and count >= wanted:
            width = max(min(high, rollup.latency_max) - low, 0.0)
            return timedelta(seconds=low + width * wanted / count)
        wanted -= count
    return timedelta(seconds=rollup.latency_max)


def _compute_end_to_end(rollup: Rollup) -> EndToEnd | None:
    if not rollup.delivered:
        return None
    return EndToEnd(
        average=timedelta(seconds=rollup.end_to_end_sum / rollup.delivered),
        longest=timedelta(seconds=rollup.end_to_end_max),
    )
