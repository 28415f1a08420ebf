"""`pillarbox inbox`: list, show, redrive and discard messages that a consumer could not handle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import click
import msgspec

from pillarbox.cli._confirm import confirm, confirm_options
from pillarbox.cli._options import Target, by_option, reason_option, required_reason_option, target_options
from pillarbox.cli._output import (
    OutputFormat,
    Progress,
    format_fields,
    format_time,
    output_option,
    say,
    show,
    show_rows,
)
from pillarbox.cli._table import Column, draw_table, wide_option
from pillarbox.contracts.store import Action, InboxFailure, InboxSelection, OperatorStore, Store
from pillarbox.decoding import decode_incoming
from pillarbox.errors import NoSuchMessage
from pillarbox.operations.bulk import BATCH_SIZE, format_count, note_bulk
from pillarbox.operations.documents import read_inbox_event, read_inbox_type, to_inbox_document, to_inbox_row
from pillarbox.settings import join_words

__all__ = ["inbox"]

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS: Final = (
    Column("consumer", least=10),
    Column("message id"),
    Column("source", rank=4, least=10),
    Column("type", rank=3, least=12),
    Column("attempts", rank=2),
    Column("failed at", rank=1),
    Column("error", is_below=True),
)
_UNLIMITED: Final = 1_000_000
"""More failed messages than an inbox will ever have."""
_MOST_CONSUMERS: Final = 10
"""Most consumers that one line names."""


@click.group(epilog="\b\nExample:\n  pillarbox inbox list --consumer billing\n")
def inbox() -> None:
    """List, show, redrive and discard messages that a consumer could not handle."""


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
@wide_option
@output_option
def list_failures(target: Target, *, consumer: str | None, error: str | None, limit: int, output: OutputFormat) -> None:
    """List failed messages, longest failed first."""
    selection = InboxSelection(consumer=consumer, error=error)
    found = target.run(lambda store: store.inbox_failures(selection, limit=limit), reads_only=True)
    if not found:
        say("No message of an inbox has failed." if consumer is error is None else "No failed message matches.")
        _say_known(target, consumer)
    rows = [
        (one.consumer, one.message_id, one.source, read_inbox_type(one), str(one.attempts),
         format_time(one.failed_at), one.error or "")
        for one in found
    ]  # fmt: skip
    documents = [to_inbox_row(one) for one in found]
    show_rows("failures", documents, text=draw_table(_COLUMNS, rows) if rows else "", output=output)


@inbox.command("show", epilog="\b\nExample:\n  pillarbox inbox show 0192f0c0-… --payload\n")
@click.argument("message_id", metavar="MESSAGE_ID")
@target_options
@click.option("--consumer", metavar="NAME", envvar="PILLARBOX_CONSUMER", show_envvar=True, help="Of this consumer.")
@click.option("--payload", is_flag=True, envvar="PILLARBOX_PAYLOAD", show_envvar=True, help="Show the payload too.")
@output_option
def show_failure(target: Target, message_id: str, consumer: str | None, payload: bool, output: OutputFormat) -> None:
    """Show a failed message: why it failed, and what arrived."""
    selection = InboxSelection(consumer=consumer, message_ids=[message_id])
    found = target.run(lambda store: store.inbox_failures(selection, limit=100), reads_only=True)
    if not found:
        raise NoSuchMessage(
            f"No failed message of an inbox is called {message_id}: it was handled, redriven or discarded, or its "
            "retention is over."
        )
    documents = [to_inbox_document(one, payload=payload) for one in found]
    parts = [_format_failure(one, document) for one, document in zip(found, documents, strict=True)]
    show({"failures": documents}, text="\n\n".join(parts), output=output)


def _format_failure(failure: InboxFailure, document: dict[str, object]) -> str:
    fields = [
        (name, format_time(value) if isinstance(value, datetime) else str(value))
        for name, value in document.items()
        if value not in (None, {}, "") and name not in ("headers", "payload", "payload_base64", "kept")
    ]
    headers = document.get("headers")
    fields += [(f"header {name}", str(value)) for name, value in (headers if isinstance(headers, dict) else {}).items()]
    body = None
    if not document["kept"]:
        fields.append(("content", "(not kept)"))
    elif "payload" in document or "payload_base64" in document:
        event = read_inbox_event(failure)
        content = event.payload if event is not None else decode_incoming(failure.content).body
        body = content.decode("utf-8", "backslashreplace")
    return format_fields(fields, body=body)


def _say_known(target: Target, consumer: str | None) -> None:
    """Name the consumers that have records, if the one that was named has none."""
    if consumer is None:
        return

    async def find(store: Store) -> set[str]:
        active = {one.consumer for one in await store.inbox_activity(window=timedelta(hours=1))}
        return active | {one.consumer for one in await store.inbox_counts(limit=1)}

    known = sorted(target.run(find, reads_only=True))
    if consumer in known:
        return
    near = get_close_matches(consumer, known, n=1)
    has = f"The inbox has records of {join_words(known[:_MOST_CONSUMERS])}." if known else "The inbox is empty."
    say(f"No consumer {consumer} has a record. {f'Did you mean {near[0]}? ' if near else ''}{has}")


class _Change(msgspec.Struct, frozen=True):
    """One change of failed messages, as it was typed."""

    target: Target
    selection: InboxSelection
    done: str
    """`redriven` or `discarded`."""
    dry_run: bool
    yes: bool
    output: OutputFormat

    def run(
        self, change: Callable[[OperatorStore, InboxSelection], Awaitable[int]], *, by: str, reason: str | None
    ) -> None:
        """Count the messages, ask, change them in batches, sum it up in the journal, and show the result."""
        selection = self.selection
        found = self.target.run(
            lambda store: store.inbox_failures(selection, limit=_UNLIMITED), reads_only=self.dry_run
        )
        matched, unkept = len(found), 0
        if self.done == "redriven":
            unkept = sum(not one.content for one in found)
            matched -= unkept
        if not found:
            _say_known(self.target, selection.consumer)
        if not found and selection.message_ids:
            raise NoSuchMessage(f"No failed message of an inbox is called {', '.join(selection.message_ids)}.")
        if matched and not (self.dry_run or self.yes or selection.message_ids):
            confirm(f"{format_count(matched)} in {self.target.url} will be {self.done}. Go on?")
        if self.dry_run:
            changed = 0
            text = f"{format_count(matched)} would be {self.done}. Nothing was changed."
        else:
            with Progress(matched) as progress:

                async def change_all(store: OperatorStore) -> int:
                    count = await self._change_all(store, change, progress)
                    await note_bulk(store, Action(self.done), selection, count, by=by, reason=reason)
                    return count

                changed = self.target.run(change_all)
            text = f"{changed:,} {self.done}."
        if unkept:
            say(
                f"{format_count(unkept)} cannot be redriven, because the database did not take the content: have the "
                "producer send it again, then discard the record."
            )
        document = {"matched": matched, self.done: changed, "dry_run": self.dry_run}
        show(document, text=text, output=self.output)

    async def _change_all(
        self,
        store: OperatorStore,
        change: Callable[[OperatorStore, InboxSelection], Awaitable[int]],
        progress: Progress,
    ) -> int:
        total = 0
        while count := await change(store, self.selection):
            total += count
            progress.show(total)
        return total


@inbox.command(epilog="\b\nExample:\n  pillarbox inbox redrive --consumer billing --yes\n")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@target_options
@_filter_options
@confirm_options()
@by_option
@output_option
@reason_option
def redrive(
    target: Target, /, *, by: str, reason: str | None, output: OutputFormat, dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Have failed messages handled again by their consumer, with all their attempts."""
    change = _Change(target, _parse_selection(**filters), "redriven", dry_run=dry_run, yes=yes, output=output)

    async def redrive_batch(store: OperatorStore, selection: InboxSelection) -> int:
        return await store.redrive_inbox(selection, by=by, limit=BATCH_SIZE, reason=reason)

    change.run(redrive_batch, by=by, reason=reason)


@inbox.command(epilog="\b\nExample:\n  pillarbox inbox discard 0192f0c0-… --reason 'done by hand'\n")
@click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]...")
@target_options
@_filter_options
@required_reason_option
@confirm_options()
@by_option
@output_option
def discard(
    target: Target, /, *, by: str, reason: str, output: OutputFormat, dry_run: bool, yes: bool, **filters: Any
) -> None:
    """Close failed messages as done, without handling them."""
    change = _Change(target, _parse_selection(**filters), "discarded", dry_run=dry_run, yes=yes, output=output)

    async def discard_batch(store: OperatorStore, selection: InboxSelection) -> int:
        return await store.discard_inbox(selection, by=by, reason=reason, limit=BATCH_SIZE)

    change.run(discard_batch, by=by, reason=reason)


def _parse_selection(*, message_ids: Sequence[str], consumer: str | None, error: str | None) -> InboxSelection:
    if message_ids and error:
        raise click.UsageError("Give message ids or --error, not both.")
    if not message_ids and not consumer and not error:
        raise click.UsageError("Say which messages: message ids, --consumer NAME or --error TEXT.")
    return InboxSelection(consumer=consumer, message_ids=message_ids or None, error=error)
