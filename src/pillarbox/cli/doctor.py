"""`pillarbox doctor`: find what would lose or delay messages, before it does."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

import click

from pillarbox.cli._errors import to_exit_code
from pillarbox.cli._logs import LogSettings, start_logging
from pillarbox.cli._options import configuration_options
from pillarbox.cli._output import OutputFormat, output_option, say, show, show_rows
from pillarbox.cli._table import find_width, wide_option
from pillarbox.cli._times import parse_wait
from pillarbox.config import Config, read_outbox_section, read_section
from pillarbox.operations.doctor import (
    Doctor,
    Examination,
    Report,
    TimeLimit,
    format_report,
    summarize,
    to_document,
    to_rows,
)

__all__ = ["doctor"]

_EPILOG = """Takes the configuration of `pillarbox relay`. Ends with 0 if all is well or there are only notes, with 6 if
there are warnings, with 7 if something is critical.

\b
Example:
  pillarbox doctor --store sqlite:///shop.db --to billing=https://billing.example/hooks
"""


@click.command("doctor", epilog=_EPILOG)
@configuration_options
@click.option("--timeout", callback=parse_wait, default="15s", show_default=True, metavar="TIME",
              envvar="PILLARBOX_DOCTOR_TIMEOUT", show_envvar=True, help="How long one check may take.")  # fmt: skip
@wide_option
@output_option
def doctor(config: Config, timeout: timedelta, output: OutputFormat) -> None:
    """Check the store and every destination: can they be reached, and would they lose messages? Sends nothing."""
    # Every section is read: a mistake in one that is not used here would stop the relay or the application.
    logs = read_section(config, LogSettings, at=("log",)).settings
    read_outbox_section(config)
    doctor = Doctor.from_config(config)
    limit = TimeLimit(timeout)
    start_logging(logs)
    stores = "the stores" if doctor.tenants is not None or len(doctor.stores) > 1 else "the store"
    say(f"Looking at {stores} and {len(doctor.destinations)} destination{'s' * (len(doctor.destinations) != 1)}")
    runner = asyncio.Runner()
    report = runner.run(doctor.run(limit, on_progress=_say_progress))
    if output == "jsonl":
        show_rows("findings", to_rows(report), text="", output=output)
    else:
        show(to_document(report), text=format_report(report, width=find_width()), output=output)
    code = to_exit_code(report.worst)
    if limit.abandoned:
        # Closing the loop would wait for the checks that hang, and the interpreter for their threads.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    runner.close()
    raise click.exceptions.Exit(code)


def _say_progress(one: Examination) -> None:
    say(f"  {one.about}: {summarize(Report([one])) if one.findings else 'fine'}")
