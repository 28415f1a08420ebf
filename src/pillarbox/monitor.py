"""What is going on, from the tables alone: the truth behind the command line, the metrics and the probes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pillarbox.message import SKIPPED_DESTINATION, Message, State
from pillarbox.protocols import Activity, Count, OpenClaim, Pause, Registry, RelayInfo, Sample, Selection, Store

__all__ = ["STUCK_AFTER", "DestinationStatus", "Latency", "Monitor", "Status", "TopicStatus"]

_MOST: Final = 100_000
STUCK_AFTER: Final = timedelta(minutes=15)
_WINDOW: Final = timedelta(hours=1)
_RATED: Final = timedelta(minutes=1)
_SECOND: Final = timedelta(seconds=1)
_NEAR_FAILURE: Final = 3
_LISTED: Final = 50
_SAMPLED: Final = 5_000
_STATES: Final = ("sending", "delivered", "failed", "skipped", "discarded")


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """How long deliveries took lately, from when each was due."""

    count: int
    """How many deliveries these figures are of."""
    average: timedelta
    p50: timedelta
    p95: timedelta
    p99: timedelta


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one topic on their way to one destination."""

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
    """One destination. Counts stop somewhere: those named in `more` mean "or more"."""

    name: str
    topics: Sequence[TopicStatus]
    """Of the first thousands only, where more wait: then they add up to less."""
    due: int
    later: int
    sending: int
    delivered: int
    failed: int
    skipped: int
    discarded: int
    oldest_due_at: datetime | None
    """When the longest waiting one was due."""
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
    """Lanes that somebody owns."""
    pause: Pause | None
    more: Sequence[str] = ()
    """Which counts mean "or more", by their names here."""

    @property
    def is_served(self) -> bool:
        return self.relays > 0

    @property
    def retry_rate(self) -> float:
        """Failed attempts as a part of all attempts in the window."""
        delivered = 0 if self.latency is None else self.latency.count
        attempts = delivered + self.attempts_failed
        return self.attempts_failed / attempts if attempts else 0.0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment of the store's clock."""

    at: datetime
    destinations: Sequence[DestinationStatus]
    relays: Sequence[RelayInfo]
    stuck: Sequence[OpenClaim]
    """Batches in a relay's hands for longer than they should be."""
    near_failure: Sequence[Message]
    """Messages that have few attempts left, without their payloads."""
    counted_to: int = _MOST
    window: timedelta = _WINDOW
    sampled: bool = False
    """Latency and retry rate are of the latest deliveries only: there were more in the window."""

    def oldest_age(self, destination: DestinationStatus) -> timedelta:
        """How long the longest waiting message of a destination has been due; zero when none is."""
        at = destination.oldest_due_at
        return timedelta(0) if at is None else max(self.at - at, timedelta(0))


class Monitor:
    """Asks a store. The cost is bounded: no count looks at more than `counted_to` rows, no list is longer than 50."""

    def __init__(
        self,
        store: Store,
        *,
        lease: timedelta = timedelta(seconds=10),
        window: timedelta = _WINDOW,
        stuck_after: timedelta = STUCK_AFTER,
        near_failure: int = _NEAR_FAILURE,
        counted_to: int = _MOST,
    ) -> None:
        self._store = store
        self._lease = lease
        self._window = window
        self._stuck_after = stuck_after
        self._near_failure = near_failure
        self._counted_to = counted_to

    async def status(self, *, served: Iterable[str] = ()) -> Status:
        """The state of things. `served` are destinations to show also when nothing is known of them."""
        store = self._store
        registry = await store.registry(lease=self._lease)
        counts = await store.counts(limit=self._counted_to)
        oldest = await store.oldest_due()
        activity = await store.activity(window=self._window, limit=_SAMPLED)
        pauses = {pause.destination: pause for pause in await store.pauses()}
        return Status(
            at=registry.now,
            destinations=destinations_of(counts, oldest, activity, registry, pauses, served=served),
            relays=registry.relays,
            stuck=await store.claims(older_than=self._stuck_after, limit=_LISTED),
            near_failure=await self._near(),
            counted_to=self._counted_to,
            window=self._window,
            sampled=not activity.complete,
        )

    async def _near(self) -> Sequence[Message]:
        selection = Selection(states=[State.PENDING], min_attempts=self._near_failure)
        return await self._store.find(selection, limit=_LISTED, payloads=False)


# --- pure ----------------------------------------------------------------------------------------


def destinations_of(
    counts: Sequence[Count],
    oldest: Mapping[str, datetime],
    activity: Activity,
    registry: Registry,
    pauses: Mapping[str, Pause],
    *,
    served: Iterable[str],
) -> Sequence[DestinationStatus]:
    """One entry per destination that anything is known of, by name. The reserved one is shown only if it has some."""
    named = {name for relay in registry.relays for name in relay.destinations} - {SKIPPED_DESTINATION}
    names = {*served, *named, *oldest, *pauses, *(count.destination for count in counts)}
    samples: dict[str, list[Sample]] = defaultdict(list)
    for sample in activity.delivered:
        samples[sample.destination].append(sample)
    since = _rated_since(activity, registry.now)
    return [
        _destination(
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


def _destination(
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
        TopicStatus(topic=topic, **_summed([count for count in counts if count.topic == topic]))
        for topic in sorted({count.topic for count in counts if count.topic is not None})
    ]
    return DestinationStatus(
        name=name,
        topics=topics,
        **_summed(counts),
        more=[name for name, parts in _parts(counts).items() if any(part.more for part in parts)],
        oldest_due_at=oldest_due_at,
        latency=latency_of([sample.latency for sample in samples]),
        rate=sum(sample.at > since for sample in samples) / (registry.now - since).total_seconds(),
        attempts_failed=attempts_failed,
        relays=sum(name in relay.destinations for relay in registry.relays),
        reachable=sum(name in relay.reachable for relay in registry.relays),
        lanes=len(registry.owners.get(name, {})),
        pause=pause,
    )


def _rated_since(activity: Activity, now: datetime) -> datetime:
    """A minute ago; or, where a minute had more deliveries than were looked at, the first of those."""
    since = now - _RATED
    if activity.delivered and not activity.complete:
        since = max(since, activity.delivered[-1].at)
    return min(since, now - _SECOND)


def _summed(counts: Sequence[Count]) -> dict[str, int]:
    return {name: sum(part.count for part in parts) for name, parts in _parts(counts).items()}


def _parts(counts: Sequence[Count]) -> dict[str, list[Count]]:
    """By the names that a status gives them: pending ones are due, or wait for later."""
    parts: dict[str, list[Count]] = {name: [] for name in ("due", "later", *_STATES)}
    for count in counts:
        waits = "due" if count.due else "later"
        parts[waits if count.state is State.PENDING else count.state.value].append(count)
    return parts


def latency_of(latencies: Sequence[timedelta]) -> Latency | None:
    """Average and percentiles, each the latency of a delivery that there was; None of none."""
    if not latencies:
        return None
    ordered = sorted(latencies)

    def at(part: float) -> timedelta:
        return ordered[min(len(ordered) - 1, max(0, -int(-part * len(ordered) // 1) - 1))]

    return Latency(
        count=len(ordered),
        average=sum(ordered, timedelta(0)) / len(ordered),
        p50=at(0.50),
        p95=at(0.95),
        p99=at(0.99),
    )
