"""Prometheus rules and Grafana dashboard, built from the metrics and thresholds of `pillarbox check`. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pillarbox import telemetry as names
from pillarbox.message import PARTITIONS
from pillarbox.operations.alerts import Thresholds

__all__ = ["build_dashboard", "build_rules", "to_json"]


_SOURCE: Final = "instance, pod, process"
"""Labels that say which process exports a figure."""


def _max(metric: str) -> str:
    """Aggregate a figure of the tables, which every relay exports alike."""
    return f"max without ({_SOURCE}) ({metric})"


def _rate(counter: str, window: str) -> str:
    """Aggregate a counter, of which each relay exports its own part."""
    return f"sum without ({_SOURCE}) (rate({counter}[{window}]))"


def build_rules(thresholds: Thresholds) -> dict[str, Any]:
    """Build alerting rules that fire when `pillarbox check` reports an alert, as far as metrics show it.

    However many relays there are, each alert fires once.
    """
    age, unsent, failed = _max(names.MAX_AGE), _max(names.UNSENT), _max(names.FAILED_NOW)
    latency = f"{_rate(f'{names.LATENCY}_sum', '1h')} / {_rate(f'{names.LATENCY}_count', '1h')}"
    retried = _rate(f"{names.ATTEMPTS_FAILED}_total", "1h")
    # A relay exports no series for what never happened to it, and a sum with nothing is nothing.
    attempts = " + ".join(
        f"({_rate(f'{counter}_total', '1h')} or 0 * {retried})" for counter in (names.DELIVERED, names.FAILED)
    )
    rules = [
        _rule("OutboxFailed", f"{failed} > {thresholds.failed}", "critical",
              "{{ $value }} messages for {{ $labels.destination }} have failed",
              "See why with `pillarbox failures`, fix the cause, then `pillarbox messages redrive`."),
        _rule("InboxFailed", f"{_max(names.INBOX_FAILED_NOW)} > {thresholds.inbox_failed}", "critical",
              "{{ $labels.consumer }} could not handle {{ $value }} messages",
              "See why with `pillarbox inbox list`, fix the cause, then `pillarbox inbox redrive`."),
        _rule("OutboxSkipped", f"{_max(names.SKIPPED_NOW)} > {thresholds.skipped}", "warning",
              "{{ $value }} messages were sent nowhere, because no route takes them",
              "List them with `pillarbox messages list --state skipped` and correct the routes; then "
              "`pillarbox messages redrive --state skipped --to NAME`."),
        _rule("OutboxOld", f"{age} > {thresholds.oldest_warning.total_seconds():g}", "warning",
              "The oldest message for {{ $labels.destination }} waits for {{ $value | humanizeDuration }}", _LOOK),
        _rule("OutboxVeryOld", f"{age} > {thresholds.oldest_critical.total_seconds():g}", "critical",
              "The oldest message for {{ $labels.destination }} waits for {{ $value | humanizeDuration }}", _LOOK),
        _rule("OutboxBlocked", f"{_max(names.BLOCKED_ADDRESSES)} > 0", "warning",
              "{{ $value }} addresses of {{ $labels.destination }} take nothing",
              "See which, and why, with `pillarbox status`; the relay probes them by itself.",
              wait=f"{thresholds.oldest_warning.total_seconds():g}s"),
        _rule("OutboxBacklog",
              f"{unsent} > {thresholds.backlog_warning} and {age} > {thresholds.backlog_for.total_seconds():g}",
              "warning", "{{ $value }} messages for {{ $labels.destination }} are due", _LOOK),
        _rule("OutboxLargeBacklog", f"{unsent} > {thresholds.backlog_critical}", "critical",
              "{{ $value }} messages for {{ $labels.destination }} are due", _LOOK),
        _rule("OutboxStuck", f"{_max(names.STUCK)} > 0", "warning",
              "{{ $value }} messages are stuck in a relay's hands",
              "See which relay has them with `pillarbox messages list --stuck`; restart that relay if it hangs.",
              wait=f"{(thresholds.sending - thresholds.listed_after).total_seconds():g}s"),
        _rule("OutboxSlow", f"{latency} > {thresholds.latency.total_seconds():g}", "warning",
              "Deliveries to {{ $labels.destination }} take {{ $value | humanizeDuration }}", _LOOK),
        _rule("OutboxRetries", f"{retried} / ({retried} + {attempts}) > {thresholds.retry_rate:g}",
              "warning", "{{ $value | humanizePercentage }} of the attempts for {{ $labels.destination }} fail",
              "See the errors with `pillarbox failures --attempts`."),
        _rule("OutboxUnserved", f"{_max(names.DESTINATION_SERVED)} == 0 and {unsent} > 0", "critical",
              "No relay serves {{ $labels.destination }}", "Start a relay with --to {{ $labels.destination }}=URL."),
        _rule("OutboxFreeLanes", f"{_max(names.LEASES)} < {PARTITIONS} and {_max(names.DESTINATION_SERVED)} > 0",
              "warning", "{{ $labels.destination }} has only {{ $value }} lanes with an owner",
              "Start another relay, or raise --max-lanes of those that are there.", wait="10s"),
        _rule("OutboxNoRelay", f"absent({names.RELAYS}) or {_max(names.RELAYS)} == 0", "critical",
              "No relay is alive", "Start one with `pillarbox relay`.", wait="1m"),
    ]  # fmt: skip
    if thresholds.relays > 1:
        few = f"{_max(names.RELAYS)} < {thresholds.relays} > 0"
        rules.append(_rule("OutboxFewRelays", few, "warning", "Only {{ $value }} relays are alive",
                           "Start another with `pillarbox relay`.", wait="1m"))  # fmt: skip
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
        _panel("Waiting", _max(names.UNSENT), unit="short"),
        _panel("Oldest", _max(names.MAX_AGE), unit="s"),
        _panel("Delivered a second", _rate(f"{names.DELIVERED}_total", "1m"), unit="ops"),
        _panel("Latency p99", _quantile(names.LATENCY), unit="s"),
        _panel("End to end p99", _quantile(names.END_TO_END), unit="s"),
        _panel("Failed attempts a second", _rate(f"{names.ATTEMPTS_FAILED}_total", "5m"), unit="ops"),
        _panel("Failed, needing attention", _max(names.FAILED_NOW), unit="short"),
        _panel("Skipped, no route takes them", _max(names.SKIPPED_NOW), unit="short"),
        _panel("Destinations that the relay backs off from", _max(names.BREAKER_OPEN), unit="short"),
        _panel("Relays alive", _max(names.RELAYS), unit="short"),
        _panel("Lanes owned", _max(names.LEASES), unit="short"),
        _panel("Duplicates absorbed a second", _rate(f"{names.INBOX_DUPLICATES}_total", "5m"), unit="ops"),
        _panel("Received that no handler takes, a second", _rate(f"{names.INBOX_IGNORED}_total", "5m"), unit="ops"),
    ]
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


def _quantile(histogram: str) -> str:
    return f"histogram_quantile(0.99, {_rate(f'{histogram}_bucket', '5m')})"


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
