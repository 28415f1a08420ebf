"""`pillarbox failures`: the reasons why messages failed, grouped by error."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, format_age, format_tries, output_option, say, show_rows
from pillarbox.cli._selection import Filters, selection_options
from pillarbox.cli._table import Column, draw_table, find_width, wide_option
from pillarbox.contracts.store import Selection, Store
from pillarbox.message import State
from pillarbox.operations.documents import to_attempt_document, to_failure_document
from pillarbox.operations.failures import (
    CAUSES,
    COUNTED_TO,
    Causes,
    ErrorGroup,
    FailureCause,
    Sort,
    find_causes,
    group_attempts,
    strip_common_start,
)

__all__ = ["failures"]

_LINES: Final = 10_000
"""Lines of the journal that --attempts looks at."""
_COLUMNS: Final = (
    Column("count"),
    Column("destination", least=12),
    Column("error", is_below=True),
    Column("attempts", rank=2),
    Column("tries", rank=3),
    Column("first ago", rank=1),
    Column("last ago"),
    Column("example"),
)
_ATTEMPT_COLUMNS: Final = tuple(one for one in _COLUMNS if one.heading not in ("attempts", "tries"))


@click.command(epilog="\b\nExample:\n  pillarbox failures --destination billing --since 1d\n")
@target_options
@selection_options
@click.option("--attempts", is_flag=True, envvar="PILLARBOX_ATTEMPTS", show_envvar=True,
              help="Attempts that failed, also of messages that were delivered since: from the journal.")  # fmt: skip
@click.option("--newest", is_flag=True, envvar="PILLARBOX_NEWEST", show_envvar=True,
              help="Latest first, instead of most frequent first.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 1_000), default=CAUSES, show_default=True, envvar="PILLARBOX_LIMIT",
              show_envvar=True, help="How many causes at most.")  # fmt: skip
@wide_option
@output_option
def failures(
    target: Target, filters: Filters, *, attempts: bool, newest: bool, limit: int, output: OutputFormat
) -> None:
    """Show why messages failed: one line per destination and cause, most frequent first.

    Errors that differ only in ids, numbers, hosts, times and quoted values are one cause.
    """
    sort = Sort.LATEST if newest else Sort.COUNT
    if attempts:
        if not filters.is_of_destination:
            raise click.UsageError("--attempts reads the journal, which knows no filter but --destination.")
        _show_attempts(target, filters.selection.destination, sort=sort, limit=limit, output=output)
        return

    async def find(store: Store) -> tuple[Causes, int, datetime]:
        found = await find_causes(store, await filters.resolve(store), sort=sort, limit=limit)
        skipped = await store.count(Selection(states=[State.SKIPPED]), limit=COUNTED_TO) if filters.is_empty else 0
        return found, skipped, await store.now()

    found, skipped, now = target.run(find, reads_only=True)
    target.check_filter(filters.selection.destination, found=found.causes)
    if not found.causes:
        say("No message has failed." if filters.is_empty else "No failed message matches.")
    elif found.is_cut:
        say(f"There may be more causes and messages: --limit shows more, and each cause is counted to {COUNTED_TO:,}.")
    if skipped:
        take = "it" if skipped == 1 else "them"
        say(f"{skipped:,} skipped, because no route takes {take}: `pillarbox messages list --state skipped`.")
    rows = [
        (
            f"{one.count:,}{'+' * one.more}", one.destination, one.text, str(one.example.attempts),
            format_tries(one.tries, one.example, now), format_age(one.first_at, now), format_age(one.last_at, now),
            str(one.example.id),
        )
        for one in found.causes
    ]  # fmt: skip
    documents = [to_failure_document(one) for one in found.causes]
    _show(found.causes, documents, _COLUMNS, rows, output=output)


def _show_attempts(target: Target, destination: str | None, *, sort: Sort, limit: int, output: OutputFormat) -> None:
    async def find(store: Store) -> tuple[Sequence[ErrorGroup], bool, datetime]:
        entries = await store.journal(destination=destination, limit=_LINES)
        groups = group_attempts(entries, sort=sort)
        return groups[:limit], len(groups) > limit or len(entries) == _LINES, await store.now()

    groups, is_cut, now = target.run(find, reads_only=True)
    target.check_filter(destination, found=groups)
    if not groups:
        say("No attempt has failed lately.")
    elif is_cut:
        say(f"There may be more: --limit shows more causes, of the latest {_LINES:,} lines of the journal.")
    rows = [
        (
            f"{one.count:,}", one.destination, one.text, format_age(one.first_at, now), format_age(one.last_at, now),
            one.example,
        )
        for one in groups
    ]  # fmt: skip
    _show(groups, [to_attempt_document(one) for one in groups], _ATTEMPT_COLUMNS, rows, output=output)


def _show(
    groups: Sequence[FailureCause | ErrorGroup],
    documents: Sequence[dict[str, Any]],
    columns: Sequence[Column],
    rows: Sequence[tuple[str, ...]],
    *,
    output: OutputFormat,
) -> None:
    errors = [group.text for group in groups]
    if find_width() is not None:
        errors = strip_common_start(errors)
    lines = [(count, name, error, *rest) for (count, name, _, *rest), error in zip(rows, errors, strict=True)]
    show_rows("failures", documents, text=draw_table(columns, lines) if lines else "", output=output)
