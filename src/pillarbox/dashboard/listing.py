"""Lists of messages, a page at a time: however rare a match is, no page looks at more than a bounded number of rows.

Only some conditions have an index. For the others a list walks by id, in windows, and says where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import OperatorStore, Order, Phase, Selection
from pillarbox.message import Message, State
from pillarbox.stores.rules import list_states

__all__ = ["COUNTED_TO", "Listing", "MatchCount", "count_matches", "find_by_message_id", "list_page"]

LOOKED_AT: Final = 60_000
"""Ids that one page looks at, of pending and of delivered messages each."""
COUNTED_TO: Final = 100_000
"""The most messages that are counted before an action."""
_ROWS: Final = 50
"""The most destinations of one message that are listed."""
_WINDOW: Final = 20_000
"""Ids that one statement looks at."""
_LATE: Final = timedelta(hours=1)
"""A message with a higher id may have been written so much earlier: its transaction was open for long."""
_WALKED: Final = (State.PENDING, State.DELIVERED)
"""States with very many messages, which no index finds by their columns."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """One page of messages."""

    messages: Sequence[Message]
    next: int | None
    """The id to go on from: below it, or above it where the oldest come first. None: there are no more."""
    is_cut: bool = False
    """The page ended because enough rows were looked at, and not because it is full."""


class _Part(msgspec.Struct, frozen=True):
    """Messages of some states, and the id up to which they are all that match; None if there are no more at all."""

    messages: Sequence[Message]
    mark: int | None
    is_cut: bool = False


async def list_page(store: OperatorStore, selection: Selection, *, limit: int, newest: bool) -> Listing:
    """Return the first messages of a selection by id, the highest first or the lowest, looking at a bounded number."""
    states = list_states(selection)
    walked = [state for state in states if state in _WALKED] if _needs_walk(selection) else []
    rest = [state for state in states if state not in walked]
    parts = [await _walk(store, selection, state, limit=limit, newest=newest) for state in walked]
    if rest:
        parts.append(await _find(store, msgspec.structs.replace(selection, states=rest), limit=limit, newest=newest))
    marks = [part.mark for part in parts if part.mark is not None]
    # Beyond the nearest mark some part may have more that was not looked at: the next page begins there.
    end = None if not marks else max(marks) if newest else min(marks)
    found = [
        one for part in parts for one in part.messages if end is None or (one.id >= end if newest else one.id <= end)
    ]
    found.sort(key=lambda one: one.id, reverse=newest)
    if len(found) > limit:
        return Listing(messages=found[:limit], next=found[limit - 1].id)
    return Listing(messages=found, next=end, is_cut=any(part.is_cut and part.mark == end for part in parts))


def _needs_walk(selection: Selection) -> bool:
    """Return whether a condition is set that no index of the large states serves."""
    if selection.ids is not None or selection.message_ids is not None or selection.correlation_id is not None:
        return False
    if selection.phase in (Phase.LATER, Phase.RETRY, Phase.PARKED, Phase.HELD):
        return False
    free = Selection(states=selection.states, after=selection.after, before=selection.before)
    return selection != free


async def _find(store: OperatorStore, selection: Selection, *, limit: int, newest: bool) -> _Part:
    order = Order.LATEST if newest else Order.ID
    found = await store.find(selection, limit=limit + 1, payloads=False, order=order)
    return _Part(found, found[-1].id if len(found) > limit else None)


async def _walk(store: OperatorStore, selection: Selection, state: State, *, limit: int, newest: bool) -> _Part:
    """Find messages of one state, window by window of ids. A gap between ids is passed over by one probe."""
    bare = Selection(states=[state], after=selection.after, before=selection.before)
    order = Order.LATEST if newest else Order.ID
    found: list[Message] = []
    mark = 0
    for _ in range(LOOKED_AT // _WINDOW):
        window = await _find_window(store, bare, selection, newest=newest)
        if window is None:
            return _Part(found, None)
        low, high = window
        inside = msgspec.structs.replace(selection, states=[state], after=low - 1, before=high + 1)
        found += await store.find(inside, limit=limit + 1 - len(found), payloads=False, order=order)
        if len(found) > limit:
            return _Part(found, found[-1].id)
        mark = low if newest else high
        bare = msgspec.structs.replace(bare, **({"before": low} if newest else {"after": high}))
    return _Part(found, mark, is_cut=True)


async def _find_window(
    store: OperatorStore, bare: Selection, selection: Selection, *, newest: bool
) -> tuple[int, int] | None:
    """Return the lowest and the highest id of the next window; None if nothing more can match."""
    order = Order.LATEST if newest else Order.ID
    edge = await store.find(bare, limit=1, payloads=False, order=order)
    if not edge:
        return None
    first, written_at = edge[0].id, edge[0].created_at
    if written_at is not None:
        if newest and selection.since is not None and selection.since - written_at > _LATE:
            return None
        if not newest and selection.until is not None and written_at - selection.until > _LATE:
            return None
    if newest:
        low = first - _WINDOW + 1
        return (max(low, bare.after + 1) if bare.after else low), first
    high = first + _WINDOW - 1
    return first, (high if bare.before is None else min(high, bare.before - 1))


# --- one message ---

_LATEST: Final = 253_402_300_799_000
"""The last second of the calendar, in milliseconds."""
_PROBES: Final = 64
"""The most steps of a search for the place of a time among the ids: each halves what is left."""


async def find_by_message_id(
    store: OperatorStore, message_id: UUID, *, correlation_id: str | None = None, payloads: bool = False
) -> Sequence[Message]:
    """Find a message at all its destinations, by id.

    The index of message ids has closed messages alone. An open one is found by its correlation id, which is its own
    message id unless it was given another; then by its time, which its message id has in it, for ids follow time.
    """
    named = Selection(message_ids=[message_id])
    closed = msgspec.structs.replace(named, states=[state for state in State if state is not State.PENDING])
    found = {one.id: one for one in await store.find(closed, limit=_ROWS, payloads=payloads)}
    pending = msgspec.structs.replace(named, states=[State.PENDING])
    related = msgspec.structs.replace(pending, correlation_id=correlation_id or str(message_id))
    found |= {one.id: one for one in await store.find(related, limit=_ROWS, payloads=payloads)}
    if not found:
        low, high = await _locate(store, message_id)
        near = msgspec.structs.replace(pending, after=low, before=high)
        found |= {one.id: one for one in await store.find(near, limit=_ROWS, payloads=payloads)}
    return [found[id_] for id_ in sorted(found)]


async def _locate(store: OperatorStore, message_id: UUID) -> tuple[int, int]:
    """Return ids between which an open message must be that was written when its message id was made."""
    ends = [
        await store.find(Selection(states=[State.PENDING]), limit=1, payloads=False, order=order)
        for order in (Order.ID, Order.LATEST)
    ]
    if not ends[0] or not ends[1]:
        return 0, 1
    low, high = ends[0][0].id - 1, ends[1][0].id + 1
    # An id of another version has no time, and may have any number in its place.
    made_at = datetime.fromtimestamp(min(message_id.int >> 80, _LATEST) / 1_000, UTC)
    for _ in range(_PROBES):
        if high - low <= LOOKED_AT:
            break
        middle = (low + high) // 2
        probe = Selection(states=[State.PENDING], after=middle, before=high)
        next_ones = await store.find(probe, limit=1, payloads=False)
        if not next_ones or (next_ones[0].created_at or made_at) > made_at:
            # What was written later than the message may have a lower id by some: half a window stays.
            high = min(high, middle + _WINDOW)
            if high - low <= 2 * _WINDOW:
                break
        else:
            low = max(low, middle - _WINDOW)
    return low, high


# --- counting ---


class MatchCount(msgspec.Struct, frozen=True):
    """The number of messages that match."""

    count: int
    more: bool
    """At least so many: counting ended there."""


async def count_matches(
    store: OperatorStore, selection: Selection, states: Sequence[State]
) -> Mapping[State, MatchCount]:
    """Count what matches, by state, looking at a bounded number of rows. States without any are left out."""
    counts: dict[State, MatchCount] = {}
    for state in states:
        one = msgspec.structs.replace(selection, states=[state])
        if state in _WALKED and _needs_walk(one):
            counts[state] = await _count_walk(store, one, state)
        else:
            count = await store.count(one, limit=COUNTED_TO)
            counts[state] = MatchCount(count, count >= COUNTED_TO)
    return {state: count for state, count in counts.items() if count.count or count.more}


async def _count_walk(store: OperatorStore, selection: Selection, state: State) -> MatchCount:
    bare = Selection(states=[state], after=selection.after, before=selection.before)
    total = 0
    for _ in range(LOOKED_AT // _WINDOW):
        window = await _find_window(store, bare, selection, newest=False)
        if window is None:
            return MatchCount(total, more=False)
        low, high = window
        inside = msgspec.structs.replace(selection, after=low - 1, before=high + 1)
        total += await store.count(inside, limit=_WINDOW)
        bare = msgspec.structs.replace(bare, after=high)
    return MatchCount(total, more=bool(await store.find(bare, limit=1, payloads=False)))
