"""`pillarbox inbox`: messages that a consumer could not handle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from pillarbox.cli.asking import asked, by_option
from pillarbox.cli.confirming import ask, asking_options, counted
from pillarbox.cli.lines import shortened, when
from pillarbox.cli.output import OutputFormat, output_option, say, show, show_rows, table
from pillarbox.cli.target import Target, target_options
from pillarbox.errors import DecodeError, NoSuchMessage
from pillarbox.protocols import InboxFailure, InboxSelection, Store
from pillarbox.receiving import event_of, received_from

__all__ = ["inbox"]

F = TypeVar("F", bound=Callable[..., Any])
_BATCH = 1_000
_MANY = 1_000_000
"""More than anybody lets fail."""


@click.group(epilog="\b\nExample:\n  pillarbox inbox list --consumer billing\n")
def inbox() -> None:
    """List, redrive and discard messages that a consumer could not handle."""


def _filters(command: F) -> F:
    options = (
        click.option("--consumer", metavar="NAME", envvar="PILLARBOX_CONSUMER", show_envvar=True,
                     help="Of this consumer."),
        click.option("--error", metavar="TEXT", envvar="PILLARBOX_ERROR", show_envvar=True,
                     help="Whose error holds this, letter case ignored."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


class Change(msgspec.Struct, frozen=True):
    """What is to be done with which failed messages."""

    target: Target
    chosen: InboxSelection
    done: str
    """Redriven, or discarded."""
    dry_run: bool
    yes: bool
    output: OutputFormat

    def carry_out(self, batch: Callable[[Store, InboxSelection], Awaitable[int]]) -> None:
        """Count, ask, change in batches, and tell."""
        matched = len(asked(self.target, lambda store: store.inbox_failures(self.chosen, limit=_MANY)))
        if not matched and self.chosen.message_ids:
            raise NoSuchMessage(f"No failed message of an inbox is called {', '.join(self.chosen.message_ids)}.")
        if matched and not (self.dry_run or self.yes or self.chosen.message_ids):
            ask(f"{counted(matched)} in {self.target.url} will be {self.done}. Go on?")
        changed = 0 if self.dry_run else asked(self.target, lambda store: _all(store, self.chosen, batch))
        text = f"{changed:,} {self.done}."
        if self.dry_run:
            text = f"{counted(matched)} would be {self.done}. Nothing was changed."
        document = {"matched": matched, self.done: changed, "dry_run": self.dry_run}
        show(document, text=text, output=self.output)


async def _all(store: Store, chosen: InboxSelection, batch: Callable[[Store, InboxSelection], Awaitable[int]]) -> int:
    total = 0
    while count := await batch(store, chosen):
        total += count
    return total


@inbox.command("list", epilog="\b\nExample:\n  pillarbox inbox list --consumer billing --error timeout\n")
@target_options
@_filters
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, envvar="PILLARBOX_LIMIT",
              show_envvar=True, help="How many at most.")  # fmt: skip
@output_option
def list_failures(target: Target, *, consumer: str | None, error: str | None, limit: int, output: OutputFormat) -> None:
    """List failed messages, longest failed first."""
    chosen = InboxSelection(consumer=consumer, error=error)
    found = asked(target, lambda store: store.inbox_failures(chosen, limit=limit))
    if not found:
        say("No message of an inbox has failed.")
    rows = [
        (one.consumer, one.message_id, shortened(one.source, 30), _type(one), str(one.attempts), when(one.failed_at),
         shortened(one.error or "", 60))
        for one in found
    ]  # fmt: skip
    text = table(("consumer", "message id", "source", "type", "attempts", "failed at", "error"), rows) if rows else ""
    show_rows("failures", [_document(one) for one in found], text=text, output=output)


@inbox.command(epilog="\b\nExample:\n  pillarbox inbox redrive --consumer billing --yes\n")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@target_options
@_filters
@asking_options()
@by_option
@output_option
def redrive(target: Target, /, *, by: str, output: OutputFormat, dry_run: bool, yes: bool, **given: Any) -> None:
    """Have failed messages handled again by their consumer, with all their attempts."""
    change = Change(target, _chosen(given), "redriven", dry_run=dry_run, yes=yes, output=output)
    change.carry_out(lambda store, chosen: store.redrive_inbox(chosen, by=by, limit=_BATCH))


@inbox.command(epilog="\b\nExample:\n  pillarbox inbox discard 0192f0c0-… --reason 'done by hand'\n")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@target_options
@_filters
@click.option("--reason", required=True, metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True,
              help="Why, for the journal.")  # fmt: skip
@asking_options()
@by_option
@output_option
def discard(target: Target, /, *, by: str, reason: str, output: OutputFormat, **given: Any) -> None:
    """Close failed messages as done, without handling them."""
    asked_first = {name: given.pop(name) for name in ("dry_run", "yes")}
    change = Change(target, _chosen(given), "discarded", output=output, **asked_first)
    change.carry_out(lambda store, chosen: store.discard_inbox(chosen, by=by, reason=reason, limit=_BATCH))


def _chosen(given: dict[str, Any]) -> InboxSelection:
    message_ids: Sequence[str] = given["message_ids"]
    if message_ids and given["error"]:
        raise click.UsageError("Give message ids or --error, not both.")
    if not message_ids and not given["consumer"] and not given["error"]:
        raise click.UsageError("Say which messages: message ids, --consumer NAME or --error TEXT.")
    return InboxSelection(consumer=given["consumer"], message_ids=message_ids or None, error=given["error"])


def _type(one: InboxFailure) -> str:
    try:
        return shortened(event_of(received_from(one.content)).type, 30)
    except DecodeError:
        return "(malformed)"


def _document(one: InboxFailure) -> dict[str, object]:
    names = ("consumer", "source", "message_id", "attempts", "error", "failed_at")
    return {name: getattr(one, name) for name in names} | {"type": _type(one)}
