"""`pillarbox failures`: the reasons why messages failed, grouped by error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, format_age, format_table, output_option, say, shorten, show_rows
from pillarbox.cli._selection import Filters, selection_options
from pillarbox.contracts.store import OperatorStore, Order
from pillarbox.message import State
from pillarbox.operations.failures import (
    FailureGroup,
    group_attempts,
    group_failures,
    sort_newest_first,
    strip_common_start,
)

__all__ = ["failures"]

_LIMIT: Final = 10_000
_ERROR_LENGTH: Final = 90
"""Letters of an error on a terminal. What is piped is not cut."""


@click.command(epilog="\b\nExample:\n  pillarbox failures --destination billing --since 1d\n")
@target_options
@selection_options
@click.option("--attempts", is_flag=True, envvar="PILLARBOX_ATTEMPTS", show_envvar=True,
              help="Attempts that failed, also of messages that were delivered since: from the journal.")  # fmt: skip
@click.option("--newest", is_flag=True, envvar="PILLARBOX_NEWEST", show_envvar=True,
              help="Latest first, instead of most frequent first.")  # fmt: skip
@output_option
def failures(target: Target, filters: Filters, attempts: bool, newest: bool, output: OutputFormat) -> None:
    """Show why messages failed: one line per destination and error, most frequent first."""
    if attempts and not filters.is_of_destination:
        raise click.UsageError("--attempts reads the journal, which knows no filter but --destination.")
    groups, count, now = target.run(
        lambda store: _find(store, filters, attempts=attempts, newest=newest), reads_only=True
    )
    if not groups:
        say(_explain_none(filters, attempts=attempts))
    elif count == _LIMIT:
        what = "lines of the journal" if attempts else "failed messages"
        say(f"Only the {'latest' if attempts or newest else 'oldest'} {_LIMIT:,} {what} were looked at.")
    if newest:
        groups = sort_newest_first(groups)
    text = _format_groups(groups, now=now) if groups else ""
    documents = [{name: getattr(group, name) for name in group.__struct_fields__} for group in groups]
    show_rows("failures", documents, text=text, output=output)


async def _find(
    store: OperatorStore, filters: Filters, *, attempts: bool, newest: bool
) -> tuple[list[FailureGroup], int, datetime]:
    """Return the groups, how many lines or messages they are made of, and the time."""
    if attempts:
        entries = await store.journal(limit=_LIMIT)
        destination = filters.selection.destination
        wanted = [entry for entry in entries if destination in (None, entry.destination)]
        return group_attempts(wanted), len(entries), await store.now()
    selection = msgspec.structs.replace(filters.selection, states=[State.FAILED])
    order = Order.NEWEST if newest else Order.ID
    found = await store.find(selection, limit=_LIMIT, payloads=False, order=order)
    return group_failures(found), len(found), await store.now()


def _explain_none(filters: Filters, *, attempts: bool) -> str:
    if attempts:
        return "No attempt has failed lately."
    return "No message has failed." if filters.is_empty else "No failed message matches."


def _format_groups(groups: Sequence[FailureGroup], *, now: datetime) -> str:
    errors = [group.error for group in groups]
    if sys.stdout.isatty():
        errors = [shorten(error, _ERROR_LENGTH) for error in strip_common_start(errors)]
    rows = [
        (
            f"{group.count:,}", group.destination, error, format_age(group.first_at, now),
            format_age(group.last_at, now), str(group.example_id),
        )
        for group, error in zip(groups, errors, strict=True)
    ]  # fmt: skip
    return format_table(("count", "destination", "error", "first ago", "last ago", "example"), rows)
