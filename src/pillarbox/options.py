"""What one call to `publish` or `send` can ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypedDict
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from pillarbox.errors import PublishError
from pillarbox.limits import MAX_NAME, MAX_TEXT, check_text

__all__ = ["LONGEST_DELAY", "GivenOptions", "Key", "Options", "aware"]

Key = str | int | UUID | Enum | None
"""What a key is given as. None asks for no order."""
LONGEST_DELAY: Final = timedelta(days=36_500)


class GivenOptions(TypedDict, total=False):
    """The options as they are given to a call."""

    type: str | None
    key: Key | UnsetType
    topic: str | None
    headers: Mapping[str, str] | None
    destinations: str | Sequence[str] | None
    delay: timedelta | None
    deliver_at: datetime | None
    content_type: str | None
    subject: str | None
    event_time: datetime | None
    correlation_id: str | None
    causation_id: str | None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a call, checked. They hold for every payload of it."""

    type: str | None = None
    key: Key | UnsetType = UNSET
    """Unset: the one that the type says."""
    topic: str | None = None
    headers: Mapping[str, str] | None = None
    destinations: str | Sequence[str] | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    content_type: str | None = None
    subject: str | None = None
    event_time: datetime | None = None
    correlation_id: str | None = None
    causation_id: str | None = None

    def __post_init__(self) -> None:
        for what, text, limit in (
            ("topic", self.topic, MAX_NAME),
            ("content type", self.content_type, MAX_NAME),
            ("subject", self.subject, MAX_TEXT),
            ("correlation id", self.correlation_id, MAX_TEXT),
            ("causation id", self.causation_id, MAX_TEXT),
        ):
            if text is not None:
                check_text(text, what=what, limit=limit)
        if self.delay is not None and self.deliver_at is not None:
            raise PublishError("delay= and deliver_at= exclude each other; give one.")
        if self.delay is not None and not timedelta(0) <= self.delay <= LONGEST_DELAY:
            raise PublishError(f"A delay= must be between 0 and {LONGEST_DELAY.days} days.")


def aware(at: object, *, what: str) -> datetime:
    """A time with a zone, in UTC; `PublishError` otherwise."""
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise PublishError(f"The {what} must be a datetime with a time zone, such as datetime.now(UTC).")
    return at.astimezone(UTC)
