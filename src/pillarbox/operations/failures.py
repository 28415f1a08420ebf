"""Failed messages, grouped by what their errors have in common: one rule for the command line and the pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Final

import msgspec

from pillarbox.contracts.store import GROUPS_WALKED, Action, FailureGroup, JournalEntry, Order, Selection, Store, Tries
from pillarbox.fingerprint import fingerprint
from pillarbox.message import Message, State
from pillarbox.stores.rules import build_failure_group

__all__ = [
    "CAUSES",
    "COUNTED_TO",
    "Causes",
    "ErrorGroup",
    "FailureCause",
    "Sort",
    "find_causes",
    "group_attempts",
    "group_errors",
    "group_failures",
    "strip_common_start",
]

CAUSES: Final = 100
"""Causes that are shown, unless another number is given."""
COUNTED_TO: Final = 10_000
"""Messages to which a cause is counted, and the most that are read where no index has their fingerprints."""
NO_ERROR: Final = "(no error was recorded)"
_ATTEMPTS: Final = (Action.ATTEMPT_FAILED, Action.FAILED, Action.HELD)
_SHORTEST_START: Final = 20
"""Letters that errors must have in common before they are left out: a shorter start costs no room."""


class Sort(StrEnum):
    """Order of causes."""

    COUNT = "count"
    """Most messages first."""
    LATEST = "latest"
    """Last failed first."""
    FIRST = "first"
    """First failed first."""
    KEYS = "keys"
    """Most keys first."""


class FailureCause(msgspec.Struct, frozen=True, kw_only=True):
    """Failed and held messages of one destination whose errors have the same fingerprint."""

    destination: str
    text: str
    """The fingerprint of their errors."""
    fingerprint: str
    """The same, if their rows have it, so that `Selection.fingerprint` finds them. Empty for rows that an older release
    or somebody else closed: these are grouped when they are read."""
    count: int
    more: bool
    """True if the count stopped at its limit."""
    first_at: datetime
    last_at: datetime
    keys: int
    example: Message
    """The latest, without payload."""
    tries: Tries | None
    """Tries of the example; None if it was never sent."""


class Causes(msgspec.Struct, frozen=True):
    """The first causes in some order."""

    causes: Sequence[FailureCause]
    is_cut: bool
    """There are more causes, or more messages than were looked at."""


async def find_causes(
    store: Store, selection: Selection | None = None, *, sort: Sort = Sort.COUNT, limit: int = CAUSES
) -> Causes:
    """Group failed and held messages by destination and cause; those that match the selection, or all.

    By destination the store counts them by the fingerprints of its rows. Of other selections the latest are read.
    """
    wanted = msgspec.structs.replace(selection or Selection(), states=None)
    if wanted == Selection(destination=wanted.destination):
        found = await _read_groups(store, wanted.destination, limit=limit + 1 if sort is Sort.COUNT else GROUPS_WALKED)
    else:
        found = await _group_found(store, msgspec.structs.replace(wanted, states=[State.FAILED]))
    causes = _sort_causes(found, sort)
    shown = causes[:limit]
    if missing := [one.example for one in shown if not one.fingerprint]:
        tries = await store.count_tries(missing)
        shown = [
            one if one.fingerprint else msgspec.structs.replace(one, tries=tries.get(one.example.id)) for one in shown
        ]
    return Causes(shown, len(causes) > limit or any(one.more for one in shown))


async def _read_groups(store: Store, destination: str | None, *, limit: int) -> list[FailureCause]:
    """Read the groups of the store. What has no fingerprint is read and grouped by the same rule."""
    causes = []
    for group in await store.failure_groups(destination=destination, limit=limit, counted_to=COUNTED_TO):
        if group.fingerprint:
            causes.append(_to_cause(group, text=group.fingerprint, stored=group.fingerprint))
        else:
            causes += await _group_found(
                store, Selection(destination=group.destination, fingerprint="", states=[State.FAILED])
            )
    return causes


async def _group_found(store: Store, selection: Selection) -> list[FailureCause]:
    found = await store.find(selection, limit=COUNTED_TO, payloads=False, order=Order.NEWEST)
    is_cut = len(found) >= COUNTED_TO
    return [
        msgspec.structs.replace(_to_cause(group, text=group.fingerprint, stored=""), more=is_cut)
        for group in group_failures(found, name=selection.fingerprint or None)
    ]


def _to_cause(group: FailureGroup, *, text: str, stored: str) -> FailureCause:
    return FailureCause(
        destination=group.destination, text=text, fingerprint=stored, count=group.count, more=group.more,
        first_at=group.first_at, last_at=group.last_at, keys=group.keys, example=group.example, tries=group.tries,
    )  # fmt: skip


def _sort_causes(causes: Iterable[FailureCause], sort: Sort) -> list[FailureCause]:
    by_size = sorted(causes, key=lambda one: (-one.count, one.destination, one.text))
    match sort:
        case Sort.LATEST:
            return sorted(by_size, key=lambda one: one.last_at, reverse=True)
        case Sort.FIRST:
            return sorted(by_size, key=lambda one: one.first_at)
        case Sort.KEYS:
            return sorted(by_size, key=lambda one: -one.keys)
    return by_size


# --- pure ---


def group_failures(messages: Iterable[Message], *, name: str | None = None) -> list[FailureGroup]:
    """Group messages by destination and the fingerprint of their errors, the largest group first.

    `name` is the fingerprint that all of them were found by.
    """
    groups: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for message in messages:
        text = name or fingerprint(message.last_error or "") or NO_ERROR
        groups[message.destination, text].append(message)
    built = [
        build_failure_group(destination, text, alike, counted_to=COUNTED_TO)
        for (destination, text), alike in groups.items()
    ]
    return sorted(built, key=lambda group: (-group.count, group.destination, group.fingerprint))


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Errors at one destination that have the same fingerprint."""

    destination: str
    text: str
    """The fingerprint."""
    count: int
    first_at: datetime | None
    last_at: datetime | None
    example: str
    """The message of the latest."""


def group_errors(
    rows: Iterable[tuple[str, str | None, datetime | None, object]], *, sort: Sort = Sort.COUNT
) -> list[ErrorGroup]:
    """Group rows of a destination, an error, its time and its message, the largest group first."""
    groups: dict[tuple[str, str], list[tuple[datetime | None, object]]] = defaultdict(list)
    for destination, error, at, example in rows:
        groups[destination, fingerprint(error or "") or NO_ERROR].append((at, example))
    built = []
    for (destination, text), alike in groups.items():
        timed = sorted(((at, str(example)) for at, example in alike if at is not None), key=lambda one: one[0])
        built.append(
            ErrorGroup(
                destination=destination, text=text, count=len(alike), first_at=timed[0][0] if timed else None,
                last_at=timed[-1][0] if timed else None, example=timed[-1][1] if timed else str(alike[0][1]),
            )
        )  # fmt: skip
    by_size = sorted(built, key=lambda one: (-one.count, one.destination, one.text))
    if sort is Sort.COUNT:
        return by_size
    return sorted(by_size, key=lambda one: (one.last_at is not None, one.last_at), reverse=True)


def group_attempts(entries: Iterable[JournalEntry], *, sort: Sort = Sort.COUNT) -> list[ErrorGroup]:
    """Group the failed attempts among the lines of a journal, also those of messages that were delivered since."""
    tried = [one for one in entries if one.action in _ATTEMPTS]
    return group_errors(((one.destination, one.error, one.at, one.message_id) for one in tried), sort=sort)


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
