"""Before many messages change: how many they are, and whether that is meant."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pillarbox.cli.output import say

__all__ = ["ask", "asking_options", "counted"]

F = TypeVar("F", bound=Callable[..., Any])


def asking_options(*, nothing: str = "change nothing") -> Callable[[F], F]:
    """Adds `--dry-run` and `--yes`."""

    def decorate(command: F) -> F:
        dry_run = click.option("--dry-run", is_flag=True, envvar="PILLARBOX_DRY_RUN", show_envvar=True,
                               help=f"Say how many it would be, and {nothing}.")  # fmt: skip
        yes = click.option("--yes", is_flag=True, envvar="PILLARBOX_YES", show_envvar=True, help="Do not ask.")
        return dry_run(yes(command))

    return decorate


def ask(question: str, *, doing: str = "changes many messages", done: str = "changed") -> None:
    """Go on only if a person agrees. `UsageError` where there is none."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"This {doing} and there is nobody to ask: add --yes if you mean it.")
    if not click.confirm(question, err=True):
        say(f"Nothing was {done}.")
        raise click.exceptions.Exit(1)


def counted(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
