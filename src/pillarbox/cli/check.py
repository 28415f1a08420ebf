"""`pillarbox check`: the alerts that hold, for people, programs and monitors such as Nagios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Final, Literal, TypeVar

import click
import msgspec

from pillarbox.cli._errors import to_exit_code, to_sentence
from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import echo, echo_painted, encode_json, show, to_line
from pillarbox.contracts.finding import Severity
from pillarbox.operations.alerts import Alert, find_alerts
from pillarbox.operations.configuration import build_monitor, read_thresholds
from pillarbox.operations.monitor import Status

__all__ = ["check", "paint_alerts"]

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN: Final = 3

_NAGIOS: Final = {None: (0, "OK"), Severity.INFO: (0, "OK"), Severity.WARNING: (1, "WARNING"),
                  Severity.CRITICAL: (2, "CRITICAL")}  # fmt: skip
_LABELS: Final = {Severity.CRITICAL: "CRITICAL", Severity.WARNING: "WARNING", Severity.INFO: "note"}
_EPILOG = """Ends with 0 if all is well, with 6 if there are warnings, with 7 if something is critical; with
-o nagios 0, 1 and 2, as those programs have it, and 3 if the store cannot be asked. Thresholds stand
under [alerts] in the file, or in PILLARBOX_ALERTS_<NAME>.

\b
Example:
  pillarbox check -o nagios
"""


def _report_unknown(command: F) -> F:
    """Report an error as one line with `-o nagios`, whose exit codes mean something else than those of this program."""

    @wraps(command)
    def run(*args: Any, output: str, **rest: Any) -> Any:
        try:
            return command(*args, output=output, **rest)
        except Exception as error:
            if output != "nagios" or isinstance(error, click.exceptions.Exit | click.Abort):
                raise
            echo(f"UNKNOWN: {to_line(to_sentence(error)).replace('|', '/')}")
            raise click.exceptions.Exit(_UNKNOWN) from error

    return run  # type: ignore[return-value]


@click.command("check", epilog=_EPILOG)
@_report_unknown
@target_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl", "prometheus", "nagios"]), default="text",
              show_default=True, envvar="PILLARBOX_OUTPUT", show_envvar=True,
              help="How the result is printed.")  # fmt: skip
def check(target: Target, output: Literal["text", "json", "jsonl", "prometheus", "nagios"]) -> None:
    """Say what needs a person. The exit code says how urgently."""
    thresholds = read_thresholds(target.config)
    status = target.run(lambda store: build_monitor(store, target.config).status())
    alerts = find_alerts(status, thresholds)
    worst = alerts[0].severity if alerts else None
    match output:
        case "text":
            echo_painted(paint_alerts(alerts))
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


def paint_alerts(alerts: Sequence[Alert]) -> list[tuple[str, Severity | None]]:
    """Write alerts as lines, each followed by what to do, with their severities."""
    if not alerts:
        return [("All is well.", None)]
    lines: list[tuple[str, Severity | None]] = []
    for alert in alerts:
        lines.append((f"{_LABELS[alert.severity]}: {to_line(alert.what)}", alert.severity))
        lines.append((f"  {to_line(alert.do)}", None))
    return lines


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
