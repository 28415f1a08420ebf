"""Failed messages, grouped by the error they have in common."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from pillarbox.message import Message

__all__ = ["FailureGroup", "group_failures"]

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
    example_id: int


def group_failures(messages: Sequence[Message]) -> list[FailureGroup]:
    """Group messages by destination and error, the largest group first.

    Errors that differ only in ids, long numbers and quoted values count as the same.
    """
    by_error: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for message in messages:
        error = _VARYING.sub("…", (message.last_error or "(no error was recorded)")[:_LONGEST_ERROR])
        by_error[message.destination, error].append(message)
    groups = []
    for (destination, error), alike in by_error.items():
        times = [message.status_at for message in alike if message.status_at is not None]
        groups.append(
            FailureGroup(
                destination=destination,
                error=error,
                count=len(alike),
                first_at=min(times, default=None),
                last_at=max(times, default=None),
                example_id=alike[0].id,
            )
        )
    return sorted(groups, key=lambda group: (-group.count, group.destination, group.error))
