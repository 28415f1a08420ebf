"""Prometheus rules and Grafana dashboard, built from the metrics and thresholds of `pillarbox check`. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from pillarbox import telemetry as names
from pillarbox.operations.alerts import Thresholds
from pillarbox.operations.monitor import STUCK_AFTER

__all__ = ["build_dashboard", "build_rules", "to_json"]


def build_rules(thresholds: Thresholds) -> dict[str, Any]:
    """Build alerting rules that fire when `pillarbox check` reports an alert, as far as metrics show it."""
    old = f"{names.MAX_AGE} > {thresholds.backlog_for.total_seconds():g}"
    latency = f"rate({names.LATENCY}_sum[1h]) / rate({names.LATENCY}_count[1h])"
    attempts = f"rate({names.DELIVERED}_total[1h]) + rate({names.ATTEMPTS_FAILED}_total[1h])"
    rules = [
        _rule("OutboxFailed", f"{names.FAILED_NOW} > {thresholds.failed}", "critical",
              "{{ $value }} messages for {{ $labels.destination }} have failed",
              "See why with `pillarbox failures`, mend the cause, then `pillarbox messages redrive`."),
        _rule("InboxFailed", f"{names.INBOX_FAILED_NOW} > {thresholds.inbox_failed}", "critical",
              "{{ $labels.consumer }} could not handle {{ $value }} messages",
              "See why with `pillarbox inbox list`, mend the cause, then `pillarbox inbox redrive`."),
        _rule("OutboxOld", f"{names.MAX_AGE} > {thresholds.oldest_warning.total_seconds():g}", "warning",
              "The oldest message for {{ $labels.destination }} waits for {{ $value | humanizeDuration }}", _LOOK),
        _rule("OutboxVeryOld", f"{names.MAX_AGE} > {thresholds.oldest_critical.total_seconds():g}", "critical",
              "The oldest message for {{ $labels.destination }} waits for {{ $value | humanizeDuration }}", _LOOK),
        _rule("OutboxBlocked", f"{names.BLOCKED_ADDRESSES} > 0", "warning",
              "{{ $value }} addresses of {{ $labels.destination }} take nothing",
              "See which, and why, with `pillarbox status`; the relay probes them by itself.",
              wait=f"{thresholds.oldest_warning.total_seconds():g}s"),
        _rule("OutboxBacklog", f"{names.UNSENT} > {thresholds.backlog_warning} and {old}", "warning",
              "{{ $value }} messages for {{ $labels.destination }} are due", _LOOK),
        _rule("OutboxLargeBacklog", f"{names.UNSENT} > {thresholds.backlog_critical} and {old}", "critical",
              "{{ $value }} messages for {{ $labels.destination }} are due", _LOOK),
        _rule("OutboxStuck", f"{names.STUCK} > 0", "warning", "{{ $value }} messages are stuck in a relay's hands",
              "See which relay has them with `pillarbox messages list --stuck`; restart that relay if it hangs.",
              wait=f"{max(thresholds.sending - STUCK_AFTER, timedelta(0)).total_seconds():g}s"),
        _rule("OutboxSlow", f"{latency} > {thresholds.latency.total_seconds():g}", "warning",
              "Deliveries to {{ $labels.destination }} take {{ $value | humanizeDuration }}", _LOOK),
        _rule("OutboxRetries", f"rate({names.ATTEMPTS_FAILED}_total[1h]) / ({attempts}) > {thresholds.retry_rate:g}",
              "warning", "{{ $value | humanizePercentage }} of the attempts for {{ $labels.destination }} fail",
              "See the errors with `pillarbox messages list --near-failure`."),
        _rule("OutboxUnserved", f"{names.DESTINATION_SERVED} == 0 and {names.UNSENT} > 0", "critical",
              "No relay serves {{ $labels.destination }}", "Start a relay with --to {{ $labels.destination }}=URL."),
        _rule("OutboxNoRelay", f"absent({names.RELAYS}) or {names.RELAYS} == 0", "critical",
              "No relay is alive", "Start one with `pillarbox relay`.", wait="1m"),
    ]  # fmt: skip
    return {"groups": [{"name": "pillarbox", "rules": rules}]}


_LOOK = "Look at `pillarbox status`, and at `pillarbox doctor` if a destination cannot be reached."


def _rule(name: str, expr: str, severity: str, summary: str, do: str, *, wait: str = "0m") -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": do},
    }


def build_dashboard() -> dict[str, Any]:
    """Build a dashboard of one screen: backlog, age, rates, latency, failures, relays."""
    panels = [
        _panel("Waiting", f"{names.UNSENT}", unit="short"),
        _panel("Oldest", f"{names.MAX_AGE}", unit="s"),
        _panel("Delivered a second", f"sum by (destination) (rate({names.DELIVERED}_total[1m]))", unit="ops"),
        _panel("Latency p99", f"histogram_quantile(0.99, sum by (le, destination) (rate({names.LATENCY}_bucket[5m])))",
               unit="s"),
        _panel("Failed attempts a second", f"sum by (destination) (rate({names.ATTEMPTS_FAILED}_total[5m]))",
               unit="ops"),
        _panel("Failed, waiting for a person", f"{names.FAILED_NOW}", unit="short"),
        _panel("Destinations left alone", f"{names.BREAKER_OPEN}", unit="short"),
        _panel("Relays alive", f"max({names.RELAYS})", unit="short"),
        _panel("Lanes owned", f"{names.LEASES}", unit="short"),
        _panel("Duplicates absorbed a second", f"sum by (consumer) (rate({names.INBOX_DUPLICATES}_total[5m]))",
               unit="ops"),
    ]  # fmt: skip
    return {
        "title": "Pillarbox",
        "uid": "pillarbox",
        "timezone": "utc",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [
            panel | {"id": number + 1, "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)}}
            for number, panel in enumerate(panels)
        ],
    }


def _panel(title: str, expr: str, *, unit: str) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "title": title,
        "type": "timeseries",
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"expr": expr, "refId": "A", "datasource": source}],
    }


def to_json(document: dict[str, Any]) -> str:
    """Encode as indented JSON, which Prometheus reads as YAML."""
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"
