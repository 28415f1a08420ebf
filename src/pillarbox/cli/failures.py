"""How the program ends: one sentence and an exit code for every error."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

from pillarbox.errors import PillarboxError
from pillarbox.stores.url_secrets import redacted

__all__ = ["Session", "run"]

_INTERRUPTED: Final = 130
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+", re.IGNORECASE)


@dataclass(slots=True)
class Session:
    """One run of the program."""

    debug: bool = False


def run(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command; its exit code. No error leaves as a traceback unless `--debug` asked for it.

    When the reader of a pipe goes away, click ends the process quietly with 1.
    """
    session = Session()
    try:
        code = command.main(list(arguments), prog_name="pillarbox", obj=session, standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        return _told(error, debug=session.debug)
    return code if isinstance(code, int) else 0


def _told(error: Exception, *, debug: bool) -> int:
    if debug:
        click.echo(_without_secrets(traceback.format_exc()), err=True, nl=False)
    click.echo(f"Error: {_without_secrets(_sentence(error))}", err=True)
    return error.exit_code if isinstance(error, PillarboxError) else 1


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, PillarboxError):
        return text
    return (
        f"Something unexpected happened ({type(error).__name__}: {text}); run `pillarbox --debug …` for the traceback."
    )


def _without_secrets(text: str) -> str:
    """Our own errors carry none; a driver's or a stranger's might."""
    return _URL.sub(lambda match: redacted(match[0]), text)
