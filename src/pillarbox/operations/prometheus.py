"""Metrics for Prometheus: counters of this process's relay or consumer, and gauges from the tables.

Counted by hand, and passed to the client library when it collects: its own counters take a lock for each message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from pillarbox import telemetry as names
from pillarbox.clock import Clock, SystemClock
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.contracts.receiver import FallbackIdentity
from pillarbox.contracts.store import FailedOutcome
from pillarbox.errors import MissingExtra
from pillarbox.message import SKIPPED_DESTINATION, Message
from pillarbox.operations.monitor import DestinationStatus, Status
from pillarbox.telemetry import Telemetry

__all__ = ["PrometheusConsumerTelemetry", "PrometheusTelemetry", "StatusCollector", "StoresTelemetry"]

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        UnknownMetricFamily,
    )
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingExtra("prometheus_client", extra="prometheus", needed_for="Metrics") from error


_BUCKETS = names.LATENCY_BUCKETS


MOST_LABELS: Final = 200
"""Stores, destinations and consumers with series of their own. Those of all others are added up: Prometheus keeps each
series for weeks, and rows may name any number of destinations."""
OTHERS: Final = "(others)"


class PrometheusTelemetry(Telemetry, Collector):
    """Counts what one relay does. Register it with a `CollectorRegistry`.

    `process` is a label of every series where several processes are scraped as one: a process that starts again begins
    its counters at 0, which Prometheus sees in its own series, and could not see in a sum.
    """

    def __init__(self, *, process: str | None = None, store: str | None = None, clock: Clock | None = None) -> None:
        labels = {"process": process, "store": store}
        self._labels = {name: value for name, value in labels.items() if value is not None}
        self._clock = clock or SystemClock()
        self._delivered: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._fenced: Counter[str] = Counter()
        self._named: set[str] = set()
        self._open: dict[str, bool] = {}
        self._blocked: Counter[str] = Counter()
        self._latency = _Histograms()
        self._end_to_end = _Histograms()

    def _choose_label(self, destination: str) -> str:
        """Return the destination; for those above the bound, the label that counts them together."""
        if destination in self._named or destination == SKIPPED_DESTINATION:
            return destination
        if len(self._named) >= MOST_LABELS:
            return OTHERS
        self._named.add(destination)
        return destination

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        destination = self._choose_label(destination)
        self._delivered[destination] += len(messages)
        now = self._clock.now()
        self._latency.add(destination, [_latency(message, now) for message in messages])
        self._end_to_end.add(destination, [(now - message.event_time).total_seconds() for message in messages])

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        counter = self._failed if failure.delay is None else self._retried
        counter[self._choose_label(destination)] += 1

    def on_tried(self, destination: str, tries: Sequence[tuple[Message, FailedOutcome]], *, why: str) -> None:
        self._returned[self._choose_label(destination)] += len(tries)

    def on_returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        self._returned[self._choose_label(destination)] += len(messages)

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        self._fenced[self._choose_label(destination)] += 1

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self._open[destination] = True

    def on_breaker_closed(self, destination: str) -> None:
        self._open[destination] = False

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        self._blocked[destination] += 1

    def on_address_unblocked(self, destination: str, address: str) -> None:
        self._blocked[destination] -= 1

    def on_lease_lost(self, *, reason: str) -> None:
        self.forget_outages()

    def on_started(self, relay: str, *, relay_id: str) -> None:
        self.forget_outages()

    def on_turn(self, *, is_last: bool = False) -> None:
        if is_last:  # the process may go on without its relay
            self.forget_outages()

    def forget_outages(self) -> None:
        """Forget outages with everything else: a relay that starts again knows of none, and reports no end of them."""
        self._open.update(dict.fromkeys(self._open, False))
        for destination in self._blocked:
            self._blocked[destination] = 0

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. The labels are destination, process and store: their names are no secret."""
        for family in self._collect():
            if self._labels:
                family.samples = [one._replace(labels=one.labels | self._labels) for one in family.samples]
            yield family

    def _collect(self) -> Iterator[Metric]:
        yield _counter_family(names.DELIVERED, "Messages that their destination acknowledged.", self._delivered)
        yield _counter_family(names.FAILED, "Messages that were given up, or hold their key.", self._failed)
        yield _counter_family(names.ATTEMPTS_FAILED, "Attempts that failed and are made again.", self._retried)
        yield _counter_family(
            names.RETURNED, "Messages not delivered that spent no attempt: the destination is away.", self._returned
        )
        yield _counter_family(
            names.FENCED, "Writes that were refused because another relay owns the lanes.", self._fenced
        )
        yield self._latency.build_family(names.LATENCY, "From when a message was due to its delivery.")
        yield self._end_to_end.build_family(names.END_TO_END, "From when a message happened to its delivery.")
        gauge = GaugeMetricFamily(
            names.BREAKER_OPEN, "1 while the relay backs off from a destination.", labels=["destination"]
        )
        is_open = dict.fromkeys(self._delivered, False)
        for name, value in list(self._open.items()):
            label = self._choose_label(name)
            is_open[label] = is_open.get(label, False) or value
        for name in sorted(is_open.keys() - {SKIPPED_DESTINATION}):
            gauge.add_metric([name], 1.0 if is_open[name] else 0.0)
        yield gauge
        gauge = GaugeMetricFamily(
            names.BLOCKED_ADDRESSES, "Addresses of a destination that take nothing.", labels=["destination"]
        )
        blocked = Counter(dict.fromkeys(self._delivered, 0))
        for name, count in list(self._blocked.items()):
            blocked[self._choose_label(name)] += count
        for name in sorted(blocked.keys() - {SKIPPED_DESTINATION}):
            gauge.add_metric([name], float(blocked[name]))
        yield gauge


