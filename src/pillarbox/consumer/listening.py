"""Who else listens to a consumer: metrics for Prometheus, spans for OpenTelemetry. Each needs its extra."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.protocols import Plain
from pillarbox.telemetry import names

__all__ = ["PrometheusConsumerTelemetry", "TracingConsumerTelemetry"]


class PrometheusConsumerTelemetry(ConsumerTelemetry):
    """Counts what a consumer does. Register it with a `CollectorRegistry`."""

    def __init__(self) -> None:
        self._handled: Counter[str] = Counter()
        self._duplicates: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()

    def handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        self._handled[consumer] += 1

    def duplicate(self, consumer: str, event: CloudEvent) -> None:
        self._duplicates[consumer] += 1

    def failed(self, consumer: str, plain: Plain, *, attempts: int, error: str) -> None:
        self._failed[consumer] += 1

    def retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        self._retried[consumer] += 1

    def collect(self) -> Iterator[Any]:
        """What Prometheus gets."""
        from pillarbox.telemetry.prometheus import counter_family

        yield counter_family(names.INBOX_HANDLED, "Messages handled.", self._handled, label="consumer")
        yield counter_family(
            names.INBOX_DUPLICATES, "Messages that came again and did nothing.", self._duplicates, label="consumer"
        )
        yield counter_family(names.INBOX_FAILED, "Messages kept as failed.", self._failed, label="consumer")
        yield counter_family(names.INBOX_RETRIED, "Handlers that failed and are called again.", self._retried,
                             label="consumer")  # fmt: skip


class TracingConsumerTelemetry(ConsumerTelemetry):
    """A consumer span around each handling, in the trace of the message."""

    def __init__(self, *, provider: Any = None) -> None:
        from pillarbox.telemetry.opentelemetry import handling_span

        self._span = handling_span
        self._provider = provider

    def handling(self, consumer: str, event: CloudEvent) -> AbstractContextManager[None]:
        return self._span(consumer, event, provider=self._provider)
