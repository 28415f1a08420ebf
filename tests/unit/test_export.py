"""What is under deploy/ is what the definitions make, and says what the metrics are really called."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pillarbox.operations.alerts import Thresholds
from pillarbox.operations.export import build_dashboard, build_rules, to_json
from pillarbox.operations.monitor import Status
from pillarbox.operations.prometheus import PrometheusConsumerTelemetry, PrometheusTelemetry, StatusCollector
from pillarbox.testing.samples import sample
from tests.unit.test_monitor import NOW, destination

DEPLOY = Path(__file__).parents[2] / "deploy"


def expressions() -> list[str]:
    alerts = [rule["expr"] for group in build_rules(Thresholds())["groups"] for rule in group["rules"]]
    return alerts + [target["expr"] for panel in build_dashboard()["panels"] for target in panel["targets"]]


def exposed() -> set[str]:
    """Every name that a scrape shows."""
    registry, status = CollectorRegistry(), StatusCollector()
    status.status = Status(at=NOW, destinations=[destination(due=1)], relays=[], stuck=[], near_failure=[])
    relay = PrometheusTelemetry()
    relay.on_delivered("billing", [sample()])
    for collector in (relay, status, PrometheusConsumerTelemetry()):
        registry.register(collector)
    text = generate_latest(registry).decode()
    families = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    return families | set(re.findall(r"^(\w+)(?:\{| )", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "made"),
    [("prometheus-rules.yaml", build_rules(Thresholds())), ("grafana-dashboard.json", build_dashboard())],
)
def test_the_files_are_up_to_date(name: str, made: dict[str, object]) -> None:
    assert (DEPLOY / name).read_text() == to_json(made), "run `make deploy`"


def test_every_metric_that_is_asked_for_is_there() -> None:
    asked = {name for text in expressions() for name in re.findall(r"\b(?:outbox|inbox)_\w+", text)}
    assert asked
    assert asked <= exposed()


def test_thresholds_are_those_of_check() -> None:
    text = json.dumps(build_rules(Thresholds(failed=7, backlog_critical=70_000)))
    assert "(outbox_failed_messages) > 7" in text
    assert "(outbox_unsent_count) > 70000" in text
    few = json.dumps(build_rules(Thresholds(relays=3)))
    assert "(outbox_relays) < 3 > 0" in few
    assert "OutboxFewRelays" not in text


def test_every_relay_exports_the_tables_and_each_alert_fires_once() -> None:
    """Each metric is inside an aggregation without the labels of the relay, or inside `absent`."""
    for text in expressions():
        bare = re.sub(r"(?:max|sum) without \(instance, pod, process\) \((?:rate\(\w+\[\w+\]\)|\w+)\)", "", text)
        bare = re.sub(r"absent\(\w+\)", "", bare)
        assert not re.search(r"\b(?:outbox|inbox)_", bare), text


def test_names_of_metrics_pass_the_linter_of_prometheus() -> None:
    """The rules of `promtool check metrics`, as far as names and types can break them."""
    registry, status = CollectorRegistry(), StatusCollector()
    status.status = Status(at=NOW, destinations=[destination(due=1)], relays=[], stuck=[], near_failure=[])
    for collector in (PrometheusTelemetry(), status, PrometheusConsumerTelemetry()):
        registry.register(collector)
    text = generate_latest(registry).decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert set(types) == set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    assert len(types) > 15
    for name, kind in types.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert (kind == "counter") == name.endswith("_total"), name
        if kind not in ("histogram", "summary", "untyped"):
            assert not name.endswith(("_count", "_sum", "_bucket")), name
        assert not re.search(r"_(?:milliseconds|ms|minutes|hours|percent|ratio|kilobytes|gauge|counter)(?:_|$)", name)
        assert ("seconds" in name) == (name in {"outbox_max_age_seconds", "outbox_delivery_latency_seconds",
                                                "outbox_end_to_end_seconds"}), name  # fmt: skip


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: it comes with Prometheus")
def test_promtool_accepts_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(DEPLOY / "prometheus-rules.yaml")], check=True)
