"""`pillarbox failures`: why messages failed, grouped by error."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from pillarbox.cli.asking import asked
from pillarbox.cli.lines import age, shortened
from pillarbox.cli.output import OutputFormat, output_option, say, show_rows, table
from pillarbox.cli.selecting import Choice, selection_options
from pillarbox.cli.target import Target, target_options
from pillarbox.message import Message, State
from pillarbox.protocols import Store

__all__ = ["Group", "failures", "grouped"]

_LOOKED_AT: Final = 10_000
_VARYING: Final = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{16,}\b|\d{4,}|'[^']{1,200}'|\"[^\"]{1,200}\""
)
"""What differs from message to message: ids, numbers of four digits and more, quoted values."""


class Group(msgspec.Struct, kw_only=True):
    """Messages that failed for the same reason."""

    destination: str
    error: str
    count: int
    first_at: datetime | None
    last_at: datetime | None
    example_id: int


@click.command(epilog="\b\nExample:\n  pillarbox failures --destination billing --since 1d\n")
@target_options
@selection_options
@output_option
def failures(target: Target, choice: Choice, output: OutputFormat) -> None:
    """Show why messages failed: one line per destination and error, most frequent first."""
    selection = msgspec.structs.replace(choice.selection, states=[State.FAILED])

    async def ask(store: Store) -> tuple[Sequence[Message], datetime]:
        return await store.find(selection, limit=_LOOKED_AT, payloads=False), await store.now()

    found, now = asked(target, ask)
    groups = grouped(found)
    if not groups:
        say("No message has failed." if choice.is_everything else "No failed message matches.")
    elif len(found) == _LOOKED_AT:
        say(f"Only the oldest {_LOOKED_AT:,} failed messages were looked at.")
    rows = [
        (
            f"{group.count:,}", group.destination, shortened(group.error, 90), age(group.first_at, now),
            age(group.last_at, now), str(group.example_id),
        )
        for group in groups
    ]  # fmt: skip
    text = table(("count", "destination", "error", "first ago", "last ago", "example"), rows) if rows else ""
    documents = [{name: getattr(group, name) for name in group.__struct_fields__} for group in groups]
    show_rows("failures", documents, text=text, output=output)


def grouped(messages: Sequence[Message]) -> list[Group]:
    """The same error with other ids and numbers in it is the same error."""
    groups: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for message in messages:
        error = _VARYING.sub("…", message.last_error or "(no error was recorded)")
        groups[message.destination, error].append(message)
    made = [
        Group(
            destination=destination,
            error=error,
            count=len(alike),
            first_at=min((one.status_at for one in alike if one.status_at is not None), default=None),
            last_at=max((one.status_at for one in alike if one.status_at is not None), default=None),
            example_id=alike[0].id,
        )
        for (destination, error), alike in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.count, group.destination, group.error))
