"""Confirmation of changes: `--dry-run`, `--yes`, and the question."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pillarbox.cli._output import say
from pillarbox.cli._table import to_line

__all__ = ["confirm", "confirm_options"]

F = TypeVar("F", bound=Callable[..., Any])


def confirm_options(*, nothing: str = "change nothing") -> Callable[[F], F]:
    """Add `--dry-run` and `--yes`."""

    def decorate(command: F) -> F:
        dry_run = click.option("--dry-run", is_flag=True, envvar="PILLARBOX_DRY_RUN", show_envvar=True,
                               help=f"Say how many it would be, and {nothing}.")  # fmt: skip
        yes = click.option("--yes", is_flag=True, envvar="PILLARBOX_YES", show_envvar=True, help="Do not ask.")
        return dry_run(yes(command))

    return decorate


def confirm(question: str, *, effect: str = "changes many messages", done: str = "changed") -> None:
    """Ask, and exit with 1 unless the answer is yes. `UsageError` where there is no terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"This {effect} and there is nobody to ask: add --yes if you mean it.")
    if not click.confirm(to_line(question), err=True):
        say(f"Nothing was {done}.")
        raise click.exceptions.Exit(1)
