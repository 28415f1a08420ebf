"""`pillarbox check`: the alerts that hold, for people, programs and other monitors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal

import click
import msgspec

from pillarbox.alerts import Alert, Thresholds, alerts_of
from pillarbox.cli.asking import asked
from pillarbox.cli.output import show
from pillarbox.cli.screen import alerts_text
from pillarbox.cli.severities import exit_code
from pillarbox.cli.target import Target, target_options
from pillarbox.config import Config, read_section
from pillarbox.monitor import Monitor, Status
from pillarbox.protocols import Severity
from pillarbox.relay.configured import relay_section

__all__ = ["check", "thresholds_of"]

Format = Literal["text", "json", "jsonl", "prometheus", "nagios"]
_NAGIOS: Final = {None: (0, "OK"), Severity.INFO: (0, "OK"), Severity.WARNING: (1, "WARNING"),
                  Severity.CRITICAL: (2, "CRITICAL")}  # fmt: skip
_EPILOG = """Ends with 0 if all is well, with 6 if there are warnings, with 7 if something is critical; with
-o nagios 0, 1 and 2, as those programs have it. Thresholds stand under [alerts] in the file, or in
PILLARBOX_ALERTS_<NAME>.

\b
Example:
  pillarbox check -o nagios
"""


def thresholds_of(config: Config) -> Thresholds:
    """Where alerts begin, as configured."""
    return read_section(config, Thresholds, at=("alerts",)).settings


@click.command("check", epilog=_EPILOG)
@target_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "jsonl", "prometheus", "nagios"]), default="text",
              show_default=True, envvar="PILLARBOX_OUTPUT", show_envvar=True,
              help="How the result is printed.")  # fmt: skip
def check(target: Target, output: Format) -> None:
    """Say what needs a person. The exit code says how urgently."""
    thresholds = thresholds_of(target.config)
    lease = relay_section(target.config).settings.lease
    status = asked(target, lambda store: Monitor(store, lease=lease).status())
    alerts = alerts_of(status, thresholds)
    worst = alerts[0].severity if alerts else None
    _WAYS[output](status, alerts, worst)
    code = _NAGIOS[worst][0] if output == "nagios" else exit_code(worst)
    raise click.exceptions.Exit(code)


def _text(_: Status, alerts: Sequence[Alert], __: Severity | None) -> None:
    click.echo(alerts_text(alerts))


def _json(_: Status, alerts: Sequence[Alert], worst: Severity | None) -> None:
    document = {"worst": worst.value if worst else None, "alerts": [msgspec.to_builtins(one) for one in alerts]}
    show(document, text="", output="json")


def _jsonl(_: Status, alerts: Sequence[Alert], __: Severity | None) -> None:
    for alert in alerts:
        click.echo(msgspec.json.encode(alert).decode())


def _nagios(status: Status, alerts: Sequence[Alert], worst: Severity | None) -> None:
    """One line: the state, what is wrong, and figures after a bar."""
    told = " ".join(alert.what for alert in alerts) or "all is well"
    figures = {
        "due": sum(one.due for one in status.destinations),
        "failed": sum(one.failed for one in status.destinations),
        "oldest": round(_oldest(status).total_seconds()),
        "relays": len(status.relays),
    }
    click.echo(f"{_NAGIOS[worst][1]}: {told} | " + " ".join(f"{name}={value}" for name, value in figures.items()))


def _oldest(status: Status) -> timedelta:
    return max((status.oldest_age(one) for one in status.destinations), default=timedelta(0))


def _prometheus(_: Status, alerts: Sequence[Alert], __: Severity | None) -> None:
    """For a textfile collector: 1 for every alert that holds."""
    click.echo("# HELP outbox_alert Whether an alert of `pillarbox check` holds.")
    click.echo("# TYPE outbox_alert gauge")
    for alert in alerts:
        labels = {"name": alert.name, "severity": alert.severity.value, "destination": alert.destination or ""}
        inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
        click.echo(f"outbox_alert{{{inner}}} 1")


_WAYS: Final[Mapping[Format, Callable[[Status, Sequence[Alert], Severity | None], None]]] = {
    "text": _text,
    "json": _json,
    "jsonl": _jsonl,
    "nagios": _nagios,
    "prometheus": _prometheus,
}
