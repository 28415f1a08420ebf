"""What the supervisor of several relay processes decides, without any process."""

from __future__ import annotations

import signal

from prometheus_client import CollectorRegistry, generate_latest

from pillarbox.cli._supervisor import merge_metrics, merge_probes, to_exit_code, to_restart_delay
from pillarbox.operations.health import ProbeResult
from pillarbox.operations.prometheus import PrometheusTelemetry


def test_a_process_that_keeps_dying_is_started_less_and_less_often() -> None:
    delays = [to_restart_delay(deaths) for deaths in range(1, 9)]
    assert delays[:3] == [0.5, 1.0, 2.0]
    assert delays[-1] == to_restart_delay(100_000) == 30.0


def test_an_exit_code_is_that_of_a_shell() -> None:
    assert [to_exit_code(code) for code in (0, 3, -signal.SIGKILL, -signal.SIGTERM)] == [0, 3, 137, 143]


def test_one_failed_probe_fails_all_and_names_its_process() -> None:
    fine, noted = ProbeResult(True), ProbeResult(True, notes=["mail is down"])
    assert merge_probes({"1/2": fine, "2/2": fine}) == ProbeResult(True, [], [])
    assert merge_probes({"1/2": fine, "2/2": noted}) == ProbeResult(True, [], ["process 2/2: mail is down"])
    failed = merge_probes({"1/2": ProbeResult(False, ["it is stopping"]), "2/2": fine})
    assert failed == ProbeResult(False, ["process 1/2: it is stopping"], [])


def render(process: str) -> str:
    telemetry = PrometheusTelemetry(process=process)
    telemetry.on_breaker_opened("billing", reason="down", seconds=1)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(telemetry)
    return generate_latest(registry).decode()


def test_merged_pages_have_each_family_once_with_the_series_of_every_process() -> None:
    page = merge_metrics([render("1"), render("2")])
    lines = page.splitlines()
    headings = [line for line in lines if line.startswith("# TYPE")]
    start = lines.index("# TYPE outbox_breaker_open gauge")

    assert len(headings) == len(set(headings)) == render("1").count("# TYPE")
    assert lines[start + 1 : start + 3] == [
        'outbox_breaker_open{destination="billing",process="1"} 1.0',
        'outbox_breaker_open{destination="billing",process="2"} 1.0',
    ]
    assert merge_metrics([render("1")]) == render("1")
