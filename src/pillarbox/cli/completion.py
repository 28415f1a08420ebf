"""`pillarbox completion`: the script with which a shell completes commands, options and names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from pillarbox.cli._output import echo
from pillarbox.settings import join_words

__all__ = ["completion"]

_SHELLS: Final[Mapping[str, type[ShellComplete]]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_EPILOG = """\b
Where it goes:
  bash  ~/.local/share/bash-completion/completions/pillarbox
  zsh   ~/.zfunc/_pillarbox, with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  fish  ~/.config/fish/completions/pillarbox.fish

\b
Example:
  pillarbox completion bash
"""


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(list(_SHELLS)), required=False)
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script for a shell, by default yours.

    It completes commands, options and their values, and the names of destinations that the configuration and the
    tables know. It asks the installed program, so it fits every later release.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _SHELLS:
        raise click.UsageError(f"Say which shell it is for: {join_words(list(_SHELLS), last='or')}.")
    echo(_SHELLS[shell](ctx.find_root().command, {}, "pillarbox", "_PILLARBOX_COMPLETE").source().rstrip("\n"))
