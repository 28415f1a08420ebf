"""What a selection selects."""

from __future__ import annotations

from pillarbox.message import Message
from pillarbox.protocols import Selection

__all__ = ["matches"]


def matches(message: Message, selection: Selection) -> bool:
    """Whether every condition that is set holds for the message, its state being the one people see."""
    return (
        message.id > selection.after
        and _named(message, selection)
        and _described(message, selection)
        and _timed(message, selection)
    )


def _named(message: Message, selection: Selection) -> bool:
    return (selection.ids is None or message.id in selection.ids) and (
        selection.message_ids is None or message.message_id in selection.message_ids
    )


def _described(message: Message, selection: Selection) -> bool:
    return (
        (selection.states is None or message.state in selection.states)
        and selection.destination in (None, message.destination)
        and selection.topic in (None, message.topic)
        and selection.type in (None, message.type)
        and selection.key in (None, message.key)
        and selection.correlation_id in (None, message.correlation_id)
        and (selection.error is None or selection.error.lower() in (message.last_error or "").lower())
        and (selection.min_attempts is None or message.attempts >= selection.min_attempts)
    )


def _timed(message: Message, selection: Selection) -> bool:
    created_at, status_at = message.created_at, message.status_at
    assert created_at is not None  # noqa: S101 - every stored message has both
    assert status_at is not None  # noqa: S101
    return (
        (selection.since is None or created_at >= selection.since)
        and (selection.until is None or created_at < selection.until)
        and (selection.changed_before is None or status_at < selection.changed_before)
    )