_MOST_STORES: Final = MOST_LABELS


class StoresTelemetry(Collector):
    """Counts what the relays of many stores do, and tells which stores are served. The label `store` is bounded.

    `stores` returns the name of every store, and whether it is served.
    """

    def __init__(self, stores: Callable[[], Mapping[str, bool]], *, process: str | None = None) -> None:
        self._stores = stores
        self._process = process
        self._own: dict[str, PrometheusTelemetry] = {}
        self._statuses: Mapping[str, Status] = {}

    def get(self, store: str) -> PrometheusTelemetry:
        """Return the telemetry of one store; for those above the bound, the one that counts them together."""
        name = self._choose_label(store)
        if name not in self._own:
            self._own[name] = PrometheusTelemetry(process=self._process, store=name)
        return self._own[name]

    def _choose_label(self, store: str) -> str:
        return store if store in self._own or len(self._own) < _MOST_STORES else OTHERS

    def set_statuses(self, statuses: Mapping[str, Status]) -> None:
        """Note what the tables hold."""
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        served = self._stores()
        for name, child in list(self._own.items()):
            if name not in served and name != OTHERS:
                child.forget_outages()  # its relay has stopped, and reports no end of them
            _merge(families, child.collect())
        for name, status in self._statuses.items():
            if self._choose_label(name) == OTHERS:
                continue
            collector = StatusCollector()
            collector.status = status
            _merge(families, collector.collect(), labels={"store": name})
        yield from families.values()
        yield from self._collect_stores()

    def _collect_stores(self) -> Iterator[Metric]:
        process = {} if self._process is None else {"process": self._process}
        served = self._stores()
        up = GaugeMetricFamily(names.STORE_UP, "1 while a store is served by this relay.", labels=["store", *process])
        for name, is_served in sorted(served.items())[:_MOST_STORES]:
            up.add_metric([name, *process.values()], float(is_served))
        yield up
        count = GaugeMetricFamily(names.STORES, "Stores of this relay.", labels=["served", *process])
        for is_served in (True, False):
            found = sum(value is is_served for value in served.values())
            count.add_metric([str(is_served).lower(), *process.values()], float(found))
        yield count


def _merge(families: dict[str, Metric], more: Iterable[Metric], *, labels: Mapping[str, str] | None = None) -> None:
    """Add samples to the families of the same name: a page has each family once."""
    for family in more:
        if labels:
            family.samples = [one._replace(labels={**one.labels, **labels}) for one in family.samples]
        if family.name in families:
            families[family.name].samples += family.samples
        else:
            families[family.name] = family


class _Histograms:
    """One histogram of seconds for each destination."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, destination: str, times: Sequence[float]) -> None:
        counts = self._counts[destination]
        for seconds in times:
            counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sums[destination] += sum(max(seconds, 0.0) for seconds in times)

    def build_family(self, name: str, help_: str) -> Metric:
        family = HistogramMetricFamily(name, help_, labels=["destination"])
        for destination, counts in list(self._counts.items()):
            reached, buckets = 0, []
            for bound, count in zip((*_BUCKETS, float("inf")), counts, strict=True):
                reached += count
                buckets.append(("+Inf" if bound == float("inf") else str(bound), float(reached)))
            family.add_metric([destination], buckets, sum_value=self._sums[destination])
        return family


class PrometheusConsumerTelemetry(ConsumerTelemetry, Collector):
    """Counts what one consumer does. Register it with a `CollectorRegistry`."""

    def __init__(self) -> None:
        self._handled: Counter[str] = Counter()
        self._duplicates: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        self._handled[consumer] += 1

    def on_duplicate(self, consumer: str, event: CloudEvent) -> None:
        self._duplicates[consumer] += 1

    def on_ignored(self, consumer: str, event: CloudEvent) -> None:
        self._ignored[consumer] += 1

    def on_failed(self, consumer: str, identity: FallbackIdentity, *, attempts: int, error: str) -> None:
        self._failed[consumer] += 1

    def on_retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        self._retried[consumer] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. The consumer's name is the only label."""
        for name, help_, counts in (
            (names.INBOX_HANDLED, "Messages handled.", self._handled),
            (names.INBOX_DUPLICATES, "Messages that came again and did nothing.", self._duplicates),
            (names.INBOX_IGNORED, "Messages that no handler takes.", self._ignored),
            (names.INBOX_FAILED, "Messages kept as failed.", self._failed),
            (names.INBOX_RETRIED, "Handlers that failed and are called again.", self._retried),
        ):
            yield _counter_family(name, help_, counts, label="consumer")


