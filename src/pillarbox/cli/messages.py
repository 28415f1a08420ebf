"""`pillarbox messages`: look at messages. What changes them is in `moving`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click
import msgspec

from pillarbox.cli.asking import asked
from pillarbox.cli.lines import as_document, as_entry, journal_text, messages_text, when
from pillarbox.cli.moving import defer, discard, redrive, replay
from pillarbox.cli.output import OutputFormat, output_option, say, show, show_rows
from pillarbox.cli.selecting import Choice, named, selection_options
from pillarbox.cli.target import Target, target_options
from pillarbox.errors import NoSuchMessage
from pillarbox.message import Message, State
from pillarbox.protocols import Entry, Store

__all__ = ["messages"]

_OPEN = (State.PENDING, State.SENDING, State.FAILED)


@click.group(epilog="\b\nExample:\n  pillarbox messages list --state failed --destination billing\n")
def messages() -> None:
    """List, show, redrive, replay, discard and defer messages."""


@messages.command("list", epilog="\b\nExample:\n  pillarbox messages list --near-failure --since 2h\n")
@target_options
@selection_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, envvar="PILLARBOX_LIMIT",
              show_envvar=True, help="How many at most.")  # fmt: skip
@click.option("--after", type=click.IntRange(0), default=0, metavar="ID", envvar="PILLARBOX_AFTER", show_envvar=True,
              help="Only with a higher id: where the last page ended.")  # fmt: skip
@output_option
def list_messages(target: Target, choice: Choice, limit: int, after: int, output: OutputFormat) -> None:
    """List messages, oldest first: those that are open or failed, unless --state says otherwise."""

    async def ask(store: Store) -> tuple[Sequence[Message], str]:
        selection = await choice.resolved(store)
        if selection.states is None and selection.ids is None:
            selection = msgspec.structs.replace(selection, states=_OPEN)
        found = await store.find(msgspec.structs.replace(selection, after=after), limit=limit, payloads=False)
        return found, messages_text(found, now=await store.now())

    found, text = asked(target, ask)
    if not found:
        say("No message matches." if after == 0 else "No further message matches.")
    show_rows("messages", [as_document(one) for one in found], text=text if found else "", output=output)
    if len(found) == limit:
        say(f"There may be more: --after {found[-1].id}")


@messages.command("show", epilog="\b\nExample:\n  pillarbox messages show 4711 --payload\n")
@click.argument("name", metavar="ID")
@target_options
@click.option("--payload", is_flag=True, envvar="PILLARBOX_PAYLOAD", show_envvar=True, help="Show the payload too.")
@output_option
def show_message(target: Target, name: str, payload: bool, output: OutputFormat) -> None:
    """Show a message with all that is known of it and all that happened to it. ID is an id or a message id."""

    async def ask(store: Store) -> tuple[Sequence[Message], Sequence[Entry]]:
        found = await store.find(named([name]), limit=100, payloads=payload)
        if not found:
            raise NoSuchMessage(f"There is no message {name}: it was never committed, or its retention is over.")
        return found, await store.journal(message_id=found[0].message_id, limit=1_000)

    found, entries = asked(target, ask)
    document = {
        "messages": [as_document(one, payload=payload) for one in found],
        "journal": [as_entry(entry) for entry in entries],
    }
    parts = [_described(one, payload=payload) for one in found]
    if entries:
        parts.append(journal_text(entries))
    show(document, text="\n\n".join(parts), output=output)


def _described(message: Message, *, payload: bool) -> str:
    lines = [
        (name, when(value) if isinstance(value, datetime) else str(getattr(value, "value", value)))
        for name, value in as_document(message).items()
        if value not in (None, {}, "") and name not in ("headers", "payload_kept")
    ]
    lines += [(f"header {name}", value) for name, value in message.headers.items()]
    if payload:
        kept = message.payload.decode("utf-8", "backslashreplace") if message.payload_kept else "(not kept)"
        lines.append(("payload", kept))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name.replace('_', ' '):{width}}  {value}" for name, value in lines)


for command in (redrive, replay, discard, defer):
    messages.add_command(command)
