"""Errors: each ends the program with one sentence and an exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from pillarbox.cli._output import echo
from pillarbox.contracts.finding import Severity
from pillarbox.errors import PillarboxError
from pillarbox.redaction import format_traceback, redact

if TYPE_CHECKING:
    from pillarbox.cli._process import RelayProcess

__all__ = ["Session", "run", "to_exit_code", "to_sentence"]

_INTERRUPTED: Final = 130


@dataclass(slots=True)
class Session:
    """Arguments and global options of one run of the program."""

    debug: bool = False
    arguments: Sequence[str] = ()
    process: RelayProcess | None = None
    """What this process is to a supervisor; None without one."""


def run(command: click.Command, arguments: Sequence[str], *, process: RelayProcess | None = None) -> int:
    """Run a command and return its exit code. No error is shown as a traceback unless `--debug` was given.

    When the reader of a pipe goes away, click ends the process quietly with 1.
    """
    session = Session(arguments=arguments, process=process)
    try:
        code = command.main(list(arguments), prog_name="pillarbox", obj=session, standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        echo("Interrupted.", err=True)
        return _INTERRUPTED
    except click.ClickException as error:
        # It repeats what was typed, which may be a URL with a password.
        text = StringIO()
        _explain(error).show(text)
        echo(redact(text.getvalue().rstrip("\n")), err=True)
        return error.exit_code
    except Exception as error:
        if session.debug:
            echo(format_traceback(error).rstrip("\n"), err=True)
        echo(f"Error: {to_sentence(error)}", err=True)
        return error.exit_code if isinstance(error, PillarboxError) else 1
    return code if isinstance(code, int) else 0


def _explain(error: click.ClickException) -> click.ClickException:
    """Replace what click calls a type by its name in plain English, and name the nearest of several choices."""
    if not isinstance(error, click.BadParameter):
        return error
    sentence = re.sub(r"is not a valid integer( range)?\b", "is not a whole number", error.message)
    kind = error.param.type if error.param is not None else None
    typed = re.match(r"'([^']*)'", sentence)
    if isinstance(kind, click.Choice) and typed is not None:
        near = get_close_matches(typed[1].lower(), [str(choice) for choice in kind.choices], n=1)
        sentence += f" Did you mean {near[0]!r}?" if near else ""
    if sentence == error.message:  # a missing parameter, among others, has no text of its own
        return error
    return click.BadParameter(sentence, ctx=error.ctx, param=error.param, param_hint=error.param_hint)


def to_sentence(error: Exception) -> str:
    """Write an error on one line, without secrets."""
    text = " ".join(str(error).split())
    if not isinstance(error, PillarboxError):
        text = (
            f"Something unexpected happened ({type(error).__name__}: {text}); run `pillarbox --debug …` for the "
            "traceback."
        )
    return redact(text)


_EXIT_CODES: Final[Mapping[Severity | None, int]] = MappingProxyType(
    {None: 0, Severity.INFO: 0, Severity.WARNING: 6, Severity.CRITICAL: 7}
)


def to_exit_code(worst: Severity | None) -> int:
    """Return the exit code for the worst alert or finding; None is for none at all."""
    return _EXIT_CODES[worst]
