"""Status of all destinations and relays, read from the tables: for the command line, metrics, probes and alerts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pillarbox.contracts.store import (
    Action,
    Activity,
    Count,
    InboxCount,
    JournalEntry,
    MonitorStore,
    OpenClaim,
    Pause,
    Registry,
    RelayInfo,
    Sample,
    Selection,
)
from pillarbox.message import SKIPPED_DESTINATION, Message, State

__all__ = [
    "NOT_GIVEN_UP",
    "STUCK_AFTER",
    "DestinationStatus",
    "Latency",
    "Monitor",
    "Status",
    "TopicStatus",
    "WaitingMessages",
    "build_destinations",
    "compute_latency",
    "count_tries",
]

STUCK_AFTER: Final = timedelta(minutes=15)
"""Age at which a claim counts as stuck: far above every send timeout."""
_COUNT_LIMIT: Final = 100_000
_WINDOW: Final = timedelta(hours=1)
_RATE_WINDOW: Final = timedelta(minutes=1)
_SHORTEST_RATE_WINDOW: Final = timedelta(seconds=1)
_NEAR_FAILURE: Final = 3
_LIST_LIMIT: Final = 50
_SAMPLE_LIMIT: Final = 5_000
_WAITING_LIMIT: Final = 200
_MAX_WAITING: Final = 10
"""Most groups of waiting messages. The journal of one message of each is read."""
_JOURNAL_LIMIT: Final = 1_000
NOT_GIVEN_UP: Final = "not given up, because the destination acknowledges nothing else, or its address takes nothing"
_STATES: Final = ("sending", "delivered", "failed", "skipped", "discarded")


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Time that recent deliveries took, each from when it was due."""

    count: int
    """Deliveries that these figures are computed from."""
    average: timedelta
    p50: timedelta
    p95: timedelta
    p99: timedelta


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one topic's messages for one destination."""

    topic: str
    due: int
    later: int
    """Pending, and not yet due."""
    sending: int
    delivered: int
    failed: int
    skipped: int
    discarded: int


class DestinationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one destination. Counting stops at a limit: the counts named in `more` mean "or more"."""

    name: str
    topics: Sequence[TopicStatus]
    """Counts by topic. Where counting stopped at its limit, they add up to less."""
    due: int
    later: int
    sending: int
    delivered: int
    failed: int
    skipped: int
    discarded: int
    oldest_due_at: datetime | None
    """Time at which the longest waiting message was due."""
    latency: Latency | None
    """None: nothing was delivered in the window."""
    rate: float
    """Deliveries a second, over the last minute."""
    attempts_failed: int
    """In the window."""
    relays: int
    """Live relays that serve it."""
    reachable: int
    """Those of them that can reach it."""
    lanes: int
    """Lanes that a relay owns."""
    pause: Pause | None
    more: Sequence[str] = ()
    """Names of the counts that mean "or more"."""

    @property
    def is_served(self) -> bool:
        return self.relays > 0

    @property
    def retry_rate(self) -> float:
        """Share of failed attempts among all attempts in the window, 0 to 1."""
        delivered = 0 if self.latency is None else self.latency.count
        attempts = delivered + self.attempts_failed
        return self.attempts_failed / attempts if attempts else 0.0


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
    tries: int
    """How often the oldest was tried. 0: it was not sent, because others showed that its address takes nothing."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of everything at one moment of the store's clock."""

    at: datetime
    destinations: Sequence[DestinationStatus]
    relays: Sequence[RelayInfo]
    stuck: Sequence[OpenClaim]
    """Claims that a relay has held for longer than it should."""
    near_failure: Sequence[Message]
    """Pending messages after several failed attempts, without their payloads."""
    waiting: Sequence[WaitingMessages] = ()
    """Messages that are not given up, though their last try failed, the oldest first."""
    inboxes: Sequence[InboxCount] = ()
    """Failed messages of consumers, by consumer."""
    counted_to: int = _COUNT_LIMIT
    window: timedelta = _WINDOW
    sampled: bool = False
    """Latency and retry rate are of the latest deliveries only: there were more in the window."""

    def oldest_age(self, destination: DestinationStatus) -> timedelta:
        """Return for how long a destination's longest waiting message has been due; zero if none is."""
        at = destination.oldest_due_at
        return timedelta(0) if at is None else max(self.at - at, timedelta(0))


