"""`pillarbox resume`: start the delivery to a paused destination again."""

from __future__ import annotations

import click

from pillarbox.cli._options import Target, by_option, complete_destination, reason_option, target_options
from pillarbox.cli._output import OutputFormat, output_option, show

__all__ = ["resume"]


@click.command(epilog="\b\nExample:\n  pillarbox resume billing\n")
@click.argument("destination", shell_complete=complete_destination)
@target_options
@reason_option
@by_option
@output_option
def resume(target: Target, destination: str, reason: str | None, by: str, output: OutputFormat) -> None:
    """Start delivery to a paused destination again."""
    target.check_destination(destination)
    changed = target.run(lambda store: store.resume(destination, by=by, reason=reason))
    text = f"{destination} goes on." if changed else f"{destination} was not paused."
    show({"destination": destination, "paused": False, "changed": changed, "by": by}, text=text, output=output)
