"""The options of one call to `publish`, `send` or `raise_event`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypedDict
from uuid import UUID

from msgspec import UnsetType

from pillarbox.durations import check_duration
from pillarbox.errors import PublishError
from pillarbox.message import MAX_NAME, MAX_TEXT, check_text

__all__ = ["Key", "PublishOptions", "check_options", "to_utc"]

Key = str | int | UUID | Enum | None
"""An ordering key. None asks for no order."""


class PublishOptions(TypedDict, total=False):
    """Options that hold for every message of a call. Leaving one out is the same as None, except for `key`."""

    type: str | None
    """Stable name of the message type. For a dict or bytes, whose class has none."""
    key: Key | UnsetType
    """Ordering key. Left out, or `msgspec.UNSET`: the one that the type defines. None: no order."""
    topic: str | None
    """Topic in place of the one that the type defines."""
    headers: Mapping[str, str] | None
    """Headers to deliver with the message."""
    destinations: str | Sequence[str] | None
    """Destinations in place of the ones that the routes find."""
    delay: timedelta | None
    """Deliver after this time, counted from the database's now. Excludes `deliver_at`."""
    deliver_at: datetime | None
    """Deliver at this time, which needs a time zone. Excludes `delay`."""
    content_type: str | None
    """Content type of the payload. Bytes need one; a dict may have one that is JSON."""
    subject: str | None
    """CloudEvents subject in place of the one that the type defines."""
    event_time: datetime | None
    """Time of the event, with a time zone, in place of the one that the type defines, or of now."""
    correlation_id: str | None
    """Id of the chain of messages, in place of the one from the context, or of the message's own id."""
    causation_id: str | None
    """Id of the message that caused this one, in place of the one from the context."""


_NAMES: Final = PublishOptions.__optional_keys__
_LONGEST_DELAY: Final = timedelta(days=36_500)
_LAST_DAY: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The tables take times before it: in some zones, later ones are in the year 10000."""
_TEXTS: Final = (
    ("topic", MAX_NAME),
    ("content_type", MAX_NAME),
    ("subject", MAX_TEXT),
    ("correlation_id", MAX_TEXT),
    ("causation_id", MAX_TEXT),
)


def check_options(options: PublishOptions) -> None:
    """Raise `PublishError` for an unusable option, and `TypeError`, as Python does, for one that does not exist."""
    if not options:
        return
    if not _NAMES.issuperset(options):
        unknown = next(name for name in options if name not in _NAMES)
        raise TypeError(f"There is no option {unknown!r} for publishing; the options are {', '.join(sorted(_NAMES))}.")
    for name, limit in _TEXTS:
        if (text := options.get(name)) is not None:
            check_text(text, what=name.replace("_", " "), limit=limit)
    delay = options.get("delay")
    if delay is not None and options.get("deliver_at") is not None:
        raise PublishError("delay= and deliver_at= exclude each other; give one.")
    if delay is not None:
        check_duration(delay, "delay", error=PublishError)
    if delay is not None and not timedelta(0) <= delay <= _LONGEST_DELAY:
        raise PublishError(f"A delay= must be between 0 and {_LONGEST_DELAY.days} days.")


def to_utc(at: object, *, what: str) -> datetime:
    """Convert a time with a zone to UTC; raise `PublishError` for anything else."""
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise PublishError(f"The {what} must be a datetime with a time zone, such as datetime.now(UTC).")
    try:
        utc = at.astimezone(UTC)
    except OverflowError:
        utc = _LAST_DAY
    if utc >= _LAST_DAY:
        raise PublishError(
            f"The {what} {at.isoformat()} is not within the years 1 to 9999 of UTC (the last day is not taken)."
        )
    return utc
