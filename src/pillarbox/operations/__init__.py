"""Watching over a running outbox: status, alerts, probes, metrics and traces. Each part is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox.lazy import lazy_names

if TYPE_CHECKING:
    from pillarbox.consumer.telemetry import CompositeConsumerTelemetry, ConsumerTelemetry, LoggingConsumerTelemetry
    from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
    from pillarbox.operations.health import ConsumerProbes, HealthApp, HealthServer, Probes
    from pillarbox.operations.monitor import Monitor, Status
    from pillarbox.operations.opentelemetry import OpenTelemetry, TracingConsumerTelemetry, publishing_span
    from pillarbox.operations.prometheus import PrometheusConsumerTelemetry, PrometheusTelemetry, StatusCollector
    from pillarbox.operations.restore import RestoreResult, restore_archive, scan_archive
    from pillarbox.relay.archive import JsonLinesArchive, read_archive
    from pillarbox.telemetry import CompositeTelemetry, LoggingTelemetry, Telemetry
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "Alert": "pillarbox.operations.alerts",
            "CompositeConsumerTelemetry": "pillarbox.consumer.telemetry",
            "CompositeTelemetry": "pillarbox.telemetry",
            "ConsumerTelemetry": "pillarbox.consumer.telemetry",
            "ConsumerProbes": "pillarbox.operations.health",
            "HealthApp": "pillarbox.operations.health",
            "HealthServer": "pillarbox.operations.health",
            "JsonLinesArchive": "pillarbox.relay.archive",
            "LoggingConsumerTelemetry": "pillarbox.consumer.telemetry",
            "LoggingTelemetry": "pillarbox.telemetry",
            "Monitor": "pillarbox.operations.monitor",
            "OpenTelemetry": "pillarbox.operations.opentelemetry",
            "Probes": "pillarbox.operations.health",
            "PrometheusConsumerTelemetry": "pillarbox.operations.prometheus",
            "PrometheusTelemetry": "pillarbox.operations.prometheus",
            "RestoreResult": "pillarbox.operations.restore",
            "Status": "pillarbox.operations.monitor",
            "StatusCollector": "pillarbox.operations.prometheus",
            "Telemetry": "pillarbox.telemetry",
            "Thresholds": "pillarbox.operations.alerts",
            "TracingConsumerTelemetry": "pillarbox.operations.opentelemetry",
            "find_alerts": "pillarbox.operations.alerts",
            "publishing_span": "pillarbox.operations.opentelemetry",
            "read_archive": "pillarbox.relay.archive",
            "restore_archive": "pillarbox.operations.restore",
            "scan_archive": "pillarbox.operations.restore",
        },
    )

__all__ = [
    "Alert",
    "CompositeConsumerTelemetry",
    "CompositeTelemetry",
    "ConsumerProbes",
    "ConsumerTelemetry",
    "HealthApp",
    "HealthServer",
    "JsonLinesArchive",
    "LoggingConsumerTelemetry",
    "LoggingTelemetry",
    "Monitor",
    "OpenTelemetry",
    "Probes",
    "PrometheusConsumerTelemetry",
    "PrometheusTelemetry",
    "RestoreResult",
    "Status",
    "StatusCollector",
    "Telemetry",
    "Thresholds",
    "TracingConsumerTelemetry",
    "find_alerts",
    "publishing_span",
    "read_archive",
    "restore_archive",
    "scan_archive",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
