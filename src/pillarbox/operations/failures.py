"""Failed messages, grouped by the error they have in common."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Final

import msgspec

from pillarbox.contracts.store import Action, JournalEntry
from pillarbox.message import Message

__all__ = ["FailureGroup", "group_attempts", "group_failures", "sort_newest_first", "strip_common_start"]

_ATTEMPTS: Final = (Action.ATTEMPT_FAILED, Action.FAILED, Action.HELD)
_SHORTEST_START: Final = 20
"""Letters that errors must have in common before they are left out: a shorter start costs no room."""

_VARYING: Final = re.compile(
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{16,}\b|\d{4,}|'[^']{1,200}'|\"[^\"]{1,200}\""
)
"""Parts of an error that differ from message to message: ids, numbers of four digits and more, quoted values."""
_LONGEST_ERROR: Final = 4_000
"""Characters that are looked at. Whoever wrote the error may have meant to make this take long."""


class FailureGroup(msgspec.Struct, kw_only=True):
    """Messages of one destination that failed for the same reason."""

    destination: str
    error: str
    count: int
    first_at: datetime | None
    last_at: datetime | None
    example_id: int | str
    """Id of a message, or its message id where only the journal tells of it."""


def group_failures(messages: Sequence[Message]) -> list[FailureGroup]:
    """Group messages by destination and error, the largest group first.

    Errors that differ only in ids, long numbers and quoted values count as the same.
    """
    return _group((message.destination, message.last_error, message.status_at, message.id) for message in messages)


def group_attempts(entries: Sequence[JournalEntry]) -> list[FailureGroup]:
    """Group the failed attempts among the lines of a journal like messages, also those of messages delivered since."""
    return _group(
        (entry.destination, entry.error, entry.at, str(entry.message_id))
        for entry in entries
        if entry.action in _ATTEMPTS
    )


def _group(failures: Iterable[tuple[str, str | None, datetime | None, int | str]]) -> list[FailureGroup]:
    by_error: dict[tuple[str, str], list[tuple[datetime | None, int | str]]] = defaultdict(list)
    for destination, text, at, example in failures:
        error = _VARYING.sub("…", (text or "(no error was recorded)")[:_LONGEST_ERROR])
        by_error[destination, error].append((at, example))
    groups = []
    for (destination, error), alike in by_error.items():
        times = [at for at, _ in alike if at is not None]
        groups.append(
            FailureGroup(
                destination=destination,
                error=error,
                count=len(alike),
                first_at=min(times, default=None),
                last_at=max(times, default=None),
                example_id=alike[0][1],
            )
        )
    return sorted(groups, key=lambda group: (-group.count, group.destination, group.error))


def sort_newest_first(groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """Sort groups by their latest failure instead of their size. Those without a time come last."""
    timed = [(group.last_at, -place) for place, group in enumerate(groups) if group.last_at is not None]
    newest = [groups[-place] for _, place in sorted(timed, reverse=True)]
    return newest + [group for group in groups if group.last_at is None]


def strip_common_start(errors: Sequence[str]) -> list[str]:
    """Leave out what all errors begin with, in whole words, so that each starts with what differs.

    A single error, and one of which nothing would be left, stay as they are.
    """
    if len(set(errors)) < 2:
        return list(errors)
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*errors, strict=False))
    start = "".join(letters[0] for letters in alike)
    start = start[: start.rfind(" ") + 1]
    if len(start) < _SHORTEST_START or any(len(error) <= len(start) for error in errors):
        return list(errors)
    return [f"…{error[len(start) :]}" for error in errors]
