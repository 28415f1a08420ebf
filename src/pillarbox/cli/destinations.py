"""`pillarbox pause | resume`: stop and start the delivery to a destination."""

from __future__ import annotations

import click

from pillarbox.cli.asking import asked, by_option
from pillarbox.cli.output import OutputFormat, output_option, show
from pillarbox.cli.target import Target, target_options
from pillarbox.names import check_destination

__all__ = ["pause", "resume"]


@click.command(epilog="\b\nExample:\n  pillarbox pause billing --reason 'they are moving'\n")
@click.argument("destination")
@target_options
@click.option("--reason", default="", metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True,
              help="Why, for those who wonder.")  # fmt: skip
@by_option
@output_option
def pause(target: Target, destination: str, reason: str, by: str, output: OutputFormat) -> None:
    """Stop delivery to a destination until it is resumed. Messages wait; nothing is spent."""
    check_destination(destination)
    asked(target, lambda store: store.pause(destination, by=by, reason=reason))
    document = {"destination": destination, "paused": True, "by": by, "reason": reason}
    show(
        document, text=f"{destination} is paused. Start it again with `pillarbox resume {destination}`.", output=output
    )


@click.command(epilog="\b\nExample:\n  pillarbox resume billing\n")
@click.argument("destination")
@target_options
@by_option
@output_option
def resume(target: Target, destination: str, by: str, output: OutputFormat) -> None:
    """Start delivery to a paused destination again."""
    changed = asked(target, lambda store: store.resume(check_destination(destination), by=by))
    text = f"{destination} goes on." if changed else f"{destination} was not paused."
    show({"destination": destination, "paused": False, "changed": changed, "by": by}, text=text, output=output)
