"""Metrics for Prometheus: what this process did, counted as it happens, and how things are, from the tables.

Counted by hand and handed to the client library when it asks: its own counters take a lock for each message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from pillarbox.clock import Clock, SystemClock
from pillarbox.errors import MissingExtra
from pillarbox.message import SKIPPED_DESTINATION, Message
from pillarbox.monitor import Status
from pillarbox.protocols import Trouble
from pillarbox.telemetry import names
from pillarbox.telemetry.seam import Telemetry

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingExtra("prometheus_client", extra="prometheus", needed_for="Metrics") from error

__all__ = ["PrometheusTelemetry", "StatusCollector", "counter_family"]

_BUCKETS = names.LATENCY_BUCKETS


class PrometheusTelemetry(Telemetry, Collector):
    """Counts what one relay does. Register it with a `CollectorRegistry`."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._delivered: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._fenced: Counter[str] = Counter()
        self._open: dict[str, bool] = {}
        self._latency: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._latency_sum: Counter[str] = Counter()

    def delivered(self, destination: str, messages: Sequence[Message]) -> None:
        self._delivered[destination] += len(messages)
        now, buckets, total = self._clock.now(), self._latency[destination], 0.0
        for message in messages:
            seconds = _latency(message, now)
            total += seconds
            buckets[bisect_left(_BUCKETS, seconds)] += 1
        self._latency_sum[destination] += total  # type: ignore[assignment]

    def troubled(self, destination: str, message: Message, trouble: Trouble) -> None:
        counter = self._failed if trouble.delay is None else self._retried
        counter[destination] += 1

    def returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        self._returned[destination] += len(messages)

    def fenced(self, destination: str, partitions: Iterable[int]) -> None:
        self._fenced[destination] += 1

    def breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self._open[destination] = True

    def breaker_closed(self, destination: str) -> None:
        self._open[destination] = False

    def collect(self) -> Iterator[Metric]:
        """What Prometheus gets. Destinations are the only label: there are few, and their names are no secret."""
        yield counter_family(names.DELIVERED, "Messages that their destination acknowledged.", self._delivered)
        yield counter_family(names.FAILED, "Messages that were given up, or hold their key.", self._failed)
        yield counter_family(names.ATTEMPTS_FAILED, "Attempts that failed and are made again.", self._retried)
        yield counter_family(
            names.RETURNED, "Messages given back without an attempt: the destination is away.", self._returned
        )
        yield counter_family(
            names.FENCED, "Writes that were refused because another relay owns the lanes.", self._fenced
        )
        yield self._histogram()
        gauge = GaugeMetricFamily(names.BREAKER_OPEN, "1 while a destination is left alone.", labels=["destination"])
        for name in sorted({*self._open, *self._delivered} - {SKIPPED_DESTINATION}):
            gauge.add_metric([name], 1.0 if self._open.get(name) else 0.0)
        yield gauge

    def _histogram(self) -> Metric:
        family = HistogramMetricFamily(
            names.LATENCY, "From when a message was due to its delivery.", labels=["destination"]
        )
        for name, counts in list(self._latency.items()):
            reached, buckets = 0, []
            for bound, count in zip((*_BUCKETS, float("inf")), counts, strict=True):
                reached += count
                buckets.append(("+Inf" if bound == float("inf") else str(bound), float(reached)))
            family.add_metric([name], buckets, sum_value=self._latency_sum[name])
        return family


class StatusCollector(Collector):
    """How things are, from a `Status` that somebody keeps fresh."""

    def __init__(self) -> None:
        self.status: Status | None = None

    def collect(self) -> Iterator[Metric]:
        status = self.status
        if status is None:
            return
        ones = [one for one in status.destinations if one.name != SKIPPED_DESTINATION]
        figures: dict[tuple[str, str], Mapping[str, float]] = {
            (names.UNSENT, "Messages that are due or being sent."): {one.name: one.due + one.sending for one in ones},
            (names.MAX_AGE, "For how long the oldest message has been due."): {
                one.name: status.oldest_age(one).total_seconds() for one in ones
            },
            (names.FAILED_NOW, "Failed messages that wait for a person."): {one.name: one.failed for one in ones},
            (names.LEASES, "Lanes that a relay owns."): {one.name: one.lanes for one in ones},
            (names.DESTINATION_SERVED, "Live relays that serve it."): {one.name: one.relays for one in ones},
            (names.PAUSED, "1 while a person has paused it."): {one.name: int(one.pause is not None) for one in ones},
        }
        for (name, help_), values in figures.items():
            gauge = GaugeMetricFamily(name, help_, labels=["destination"])
            for destination, value in values.items():
                gauge.add_metric([destination], float(value))
            yield gauge
        relays = GaugeMetricFamily(names.RELAYS, "Relays that are alive.")
        relays.add_metric([], float(len(status.relays)))
        yield relays
        stuck = GaugeMetricFamily(names.STUCK, "Messages that have been in a relay's hands for over 15 minutes.")
        stuck.add_metric([], float(sum(len(claim.message_ids) for claim in status.stuck)))
        yield stuck


def counter_family(name: str, help_: str, counts: Counter[str], *, label: str = "destination") -> Metric:
    """A counter with one label."""
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
