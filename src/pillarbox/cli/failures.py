"""`pillarbox failures`: the reasons why messages failed, grouped by error."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from pillarbox.cli._options import Target, target_options
from pillarbox.cli._output import OutputFormat, format_age, format_table, output_option, say, shorten, show_rows
from pillarbox.cli._selection import Filters, selection_options
from pillarbox.contracts.store import OperatorStore
from pillarbox.message import Message, State
from pillarbox.operations.failures import group_failures

__all__ = ["failures"]

_LIMIT: Final = 10_000


@click.command(epilog="\b\nExample:\n  pillarbox failures --destination billing --since 1d\n")
@target_options
@selection_options
@output_option
def failures(target: Target, filters: Filters, output: OutputFormat) -> None:
    """Show why messages failed: one line per destination and error, most frequent first."""
    selection = msgspec.structs.replace(filters.selection, states=[State.FAILED])

    async def find(store: OperatorStore) -> tuple[Sequence[Message], datetime]:
        return await store.find(selection, limit=_LIMIT, payloads=False), await store.now()

    found, now = target.run(find)
    groups = group_failures(found)
    if not groups:
        say("No message has failed." if filters.is_empty else "No failed message matches.")
    elif len(found) == _LIMIT:
        say(f"Only the oldest {_LIMIT:,} failed messages were looked at.")
    rows = [
        (
            f"{group.count:,}", group.destination, shorten(group.error, 90), format_age(group.first_at, now),
            format_age(group.last_at, now), str(group.example_id),
        )
        for group in groups
    ]  # fmt: skip
    text = format_table(("count", "destination", "error", "first ago", "last ago", "example"), rows) if rows else ""
    documents = [{name: getattr(group, name) for name in group.__struct_fields__} for group in groups]
    show_rows("failures", documents, text=text, output=output)
