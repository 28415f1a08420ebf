"""`pillarbox check`: the alerts that hold, for people, programs and monitors such as Nagios."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Literal

import click
import msgspec

from pillarbox.cli._errors import to_exit_code
from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import echo, encode_json, show, to_line
from pillarbox.config import Config, read_section
from pillarbox.contracts.finding import Severity
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.monitor import Monitor, Status
from pillarbox.relay.configuration import read_relay_section

__all__ = ["check", "format_alerts", "read_thresholds"]

_NAGIOS: Final = {None: (0, "OK"), Severity.INFO: (0, "OK"), Severity.WARNING: (1, "WARNING"),
                  Severity.CRITICAL: (2, "CRITICAL")}  # fmt: skip
_LABELS: Final = {Severity.CRITICAL: "CRITICAL", Severity.WARNING: "WARNING", Severity.INFO: "note"}
_EPILOG = """Ends with 0 if all is well, with 6 if there are warnings, with 7 if something is critical; with
-o nagios 0, 1 and 2, as those programs have it. Thresholds stand under [alerts] in the file, or in
PILLARBOX_ALERTS_<NAME>.

\b
Example:
  pillarbox check -o nagios
"""


@click.command("check", epilog=_EPILOG)
@target_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl", "prometheus", "nagios"]), default="text",
              show_default=True, envvar="PILLARBOX_OUTPUT", show_envvar=True,
              help="How the result is printed.")  # fmt: skip
def check(target: Target, output: Literal["text", "json", "jsonl", "prometheus", "nagios"]) -> None:
    """Say what needs a person. The exit code says how urgently."""
    thresholds = read_thresholds(target.config)
    lease = read_relay_section(target.config).settings.lease
    status = target.run(lambda store: Monitor(store, lease=lease).status())
    alerts = find_alerts(status, thresholds)
    worst = alerts[0].severity if alerts else None
    match output:
        case "text":
            echo(format_alerts(alerts))
        case "json":
            document = {"worst": worst.value if worst else None, "alerts": [msgspec.to_builtins(one) for one in alerts]}
            show(document, text="", output="json")
        case "jsonl":
            for alert in alerts:
                echo(encode_json(alert))
        case "prometheus":
            echo(_format_prometheus(alerts))
        case "nagios":
            echo(_format_nagios(status, alerts, worst))
    raise click.exceptions.Exit(_NAGIOS[worst][0] if output == "nagios" else to_exit_code(worst))


def read_thresholds(config: Config) -> Thresholds:
    """Read `[alerts]`."""
    return read_section(config, Thresholds, at=("alerts",)).settings


def format_alerts(alerts: Sequence[Alert]) -> str:
    """Format alerts as text, each followed by what to do."""
    if not alerts:
        return "All is well."
    return "\n".join(f"{_LABELS[alert.severity]}: {to_line(alert.what)}\n  {to_line(alert.do)}" for alert in alerts)


def _format_prometheus(alerts: Sequence[Alert]) -> str:
    """Format alerts as metrics for a textfile collector: 1 for every alert that holds."""
    lines = [
        "# HELP outbox_alert Whether an alert of `pillarbox check` holds.",
        "# TYPE outbox_alert gauge",
    ]
    for alert in alerts:
        labels = {"name": alert.name, "severity": alert.severity.value, "destination": alert.destination or ""}
        if alert.consumer is not None:
            labels["consumer"] = alert.consumer
        lines.append(
            "outbox_alert{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items()) + "} 1"
        )
    return "\n".join(lines)


def _escape_label(value: str) -> str:
    """Escape the value of a label as the text format of Prometheus has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_nagios(status: Status, alerts: Sequence[Alert], worst: Severity | None) -> str:
    """Format alerts as one line: the state, what is wrong, and figures after a bar."""
    summary = to_line(" ".join(alert.what for alert in alerts)).replace("|", "/") or "all is well"
    oldest = max((status.oldest_age(one) for one in status.destinations), default=timedelta(0))
    figures = {
        "due": sum(one.due for one in status.destinations),
        "failed": sum(one.failed for one in status.destinations),
        "inbox_failed": sum(one.failed for one in status.inboxes),
        "oldest": round(oldest.total_seconds()),
        "relays": len(status.relays),
    }
    return f"{_NAGIOS[worst][1]}: {summary} | " + " ".join(f"{name}={value}" for name, value in figures.items())
