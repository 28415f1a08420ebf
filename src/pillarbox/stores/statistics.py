"""Counts and samples, put together from what a store can count quickly. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pillarbox.contracts.store import Count, Sample
from pillarbox.message import State

__all__ = ["ROWS_LOOKED_UP", "TOPICS_LOOKED_UP", "build_sample", "complete_counts", "mark_truncated", "merge_counts"]

ROWS_LOOKED_UP: Final = 2_000
"""The most rows that are looked up to count what no index holds; beyond that a count says `more`."""
TOPICS_LOOKED_UP: Final = 500
"""The most messages of a destination whose topic is looked up, where the index holds everything else."""
_LONGEST: Final = 1e10
"""Seconds of the longest latency that is told: a row may hold any time."""


def complete_counts(totals: Sequence[Count], by_topic: Sequence[Count], *, sending: Iterable[Count]) -> list[Count]:
    """Return the counts whose topic is known, and for each total the rest without a topic.

    Messages in relays' hands are counted apart, so they come off the rest. A total that says `more` is exempt: the
    messages in hand may be among those that were not counted.
    """
    known, in_hand = _sum_by_group(by_topic), _sum_by_group(sending)
    truncated = {(total.destination, total.due) for total in totals if total.more}
    counts = [msgspec.structs.replace(one, more=(one.destination, one.due) in truncated) for one in by_topic]
    for total in totals:
        group = total.destination, total.due
        rest = total.count - known[group] - (0 if group in truncated else in_hand[group])
        if rest > 0:
            counts.append(msgspec.structs.replace(total, count=rest))
    return counts


def _sum_by_group(counts: Iterable[Count]) -> Counter[tuple[str, bool]]:
    sums: Counter[tuple[str, bool]] = Counter()
    for count in counts:
        sums[count.destination, count.due] += count.count
    return sums


def mark_truncated(counts: Sequence[Count], *, limit: int) -> list[Count]:
    """Set `more` on the counts of each query that ended at the limit."""
    totals: Counter[str] = Counter()
    for count in counts:
        totals[_query_key(count)] += count.count
    return [msgspec.structs.replace(count, more=totals[_query_key(count)] >= limit) for count in counts]


def _query_key(count: Count) -> str:
    # Stores count open messages destination by destination, and closed ones state by state.
    return count.state.value if count.state.is_closed else f"to {count.destination}"


def merge_counts(counts: Iterable[Count]) -> Sequence[Count]:
    """Add up the counts of each group: fresh and parked messages, for example, are both pending and due."""
    groups: dict[tuple[str, str | None, State, bool], list[Count]] = {}
    for count in counts:
        groups.setdefault((count.destination, count.topic, count.state, count.due), []).append(count)
    return [_merge_group(groups[key]) for key in sorted(groups, key=lambda key: (key[0], key[1] or "", *key[2:]))]


def _merge_group(parts: Sequence[Count]) -> Count:
    return msgspec.structs.replace(
        parts[0],
        count=sum(part.count for part in parts),
        oldest_at=min((part.oldest_at for part in parts if part.oldest_at is not None), default=None),
        more=any(part.more for part in parts),
    )


def build_sample(destination: str, topic: str, latency: float, end_to_end: float, at: datetime) -> Sample:
    """Build a sample from seconds. A clock can be set back: a latency below 0 becomes 0."""
    latency, end_to_end = (max(-_LONGEST, min(seconds, _LONGEST)) for seconds in (latency, end_to_end))
    return Sample(
        destination=destination,
        topic=topic,
        latency=timedelta(seconds=max(latency, 0.0)),
        end_to_end=timedelta(seconds=end_to_end),
        at=at,
    )
