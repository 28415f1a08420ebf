"""`pillarbox pause`: stop the delivery to a destination."""

from __future__ import annotations

import click

from pillarbox.cli._options import Target, by_option, complete_destination, target_options
from pillarbox.cli._output import OutputFormat, output_option, show

__all__ = ["pause"]


@click.command(epilog="\b\nExample:\n  pillarbox pause billing --reason 'they are moving'\n")
@click.argument("destination", shell_complete=complete_destination)
@target_options
@click.option("--reason", default="", metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True,
              help="Why, for those who wonder.")  # fmt: skip
@by_option
@output_option
def pause(target: Target, destination: str, reason: str, by: str, output: OutputFormat) -> None:
    """Stop delivery to a destination until it is resumed. Messages wait; nothing is spent."""
    target.check_destination(destination)
    target.run(lambda store: store.pause(destination, by=by, reason=reason))
    document = {"destination": destination, "paused": True, "by": by, "reason": reason}
    text = f"{destination} is paused. Start it again with `pillarbox resume {destination}`."
    show(document, text=text, output=output)
