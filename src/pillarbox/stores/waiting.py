"""Choice of waiting messages, alike for every store: the longest due of many lanes, the first of many keys. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pillarbox.contracts.store import NO_BYTE_LIMIT, DueMark, DueMessage, KeyMessages
from pillarbox.message import Message, Waits
from pillarbox.stores.unreadable import is_key_of_lane

__all__ = ["DueSearch", "split_by_key"]

DueRow = Sequence[Any]
"""Id, partition, key, what it waits for, when it is due (None where Python has no such time), bytes of its payload."""
LaneKey = tuple[int, str]
"""Partition and key."""
_WAITS: Final = {waits.value: waits for waits in Waits}
_LEAST_SHARE: Final = 8
_GROWTH: Final = 4
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class DueSearch:
    """Search for the longest due messages of many lanes, each of which is in order.

    A few of each lane are read first. Then more of those lanes that may hold earlier ones than were found, each time
    some more. To read as many of every lane as are wanted of all would read most of them for nothing.
    """

    def __init__(self, partitions: Iterable[int], *, limit: int, after: DueMark | None) -> None:
        self._limit = limit
        self._open: dict[int, DueMark | None] = dict.fromkeys(partitions, after)
        """Lanes that may hold more, with the place behind which to read on."""
        self._found: list[DueRow] = []
        self.share = max(_LEAST_SHARE, 2 * limit // max(1, len(self._open)))
        """How many to read of each lane."""

    def next_lanes(self) -> Mapping[int, DueMark | None]:
        """Return the lanes to read on, each with the place behind which to begin; none when the search is over."""
        if len(self._found) < self._limit:
            return self._open
        last = _rank(self._found[self._limit - 1])
        return {lane: mark for lane, mark in self._open.items() if mark is None or _rank_mark(mark) < last}

    def add(self, lanes: Iterable[int], found: Sequence[DueRow]) -> None:
        """Add what was read of these lanes, `share` of each at most."""
        of_lane: dict[int, list[DueRow]] = {lane: [] for lane in lanes}
        for row in found:
            of_lane[row[1]].append(row)
        for lane, rows in of_lane.items():
            if len(rows) < self.share:
                del self._open[lane]
            else:
                last = max(rows, key=_rank)
                self._open[lane] = DueMark(last[4], last[0])
        self._found = sorted([*self._found, *found], key=_rank)
        self.share *= _GROWTH

    def choose(self, max_bytes: int) -> list[DueMessage]:
        """Return the longest due that were found, up to the one that brings their sizes to `max_bytes`."""
        chosen: list[DueMessage] = []
        size = 0
        for row in self._found[: self._limit]:
            chosen.append(_build_due(row))
            size += row[5]
            if size >= max_bytes:
                break
        return chosen


def _build_due(row: DueRow) -> DueMessage:
    # Others may have written the row: a key that is none orders nothing.
    id_, partition, key, waits, available_at, size = row
    is_key = isinstance(key, str) and is_key_of_lane(key, partition)
    return DueMessage(id_, partition, key if is_key else None, _WAITS[waits], available_at, size)


def _rank(row: DueRow) -> tuple[datetime, int]:
    return row[4] or _LONG_AGO, row[0]


def _rank_mark(mark: DueMark) -> tuple[datetime, int]:
    return mark.available_at or _LONG_AGO, mark.id


def split_by_key(
    keys: Iterable[LaneKey],
    found: Iterable[tuple[LaneKey, Message]],
    *,
    key_limit: int,
    limit: int,
    max_bytes: int = NO_BYTE_LIMIT,
) -> list[KeyMessages]:
    """Give each key its messages, from a read that ended at one of its limits or reached the last key."""
    of_key: dict[LaneKey, list[Message]] = {key: [] for key in keys}
    count = size = 0
    last: LaneKey | None = None
    for key, message in found:
        of_key[key].append(message)
        count, size, last = count + 1, size + len(message.payload), key
    is_cut = count >= limit or (count > 0 and size >= max_bytes)
    result: list[KeyMessages] = []
    for key, messages in of_key.items():
        is_last = is_cut and key == last
        result.append(KeyMessages(messages, complete=len(messages) < key_limit and not is_last))
        if is_last:
            break
    return result
