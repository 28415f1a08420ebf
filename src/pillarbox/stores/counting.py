"""Counts from the parts that a store can count quickly. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from pillarbox.message import State
from pillarbox.protocols import Count

__all__ = ["ROWS_LOOKED_UP", "TOPICS_LOOKED_UP", "added", "completed", "marked"]

ROWS_LOOKED_UP: Final = 2_000
"""How many rows are looked up to count what no index tells; what is beyond is `more`."""
_CLOSED: Final = (State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED)
TOPICS_LOOKED_UP: Final = 500
"""Of how many messages of a destination the topic is looked up, where the index tells all but that."""


def completed(totals: Sequence[Count], told: Sequence[Count], *, sending: Iterable[Count]) -> list[Count]:
    """Those whose topic was told, and what is left of each total without them and without those in relays' hands.

    Of a total that is "or more", those in hand are taken to be among the more.
    """
    known, in_hand = _by_side(told), _by_side(sending)
    more = {(total.destination, total.due) for total in totals if total.more}
    counts = [msgspec.structs.replace(one, more=(one.destination, one.due) in more) for one in told]
    for total in totals:
        side = total.destination, total.due
        left = total.count - known[side] - (0 if side in more else in_hand[side])
        if left > 0:
            counts.append(msgspec.structs.replace(total, count=left))
    return counts


def _by_side(counts: Iterable[Count]) -> Counter[tuple[str, bool]]:
    sums: Counter[tuple[str, bool]] = Counter()
    for count in counts:
        sums[count.destination, count.due] += count.count
    return sums


def marked(counts: Sequence[Count], *, limit: int) -> list[Count]:
    """As `more`, what a look came upon that ended at the limit: there is one for each destination, or closed state."""
    looks: Counter[str] = Counter()
    for count in counts:
        looks[_look(count)] += count.count
    return [msgspec.structs.replace(count, more=looks[_look(count)] >= limit) for count in counts]


def _look(count: Count) -> str:
    return count.state.value if count.state in _CLOSED else f"to {count.destination}"


def added(counts: Iterable[Count]) -> Sequence[Count]:
    """Fresh and parked messages, for one, are both pending and due: they count together."""
    groups: dict[tuple[str, str | None, State, bool], list[Count]] = {}
    for count in counts:
        groups.setdefault((count.destination, count.topic, count.state, count.due), []).append(count)
    return [_summed(groups[key]) for key in sorted(groups, key=lambda key: (key[0], key[1] or "", *key[2:]))]


def _summed(parts: Sequence[Count]) -> Count:
    first = parts[0]
    return Count(
        destination=first.destination,
        topic=first.topic,
        state=first.state,
        due=first.due,
        count=sum(part.count for part in parts),
        oldest_at=min((part.oldest_at for part in parts if part.oldest_at is not None), default=None),
        more=any(part.more for part in parts),
    )
