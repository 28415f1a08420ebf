"""`pillarbox check`: the alerts that hold, for people, programs and monitors such as Nagios."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Final, Literal, NamedTuple, TypeVar

import click
import msgspec

from pillarbox.cli._errors import to_exit_code, to_sentence
from pillarbox.cli._options import Targets, targets_options
from pillarbox.cli._output import echo, echo_painted, encode_json, show
from pillarbox.cli._screen import paint_alerts
from pillarbox.cli._table import find_width, to_line, wide_option
from pillarbox.contracts.finding import Severity
from pillarbox.operations.alerts import Alert, Thresholds, find_alerts
from pillarbox.operations.configuration import build_monitor, read_thresholds
from pillarbox.operations.monitor import Monitor, Status

__all__ = ["check"]

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN: Final = 3
_HANDOVER: Final = 1.5
"""Seconds in which relays take over lanes that have lost their owner."""
_RANK: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)

_NAGIOS: Final = {None: (0, "OK"), Severity.INFO: (0, "OK"), Severity.WARNING: (1, "WARNING"),
                  Severity.CRITICAL: (2, "CRITICAL")}  # fmt: skip
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
@targets_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl", "prometheus", "nagios"]), default="text",
              show_default=True, envvar="PILLARBOX_OUTPUT", show_envvar=True,
              help="How the result is printed.")  # fmt: skip
@wide_option
def check(targets: Targets, output: Literal["text", "json", "jsonl", "prometheus", "nagios"]) -> None:
    """Say what needs attention. The exit code says how urgently. Of several stores, all are checked."""
    config = targets.config
    thresholds = read_thresholds(config)
    if (target := targets.single) is not None:
        status = target.run(lambda store: _read_status(build_monitor(store, config), thresholds), reads_only=True)
        checked = [CheckedStore(None, status, find_alerts(status, thresholds, store=targets.chosen))]
    else:
        answers = targets.ask(lambda _, store: _read_status(build_monitor(store, config), thresholds), reads_only=True)
        checked = [
            CheckedStore(one.name or None, one.value, [_report_unasked(one.name, one.error or "")])
            if one.value is None
            else CheckedStore(one.name, one.value, find_alerts(one.value, thresholds, store=one.name))
            for one in answers
        ]
    alerts = sorted(
        ((one.store, alert) for one in checked for alert in one.alerts),
        key=lambda pair: (_RANK.index(pair[1].severity), pair[0] or ""),
    )
    worst = alerts[0][1].severity if alerts else None
    match output:
        case "text":
            stores, found = [store for store, _ in alerts], [alert for _, alert in alerts]
            echo_painted(paint_alerts(found, stores=stores, width=find_width()))
        case "json":
            document = {"worst": worst.value if worst else None, "alerts": [_to_row(*pair) for pair in alerts]}
            show(document, text="", output="json")
        case "jsonl":
            for pair in alerts:
                echo(encode_json(_to_row(*pair)))
        case "prometheus":
            echo(_format_prometheus(alerts))
        case "nagios":
            statuses = [one.status for one in checked if one.status is not None]
            echo(_format_nagios(statuses, [_name_store(*pair) for pair in alerts], worst))
    raise click.exceptions.Exit(_NAGIOS[worst][0] if output == "nagios" else to_exit_code(worst))


async def _read_status(monitor: Monitor, thresholds: Thresholds) -> Status:
    """Read the status, twice if lanes have no owner: while relays hand them over, some have none for a moment."""
    status = await monitor.status()
    if any(alert.name == "lanes" for alert in find_alerts(status, thresholds)):
        await asyncio.sleep(_HANDOVER)
        status = await monitor.status()
    return status


class CheckedStore(NamedTuple):
    """One store, what it holds, and the alerts about it. A lone store has no name."""

    store: str | None
    status: Status | None
    alerts: Sequence[Alert]


def _report_unasked(name: str, error: str) -> Alert:
    return Alert(
        name="store",
        severity=Severity.CRITICAL,
        destination=None,
        what=f"The store cannot be asked: {error}" if name else f"A tenant cannot be served: {error}",
        do="Nothing of it is delivered until it answers; the other stores are served.",
    )


def _name_store(store: str | None, alert: Alert) -> Alert:
    return alert if store is None else msgspec.structs.replace(alert, what=f"{store}: {alert.what}")


def _to_row(store: str | None, alert: Alert) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(alert)
    return row if store is None else {"store": store, **row}


def _format_prometheus(alerts: Sequence[tuple[str | None, Alert]]) -> str:
    """Format alerts as metrics for a textfile collector: 1 for every alert that holds."""
    lines = [
        "# HELP outbox_alert Whether an alert of `pillarbox check` holds.",
        "# TYPE outbox_alert gauge",
    ]
    for store, alert in alerts:
        labels = {"name": alert.name, "severity": alert.severity.value, "destination": alert.destination or ""}
        if alert.consumer is not None:
            labels["consumer"] = alert.consumer
        if store is not None:
            labels["store"] = store
        lines.append(
            "outbox_alert{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items()) + "} 1"
        )
    return "\n".join(lines)


def _escape_label(value: str) -> str:
    """Escape the value of a label as the text format of Prometheus has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_nagios(statuses: Sequence[Status], alerts: Sequence[Alert], worst: Severity | None) -> str:
    """Format alerts as one line: the state, what is wrong, and figures after a bar."""
    summary = to_line(" ".join(alert.what for alert in alerts)).replace("|", "/") or "all is well"
    destinations = [(status, one) for status in statuses for one in status.destinations]
    oldest = max((status.oldest_age(one) for status, one in destinations), default=timedelta(0))
    figures = {
        "due": sum(one.due for _, one in destinations),
        "failed": sum(one.failed for _, one in destinations),
        "skipped": sum(status.skipped for status in statuses),
        "inbox_failed": sum(one.failed for status in statuses for one in status.inboxes),
        "oldest": round(oldest.total_seconds()),
        "relays": sum(len(status.relays) for status in statuses),
    }
    return f"{_NAGIOS[worst][1]}: {summary} | " + " ".join(f"{name}={value}" for name, value in figures.items())