class Monitor:
    """Reads the status from a store.

    Its cost is bounded: a count reads at most `counted_to` rows, and a list has at most 50 entries.
    """

    def __init__(
        self,
        store: MonitorStore,
        *,
        lease: timedelta = timedelta(seconds=10),
        window: timedelta = _WINDOW,
        stuck_after: timedelta = STUCK_AFTER,
        near_failure: int = _NEAR_FAILURE,
        counted_to: int = _COUNT_LIMIT,
    ) -> None:
        self._store = store
        self._lease = lease
        self._window = window
        self._stuck_after = stuck_after
        self._near_failure = near_failure
        self._counted_to = counted_to

    async def status(self, *, served: Iterable[str] = ()) -> Status:
        """Read the status. `served` are destinations to include even if the tables have nothing about them."""
        store = self._store
        registry = await store.registry(lease=self._lease)
        counts = await store.counts(limit=self._counted_to)
        oldest = await store.oldest_due()
        activity = await store.activity(window=self._window, limit=_SAMPLE_LIMIT)
        pauses = {pause.destination: pause for pause in await store.pauses()}
        return Status(
            at=registry.now,
            destinations=build_destinations(counts, oldest, activity, registry, pauses, served=served),
            relays=registry.relays,
            stuck=await store.claims(older_than=self._stuck_after, limit=_LIST_LIMIT),
            near_failure=await self._find_near_failure(),
            waiting=await self._find_waiting(),
            inboxes=await store.inbox_counts(limit=self._counted_to),
            counted_to=self._counted_to,
            window=self._window,
            sampled=not activity.complete,
        )

    async def _find_near_failure(self) -> Sequence[Message]:
        selection = Selection(states=[State.PENDING], min_attempts=self._near_failure)
        return await self._store.find(selection, limit=_LIST_LIMIT, payloads=False)

    async def _find_waiting(self) -> Sequence[WaitingMessages]:
        selection = Selection(states=[State.PENDING], tried=True)
        found = await self._store.find(selection, limit=_WAITING_LIMIT, payloads=False)
        groups: dict[tuple[str, str, str], list[Message]] = defaultdict(list)
        for message in found:
            groups[message.destination, message.topic, message.last_error or ""].append(message)
        waiting = []
        for (destination, topic, error), messages in list(groups.items())[:_MAX_WAITING]:
            oldest = messages[0]
            journal = await self._store.journal(message_id=oldest.message_id, limit=_JOURNAL_LIMIT)
            tries, is_waiting = count_tries(journal, destination)
            if is_waiting and oldest.created_at is not None:
                waiting.append(
                    WaitingMessages(
                        destination=destination, topic=topic, error=error, count=len(messages),
                        more=len(found) == _WAITING_LIMIT, oldest_id=oldest.id, since=oldest.created_at, tries=tries,
                    )
                )  # fmt: skip
        return waiting


# --- pure ---


def count_tries(journal: Sequence[JournalEntry], destination: str) -> tuple[int, bool]:
    """Count the failed tries of a message since a person last acted on it; return also whether it is not given up.

    It is, when its last try spent no attempt, or when it was never tried and its error is that of its address.
    """
    actions = [entry.action for entry in journal if entry.destination == destination]
    tries = 0
    for action in reversed(actions):
        if action not in (Action.TRIED, Action.ATTEMPT_FAILED):
            break
        tries += 1
    return tries, not actions or actions[-1] == Action.TRIED


def build_destinations(
    counts: Sequence[Count],
    oldest: Mapping[str, datetime],
    activity: Activity,
    registry: Registry,
    pauses: Mapping[str, Pause],
    *,
    served: Iterable[str],
) -> Sequence[DestinationStatus]:
    """Build the status of every known destination, by name; of the reserved one only if it has messages."""
    in_registry = {name for relay in registry.relays for name in relay.destinations} - {SKIPPED_DESTINATION}
    names = {*served, *in_registry, *oldest, *pauses, *(count.destination for count in counts)}
    samples: dict[str, list[Sample]] = defaultdict(list)
    for sample in activity.delivered:
        samples[sample.destination].append(sample)
    since = _start_of_rate_window(activity, registry.now)
    return [
        _build_destination(
            name,
            counts=[count for count in counts if count.destination == name],
            oldest_due_at=oldest.get(name),
            samples=samples[name],
            since=since,
            attempts_failed=activity.attempts_failed.get(name, 0),
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
    samples: Sequence[Sample],
    since: datetime,
    attempts_failed: int,
    registry: Registry,
    pause: Pause | None,
) -> DestinationStatus:
    topics = [
        TopicStatus(topic=topic, **_sum_counts([count for count in counts if count.topic == topic]))
        for topic in sorted({count.topic for count in counts if count.topic is not None})
    ]
    return DestinationStatus(
        name=name,
        topics=topics,
        **_sum_counts(counts),
        more=[name for name, group in _group_counts(counts).items() if any(count.more for count in group)],
        oldest_due_at=oldest_due_at,
        latency=compute_latency([sample.latency for sample in samples]),
        rate=sum(sample.at > since for sample in samples) / (registry.now - since).total_seconds(),
        attempts_failed=attempts_failed,
        relays=sum(name in relay.destinations for relay in registry.relays),
        reachable=sum(name in relay.reachable for relay in registry.relays),
        lanes=len(registry.owners.get(name, {})),
        pause=pause,
    )


def _start_of_rate_window(activity: Activity, now: datetime) -> datetime:
    """Return the time from which deliveries are counted for the rate: a minute ago, or the oldest sample if later."""
    since = now - _RATE_WINDOW
    if activity.delivered and not activity.complete:
        since = max(since, activity.delivered[-1].at)
    return min(since, now - _SHORTEST_RATE_WINDOW)


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


def compute_latency(latencies: Sequence[timedelta]) -> Latency | None:
    """Compute average and percentiles, each percentile the latency of a real delivery; None without deliveries."""
    if not latencies:
        return None
    ordered = sorted(latencies)

    def percentile(share: float) -> timedelta:
        return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return Latency(
        count=len(ordered),
        average=sum(ordered, timedelta(0)) / len(ordered),
        p50=percentile(0.50),
        p95=percentile(0.95),
        p99=percentile(0.99),
    )
