"""`pillarbox doctor`: what would lose or delay messages, before it does."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

import click

from pillarbox.cli.configuring import configuration_options
from pillarbox.cli.durations import as_duration
from pillarbox.cli.logs import LogSettings, start_logging
from pillarbox.cli.output import OutputFormat, output_option, say, show, show_rows
from pillarbox.cli.severities import exit_code
from pillarbox.config import Config, outbox_section, read_section
from pillarbox.doctor.bounds import Bounds
from pillarbox.doctor.examination import examination
from pillarbox.doctor.report import Examined, Report
from pillarbox.doctor.telling import document, rows, summary, told

__all__ = ["doctor"]

_EPILOG = """Takes the configuration of `pillarbox relay`. Ends with 0 if all is well or there are only notes, with 6 if
there are warnings, with 7 if something is critical.

\b
Example:
  pillarbox doctor --store sqlite:///shop.db --to billing=https://billing.example/hooks
"""


@click.command("doctor", epilog=_EPILOG)
@configuration_options
@click.option("--timeout", callback=as_duration, default="15s", show_default=True, metavar="TIME",
              envvar="PILLARBOX_DOCTOR_TIMEOUT", show_envvar=True, help="How long one check may take.")  # fmt: skip
@output_option
def doctor(config: Config, timeout: timedelta, output: OutputFormat) -> None:
    """Check the store and every destination: can they be reached, and would they lose messages? Sends nothing."""
    logs = read_section(config, LogSettings, at=("log",)).settings
    outbox_section(config)
    asked = examination(config)
    bounds = Bounds(timeout)
    start_logging(logs)
    say(f"Looking at the store and {len(asked.destinations)} destination{'s' * (len(asked.destinations) != 1)}")
    runner = asyncio.Runner()
    report = runner.run(asked.run(bounds, progress=_progress))
    _show(report, output)
    if bounds.given_up:
        _leave(exit_code(report.worst))
    runner.close()
    raise click.exceptions.Exit(exit_code(report.worst))


def _show(report: Report, output: OutputFormat) -> None:
    if output == "jsonl":
        show_rows("findings", rows(report), text="", output=output)
    else:
        show(document(report), text=told(report), output=output)


def _progress(one: Examined) -> None:
    found = summary(Report([one])) if one.findings else "fine"
    say(f"  {one.about}: {found}")


def _leave(code: int) -> None:
    """End without waiting for what hangs: some of it may be a thread, which cannot be stopped."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
