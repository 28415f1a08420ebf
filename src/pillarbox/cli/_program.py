"""The program as a click group: its commands, its global options and its help."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click

from pillarbox.cli._errors import Session

__all__ = ["pillarbox"]

_GROUPS: Final = (
    ("Deliver", ("relay", "consume", "pause", "resume")),
    ("Watch", ("status", "check", "relays", "lanes", "dashboard")),
    ("Repair", ("failures", "messages", "inbox", "doctor")),
    ("Keep tables in order", ("schema", "purge", "archive", "handoff")),
    ("Set up", ("init", "config", "completion", "version", "demo")),
)
"""Commands as the help shows them, by what somebody wants to do."""
_COMMANDS: Final = tuple(sorted(name for _, names in _GROUPS for name in names))
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a misspelled one name the nearest."""
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, _COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "`pillarbox --help` lists them."
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups. Each has all its help's first sentence."""
        longest = max(map(len, _COMMANDS))
        for title, names in _GROUPS:
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                room = formatter.width - longest - 6
                formatter.write_dl([(name, one.get_short_help_str(room)) for name, one in commands if one is not None])


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
