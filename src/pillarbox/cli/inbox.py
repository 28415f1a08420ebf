"""`pillarbox inbox`: list, redrive and discard messages that a consumer could not handle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from pillarbox.cli._confirm import confirm, confirm_options
from pillarbox.cli._options import Target, by_option, target_options
from pillarbox.cli._output import (
    OutputFormat,
    format_table,
    format_time,
    output_option,
    say,
    shorten,
    show,
    show_rows,
)
from pillarbox.contracts.store import InboxFailure, InboxSelection, OperatorStore
from pillarbox.decoding import decode_incoming, to_cloudevent
from pillarbox.errors import DecodeError, NoSuchMessage
from pillarbox.operations.bulk import BATCH_SIZE, format_count

__all__ = ["inbox"]

F = TypeVar("F", bound=Callable[..., Any])

_UNLIMITED: Final = 1_000_000
"""More failed messages than an inbox will ever have."""


@click.group(epilog="\b\nExample:\n  pillarbox inbox list --consumer billing\n")
def inbox() -> None:
    """List, redrive and discard messages that a consumer could not handle."""


def _filter_options(command: F) -> F:
    options = (
        click.option("--consumer", metavar="NAME", envvar="PILLARBOX_CONSUMER", show_envvar=True,
                     help="Of this consumer."),
        click.option("--error", metavar="TEXT", envvar="PILLARBOX_ERROR", show_envvar=True,
                     help="Whose error holds this, letter case ignored."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@inbox.command("list", epilog="\b\nExample:\n  pillarbox inbox list --consumer billing --error timeout\n")
@target_options
@_filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, envvar="PILLARBOX_LIMIT",
              show_envvar=True, help="How many at most.")  # fmt: skip
@output_option
def list_failures(target: Target, *, consumer: str | None, error: str | None, limit: int, output: OutputFormat) -> None:
    """List failed messages, longest failed first."""
    selection = InboxSelection(consumer=consumer, error=error)
    found = target.run(lambda store: store.inbox_failures(selection, limit=limit))
    if not found:
        say("No message of an inbox has failed.")
    headings = ("consumer", "message id", "source", "type", "attempts", "failed at", "error")
    rows = [
        (one.consumer, one.message_id, shorten(one.source, 30), _read_type(one), str(one.attempts),
         format_time(one.failed_at), shorten(one.error or "", 60))
        for one in found
    ]  # fmt: skip
    names = ("consumer", "source", "message_id", "attempts", "error", "failed_at")
    documents = [{name: getattr(one, name) for name in names} | {"type": _read_type(one)} for one in found]
    show_rows("failures", documents, text=format_table(headings, rows) if rows else "", output=output)


def _read_type(failure: InboxFailure) -> str:
    try:
        return shorten(to_cloudevent(decode_incoming(failure.content)).type, 30)
    except DecodeError:
        return "(malformed)"


class _Change(msgspec.Struct, frozen=True):
    """One change of failed messages, as it was typed."""

    target: Target
    selection: InboxSelection
    done: str
    """`redriven` or `discarded`."""
    dry_run: bool
    yes: bool
    output: OutputFormat

    def run(self, change: Callable[[OperatorStore, InboxSelection], Awaitable[int]]) -> None:
        """Count the messages, ask, change them in batches, and show the result."""
        selection = self.selection
        matched = len(self.target.run(lambda store: store.inbox_failures(selection, limit=_UNLIMITED)))
        if not matched and selection.message_ids:
            raise NoSuchMessage(f"No failed message of an inbox is called {', '.join(selection.message_ids)}.")
        if matched and not (self.dry_run or self.yes or selection.message_ids):
            confirm(f"{format_count(matched)} in {self.target.url} will be {self.done}. Go on?")
        if self.dry_run:
            changed = 0
            text = f"{format_count(matched)} would be {self.done}. Nothing was changed."
        else:
            changed = self.target.run(lambda store: self._change_all(store, change))
            text = f"{changed:,} {self.done}."
        document = {"matched": matched, self.done: changed, "dry_run": self.dry_run}
        show(document, text=text, output=self.output)

    async def _change_all(
        self, store: OperatorStore, change: Callable[[OperatorStore, InboxSelection], Awaitable[int]]
    ) -> int:
        total = 0
        while count := await change(store, self.selection):
            total += count
        return total


@inbox.command(epilog="\b\nExample:\n  pillarbox inbox redrive --consumer billing --yes\n")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@target_options
@_filter_options
@confirm_options()
@by_option
@output_option
def redrive(target: Target, /, *, by: str, output: OutputFormat, dry_run: bool, yes: bool, **filters: Any) -> None:
    """Have failed messages handled again by their consumer, with all their attempts."""
    change = _Change(target, _parse_selection(**filters), "redriven", dry_run=dry_run, yes=yes, output=output)
    change.run(lambda store, selection: store.redrive_inbox(selection, by=by, limit=BATCH_SIZE))


@inbox.command(epilog="\b\nExample:\n  pillarbox inbox discard 0192f0c0-… --reason 'done by hand'\n")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@target_options
@_filter_options
@click.option("--reason", required=True, metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True,
              help="Why, for the journal.")  # fmt: skip
@confirm_options()
@by_option
@output_option
def discard(
    target: Target, /, *, by: str, reason: str, output: OutputFormat, dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Close failed messages as done, without handling them."""
    change = _Change(target, _parse_selection(**filters), "discarded", dry_run=dry_run, yes=yes, output=output)
    change.run(lambda store, selection: store.discard_inbox(selection, by=by, reason=reason, limit=BATCH_SIZE))


def _parse_selection(*, message_ids: Sequence[str], consumer: str | None, error: str | None) -> InboxSelection:
    if message_ids and error:
        raise click.UsageError("Give message ids or --error, not both.")
    if not message_ids and not consumer and not error:
        raise click.UsageError("Say which messages: message ids, --consumer NAME or --error TEXT.")
    return InboxSelection(consumer=consumer, message_ids=message_ids or None, error=error)
