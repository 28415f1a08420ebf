"""The program and its commands: each group is a file."""

from __future__ import annotations

from importlib.metadata import version

import click

from pillarbox.cli.alerting import check
from pillarbox.cli.config import config
from pillarbox.cli.consume import consume
from pillarbox.cli.demo import demo
from pillarbox.cli.destinations import pause, resume
from pillarbox.cli.doctor import doctor
from pillarbox.cli.failing import failures
from pillarbox.cli.failures import Session
from pillarbox.cli.inbox import inbox
from pillarbox.cli.messages import messages
from pillarbox.cli.purging import purge
from pillarbox.cli.registry import partitions, relays
from pillarbox.cli.relay import relay
from pillarbox.cli.schema import schema
from pillarbox.cli.status import status
from pillarbox.cli.version import show_version

__all__ = ["pillarbox"]

_EPILOG = """\b
Exit codes:
  0  done
  1  failed, or a threshold was crossed
  2  wrong usage, URL, name or option
  3  store or broker unreachable
  4  schema missing, outdated, newer or mixed
  5  no such message
  6  warnings
  7  something critical

\b
Example:
  pillarbox schema install --store sqlite:///shop.db
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, envvar="PILLARBOX_DEBUG", show_envvar=True, help="Show tracebacks of errors.")
@click.version_option(version("pillarbox"), message="pillarbox %(version)s")
@click.pass_obj
def pillarbox(session: Session, debug: bool) -> None:
    """Transactional outbox, inbox and relay.

    Results go to stdout, everything else to stderr.
    """
    session.debug = debug


_COMMANDS = (
    check, config, consume, demo, doctor, failures, inbox, messages, partitions, pause, purge, relay, relays, resume,
    schema, show_version, status,
)  # fmt: skip
for command in _COMMANDS:
    pillarbox.add_command(command)