class StatusCollector(Collector):
    """Gauges from the latest `Status`, which the owner of this collector keeps fresh."""

    def __init__(self) -> None:
        self.status: Status | None = None

    def collect(self) -> Iterator[Metric]:
        status = self.status
        if status is None:
            return
        # What is handed off is open until it is pruned: its figures would say that nobody delivers it.
        destinations = _add_up_others(
            [one for one in status.destinations if one.name != SKIPPED_DESTINATION and one.handed_off_to is None]
        )
        # Untyped: its name, which others know, ends as only the parts of a histogram may.
        unsent = UnknownMetricFamily(names.UNSENT, "Messages that are due or being sent.", labels=["destination"])
        for one in destinations:
            unsent.add_metric([one.name], float(one.due + one.sending))
        yield unsent
        figures: dict[tuple[str, str], Mapping[str, float]] = {
            (names.MAX_AGE, "For how long the oldest message has been due."): {
                one.name: status.oldest_age(one).total_seconds() for one in destinations
            },
            (names.FAILED_NOW, "Failed messages that need attention."): {one.name: one.failed for one in destinations},
            (names.LEASES, "Lanes that a relay owns."): {one.name: one.lanes for one in destinations},
            (names.DESTINATION_SERVED, "Live relays that serve it."): {one.name: one.relays for one in destinations},
            (names.PAUSED, "1 while a person has paused it."): {
                one.name: int(one.pause is not None) for one in destinations
            },
        }
        for (name, help_), values in figures.items():
            gauge = GaugeMetricFamily(name, help_, labels=["destination"])
            for destination, value in values.items():
                gauge.add_metric([destination], float(value))
            yield gauge
        skipped = GaugeMetricFamily(names.SKIPPED_NOW, "Messages that no route takes, kept until a person acts.")
        skipped.add_metric([], float(status.skipped))
        yield skipped
        inboxes = GaugeMetricFamily(
            names.INBOX_FAILED_NOW, "Messages that a consumer could not handle.", labels=["consumer"]
        )
        by_failed = sorted(status.inboxes, key=lambda one: (-one.failed, one.consumer))
        for inbox in by_failed[:MOST_LABELS]:
            inboxes.add_metric([inbox.consumer], float(inbox.failed))
        if rest := by_failed[MOST_LABELS:]:
            inboxes.add_metric([OTHERS], float(sum(one.failed for one in rest)))
        yield inboxes
        relays = GaugeMetricFamily(names.RELAYS, "Relays that are alive.")
        relays.add_metric([], float(len(status.relays)))
        yield relays
        stuck = GaugeMetricFamily(names.STUCK, "Messages in a relay's hands for longer than the threshold `stuck`.")
        stuck.add_metric([], float(sum(len(claim.message_ids) for claim in status.stuck)))
        yield stuck


def _add_up_others(destinations: Sequence[DestinationStatus]) -> Sequence[DestinationStatus]:
    """Return the destinations with series of their own, and one that stands for all others.

    Those that somebody must look at come first: nobody serves them, they have failed messages, or much waits.
    """
    if len(destinations) <= MOST_LABELS:
        return destinations

    def rank(one: DestinationStatus) -> tuple[bool, int, bool, int, str]:
        unsent = one.due + one.sending
        return not (unsent and not one.is_served), -one.failed, one.pause is None, -unsent, one.name

    ranked = sorted(destinations, key=rank)
    named, rest = sorted(ranked[:MOST_LABELS], key=lambda one: one.name), ranked[MOST_LABELS:]
    waiting = [one for one in rest if one.due + one.sending] or rest
    others = msgspec.structs.replace(
        rest[0],
        name=OTHERS,
        **{name: sum(getattr(one, name) for one in rest) for name in ("due", "sending", "failed", "lanes")},
        oldest_due_at=min((one.oldest_due_at for one in rest if one.oldest_due_at is not None), default=None),
        relays=min(one.relays for one in waiting),
        pause=next((one.pause for one in rest if one.pause is not None), None),
    )
    return [*named, others]


def _counter_family(name: str, help_: str, counts: Counter[str], *, label: str = "destination") -> Metric:
    """Build a counter with one label."""
    family = CounterMetricFamily(name, help_, labels=[label])
    for value, count in list(counts.items()):
        if value != SKIPPED_DESTINATION:
            family.add_metric([value], float(count))
    return family


def _latency(message: Message, now: datetime) -> float:
    due = message.created_at
    if due is None:
        return 0.0
    if message.attempts == 0 and message.available_at is not None and message.available_at > due:
        due = message.available_at
    return max((now - due).total_seconds(), 0.0)
