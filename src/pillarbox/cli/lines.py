"""Messages as people and programs read them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from pillarbox.cli.output import table
from pillarbox.codec import is_json
from pillarbox.durations import duration_text
from pillarbox.message import Message, State
from pillarbox.protocols import Entry

__all__ = ["age", "as_document", "as_entry", "journal_text", "messages_text", "shortened", "when"]

_HEADINGS = ("id", "state", "destination", "topic", "key", "type", "attempts", "age", "last error")


def messages_text(messages: Sequence[Message], *, now: datetime) -> str:
    """One line for each."""
    rows = [
        (
            str(one.id), _state(one, now), one.destination, shortened(one.topic, 30), shortened(one.key or "", 24),
            shortened(one.type, 30), str(one.attempts), age(one.created_at, now), shortened(one.last_error or "", 60),
        )
        for one in messages
    ]  # fmt: skip
    return table(_HEADINGS, rows)


def _state(message: Message, now: datetime) -> str:
    if message.state is State.PENDING and message.available_at is not None and message.available_at > now:
        return f"due in {age(now, message.available_at)}"
    if message.waits is not None and message.waits.value in ("parked", "held"):
        return message.waits.value
    return message.state.value


def as_document(message: Message, *, payload: bool = False) -> Mapping[str, object]:
    """Every field; the payload only where it was asked for."""
    document = {name: getattr(message, name) for name in message.__struct_fields__ if name != "payload"}
    return {**document, **_payload(message)} if payload else document


def _payload(message: Message) -> Mapping[str, object]:
    if not message.payload_kept:
        return {"payload": None}
    if is_json(message.content_type):
        try:
            return {"payload": msgspec.json.decode(message.payload)}
        except ValueError:
            pass
    return {"payload_base64": base64.b64encode(message.payload).decode()}


def as_entry(entry: Entry) -> Mapping[str, object]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


def journal_text(entries: Sequence[Entry]) -> str:
    """What happened, a line each, oldest first."""
    rows = [
        (when(entry.at), entry.action.replace("_", " "), entry.by, str(entry.attempt or ""), entry.error or "")
        for entry in entries
    ]
    return table(("at", "what", "by", "attempt", "error"), rows)


def when(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age(since: datetime | None, now: datetime) -> str:
    """How long, in at most two units."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    step = 1 if seconds < 3600 else 60 if seconds < 86_400 else 3600
    return duration_text(timedelta(seconds=seconds - seconds % step)) if seconds else "0s"


def shortened(text: str, most: int) -> str:
    """On one line, without what a terminal would take for a command."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
