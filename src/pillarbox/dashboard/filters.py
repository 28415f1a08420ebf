"""Filters of messages: as they stand in a URL, as chips on the page, as flags of the command line, as a `Selection`.

Pure: the page, the search, the actions and the links of other pages use the same functions.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from pillarbox.contracts.store import Phase, Selection
from pillarbox.durations import parse_duration, parse_time
from pillarbox.errors import ConfigError
from pillarbox.message import State

__all__ = [
    "FilterError",
    "Filters",
    "list_chips",
    "parse_filters",
    "parse_message_name",
    "parse_search",
    "to_flags",
    "to_query",
    "to_selection",
]

_TEXTS: Final = ("destination", "topic", "type", "key", "correlation", "error", "fingerprint")
_TIMES: Final = ("since", "until")
_LONGEST: Final = 2_000
_MOST_IDS: Final = 1_000
_MAX_ID: Final = 2**63


class FilterError(ConfigError):
    """A filter that nobody can mean. The sentence says what to write."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Filters as a person gave them. None does not filter."""

    state: str | None = None
    phase: str | None = None
    """Where an open message stands: `due`, `later`, `parked` or `held`."""
    destination: str | None = None
    topic: str | None = None
    type: str | None = None
    key: str | None = None
    correlation: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    since: str | None = None
    """A time, or how long ago: `2h`."""
    until: str | None = None
    attempts: int | None = None
    ids: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if every message matches, of whatever state."""
        return msgspec.structs.replace(self, state=None, phase=None) == Filters()

    @property
    def is_of_destination(self) -> bool:
        """True if nothing but the destination and the state filters: such counts are known."""
        return msgspec.structs.replace(self, state=None, phase=None, destination=None) == Filters()

    def with_state(self, state: str | None, phase: str | None = None) -> Filters:
        return msgspec.structs.replace(self, state=state, phase=phase)


def parse_filters(query: Mapping[str, str]) -> Filters:
    """Read the filters of a URL; `FilterError` for a value that cannot be one. Other parameters are left alone."""
    values: dict[str, object] = {}
    for name in (*_TEXTS, *_TIMES):
        text = query.get(name, "").strip()
        if len(text) > _LONGEST:
            raise FilterError(f"The filter {name} is longer than {_LONGEST} characters: give a part of it.")
        values[name] = text or None
    state = query.get("state", "").strip() or None
    if state is not None and state not in [one.value for one in State]:
        raise FilterError(f"{state!r} is no state: there are {', '.join(one.value for one in State)}.")
    phase = query.get("phase", "").strip() or None
    if phase is not None and phase not in [one.value for one in Phase]:
        raise FilterError(
            f"{phase!r} is nowhere that a message stands: there are {', '.join(one.value for one in Phase)}."
        )
    filters = Filters(
        **values,  # type: ignore[arg-type]
        state=state,
        phase=phase,
        attempts=_parse_number(query.get("attempts", "")),
        ids=_parse_ids(query.get("ids", "")),
    )
    to_selection(filters, now=datetime.now(UTC))  # so that a wrong time is found now
    return filters


def _parse_number(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise FilterError(f"{text[:40]!r} is no number of attempts.")
    return int(text)


def _parse_ids(text: str) -> tuple[int, ...]:
    words = [word for word in text.replace(",", " ").split() if word]
    if len(words) > _MOST_IDS:
        raise FilterError(f"At most {_MOST_IDS} messages can be named: use filters for more.")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 19 and int(word) < _MAX_ID):
            raise FilterError(f"{word[:40]!r} is no id of a message.")
    return tuple(dict.fromkeys(int(word) for word in words))


def to_query(filters: Filters, **more: str | int | None) -> str:
    """Write filters as the query of a URL, so that `parse_filters` reads them back."""
    pairs = [*_list_pairs(filters), *((name, str(value)) for name, value in more.items() if value not in (None, ""))]
    return urlencode(pairs)


def _list_pairs(filters: Filters) -> Iterator[tuple[str, str]]:
    for name in filters.__struct_fields__:
        value = getattr(filters, name)
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        if value not in (None, ""):
            yield name, str(value)


def list_chips(filters: Filters) -> list[tuple[str, str, Filters]]:
    """List what filters, each with the filters that are left without it. The state has tabs of its own."""
    chips = []
    for name, value in _list_pairs(filters):
        if name not in ("state", "phase"):
            empty: object = () if name == "ids" else None
            chips.append((name, value, msgspec.structs.replace(filters, **{name: empty})))
    return chips


def to_selection(filters: Filters, *, now: datetime) -> Selection:
    """Build the selection for the store. Times that are given as how long ago count from `now`."""
    return Selection(
        ids=list(filters.ids) or None,
        states=None if filters.state is None else [State(filters.state)],
        destination=filters.destination,
        topic=filters.topic,
        type=filters.type,
        key=filters.key,
        correlation_id=filters.correlation,
        error=filters.error,
        fingerprint=filters.fingerprint,
        since=_parse_time(filters.since, now),
        until=_parse_time(filters.until, now),
        min_attempts=filters.attempts,
        phase=None if filters.phase is None else Phase(filters.phase),
        phase_at=None if filters.phase is None else now,
    )


def _parse_time(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_time(text) or now - parse_duration(text)
    except (ConfigError, OverflowError):
        raise FilterError(
            f"{text[:40]!r} is no time: write 2026-01-31T12:00:00+01:00, or how long ago: 30m, 2h, 7d."
        ) from None


_FLAGS: Final = {
    "state": "--state", "destination": "--destination", "topic": "--topic", "type": "--type", "key": "--key",
    "correlation": "--correlation", "error": "--error", "fingerprint": "--fingerprint", "since": "--since",
    "until": "--until", "phase": "--phase", "attempts": "--min-attempts",
}  # fmt: skip


def to_flags(filters: Filters) -> str:
    """Write all filters as `pillarbox messages` takes them, quoted for a shell: one left out would select more."""
    pairs = [(name, value) for name, value in _list_pairs(filters) if name != "ids"]
    return " ".join([*map(str, filters.ids), *(f"{_FLAGS[name]} {shlex.quote(value)}" for name, value in pairs)])


# --- search ---

_QUALIFIERS: Final = {
    "id": "ids", "dest": "destination", "destination": "destination", "topic": "topic", "type": "type", "key": "key",
    "correlation": "correlation", "error": "error", "state": "state", "since": "since", "until": "until",
    "attempts": "attempts", "fingerprint": "fingerprint", "phase": "phase",
}  # fmt: skip


class Search(msgspec.Struct, frozen=True):
    """What a person typed: filters, and words without a qualifier."""

    filters: Filters
    words: str = ""


def parse_search(text: str) -> Search:
    """Read `dest:billing error:"no account" 4711`. What has no qualifier may be an id, a message id or a key."""
    try:
        parts = shlex.split(text[:_LONGEST])
    except ValueError:  # a quote without its end
        parts = text[:_LONGEST].split()
    query: dict[str, str] = {}
    words: list[str] = []
    for part in parts:
        name, colon, value = part.partition(":")
        if colon and value and name.lower() in _QUALIFIERS:
            query[_QUALIFIERS[name.lower()]] = value
        else:
            words.append(part)
    return Search(parse_filters(query), " ".join(words))


def parse_message_name(text: str) -> Selection | None:
    """Return what selects one message by its id or its message id; None if the text is neither."""
    if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < _MAX_ID:
        return Selection(ids=[int(text)])
    try:
        return Selection(message_ids=[UUID(text)])
    except ValueError:
        return None
