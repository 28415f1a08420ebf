"""The program as a click group: its commands, its global options and its help."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from pillarbox.cli._errors import Session

__all__ = ["pillarbox"]

_COMMANDS: Final = (
    "archive", "check", "completion", "config", "consume", "dashboard", "demo", "doctor", "failures", "handoff",
    "inbox", "init",
    "lanes", "messages", "pause", "purge", "relay", "relays", "resume", "schema", "status", "version",
)  # fmt: skip
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


class _LazyGroup(click.Group):
    """Group that imports a command's file when the command is needed.

    Together they import every store and broker, which takes longer than most commands run.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"pillarbox.cli.{cmd_name}"), cmd_name)
        return command


@click.group(
    cls=_LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, envvar="PILLARBOX_DEBUG", show_envvar=True, help="Show tracebacks of errors.")
@click.version_option(package_name="pillarbox", message="pillarbox %(version)s")
@click.pass_obj
def pillarbox(session: Session, debug: bool) -> None:
    """Transactional outbox, inbox and relay.

    Results go to stdout, everything else to stderr.
    """
    session.debug = debug
