"""Counts and rollups, put together from what a store can count quickly. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import (
    LATENCY_BOUNDS,
    Action,
    Count,
    FailedOutcome,
    FailureGroup,
    JournalEntry,
    Rollup,
    Tries,
)
from pillarbox.message import Message, State, Waits

__all__ = [
    "FAILURES_LOOKED_UP",
    "ROLLUP_COLUMNS",
    "TOPICS_LOOKED_UP",
    "FailureCount",
    "RecordedTries",
    "add_rollups",
    "add_tries",
    "attach_tries",
    "build_rollup",
    "build_tries",
    "check_step",
    "choose_largest",
    "clamp_seconds",
    "classify_failure",
    "complete_counts",
    "count_below",
    "count_deliveries",
    "mark_truncated",
    "merge_counts",
    "merge_failures",
]

FAILURES_LOOKED_UP: Final = 1_000
"""The most messages of a group of failures whose keys are looked up."""
TOPICS_LOOKED_UP: Final = 500
"""The most messages of a destination whose topic is looked up, where the index holds everything else."""
_LONGEST: Final = 1e10
"""Seconds of the longest latency that is counted: a row may hold any time."""
_SUMS: Final = (
    "delivered", "failed", "retried", "discarded", "returned", "backlog",
    "latency_sum", "latency_max", "end_to_end_sum", "end_to_end_max",
)  # fmt: skip
ROLLUP_COLUMNS: Final = (
    *_SUMS,
    "under_5ms", "under_10ms", "under_25ms", "under_50ms", "under_100ms", "under_250ms", "under_500ms", "under_1s",
    "under_2500ms", "under_5s", "under_10s", "under_30s", "under_1m", "under_5m", "under_30m", "from_30m",
)  # fmt: skip
"""Columns of the counters: sums first, then a column for each bucket of `LATENCY_BOUNDS`."""


# --- counts ---

_Group = tuple[str, State, bool]
_TRIES: Final = (Action.ATTEMPT_FAILED, Action.TRIED, Action.FAILED, Action.HELD)


def complete_counts(counts: Sequence[Count], *, sending: Iterable[Count]) -> list[Count]:
    """Return the counts whose topic is known, and for each total, which has no topic, the rest.

    Messages in relays' hands are counted apart, so they come off the rest of the pending ones. A total that says `more`
    is exempt: the messages in hand may be among those that were not counted.
    """
    by_topic = [count for count in counts if count.topic is not None]
    totals = [count for count in merge_counts(counts) if count.topic is None]
    known = _sum_by_group(by_topic)
    in_hand = _sum_by_group(msgspec.structs.replace(count, state=State.PENDING) for count in sending)
    truncated = {_group(total) for total in totals if total.more}
    completed = [msgspec.structs.replace(one, more=_group(one) in truncated) for one in by_topic]
    for total in totals:
        group = _group(total)
        rest = total.count - known[group] - (0 if group in truncated else in_hand[group])
        if rest > 0:
            completed.append(msgspec.structs.replace(total, count=rest))
    return completed


def _group(count: Count) -> _Group:
    return count.destination, count.state, count.due


def _sum_by_group(counts: Iterable[Count]) -> Counter[_Group]:
    sums: Counter[_Group] = Counter()
    for count in counts:
        sums[_group(count)] += count.count
    return sums


def mark_truncated(counts: Sequence[Count], *, limit: int) -> list[Count]:
    """Set `more` on all counts of a query that ended at the limit."""
    more = sum(count.count for count in counts) >= limit
    return [msgspec.structs.replace(count, more=more) for count in counts]


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


# --- failures ---


class FailureCount(msgspec.Struct, frozen=True):
    """The number of messages of one fingerprint in one table, and what was looked up of them."""

    destination: str
    fingerprint: str | None
    count: int
    held: bool
    more: bool = False
    first_at: datetime | None = None
    last_at: datetime | None = None
    keys: int = 0
    example_id: int | None = None

    @property
    def group(self) -> tuple[str, str]:
        return self.destination, self.fingerprint or ""


def choose_largest(counts: Iterable[FailureCount], *, limit: int) -> list[list[FailureCount]]:
    """Return the largest groups, each with its parts in history and among the held. None and empty are one group."""
    groups: dict[tuple[str, str], list[FailureCount]] = {}
    for one in counts:
        groups.setdefault(one.group, []).append(one)
    names = sorted(groups, key=lambda name: (-sum(part.count for part in groups[name]), name))
    return [groups[name] for name in names[:limit]]


def merge_failures(
    parts: Iterable[FailureCount],
    messages: Iterable[Message],
    *,
    counted_to: int,
    keys: Mapping[tuple[str, str], int],
) -> list[FailureGroup]:
    """Build the groups from their parts, with their examples, the largest first.

    `keys` are the numbers of keys of groups that have messages in both tables, by group: a key may be in each. A group
    whose example is gone was redriven or purged meanwhile, and is left out.
    """
    examples = {(message.id, message.waits is not None): message for message in messages}
    groups: dict[tuple[str, str], list[FailureCount]] = {}
    for part in parts:
        groups.setdefault(part.group, []).append(part)
    built = []
    for (destination, name), alike in groups.items():
        latest = max(alike, key=lambda part: (part.last_at is not None, part.last_at))
        example = None if latest.example_id is None else examples.get((latest.example_id, latest.held))
        times = [at for part in alike for at in (part.first_at, part.last_at) if at is not None]
        if example is None or not times:
            continue
        count = sum(part.count for part in alike)
        built.append(
            FailureGroup(
                destination=destination, fingerprint=name, count=min(count, counted_to),
                more=count >= counted_to or any(part.more for part in alike), first_at=min(times),
                last_at=max(times), example=example,
                keys=keys.get((destination, name), sum(part.keys for part in alike)),
            )
        )  # fmt: skip
    return sorted(built, key=lambda group: (-group.count, group.destination, group.fingerprint))


# --- tries ---


class RecordedTries(msgspec.Struct):
    """Failed tries of one message at one destination, as the journal has them since the last redrive or replay."""

    sent: int = 0
    """Lines that only a message leaves which was sent."""
    ends: int = 0
    """Lines of a message that was given up and had spent no attempt: it may never have been sent."""
    first_at: datetime | None = None
    unspent_at: datetime | None = None
    """Time of the first try that spent no attempt."""


def add_tries(entries: Iterable[JournalEntry]) -> dict[tuple[UUID, str], RecordedTries]:
    """Count tries from lines of a journal, by message and destination."""
    tries: dict[tuple[UUID, str], RecordedTries] = {}
    for entry in entries:
        if entry.message_id is None:
            continue
        name = (entry.message_id, entry.destination)
        if entry.action in (Action.REDRIVEN, Action.REPLAYED):
            tries.pop(name, None)
        elif entry.action in _TRIES:
            one = tries.setdefault(name, RecordedTries(first_at=entry.at))
            is_sent = entry.action in (Action.ATTEMPT_FAILED, Action.TRIED) or (entry.attempt or 0) > 0
            one.sent, one.ends = one.sent + is_sent, one.ends + (not is_sent)
            if entry.action == Action.TRIED and one.unspent_at is None:
                one.unspent_at = entry.at
    return tries


def build_tries(messages: Iterable[Message], recorded: Mapping[tuple[UUID, str], RecordedTries]) -> dict[int, Tries]:
    """Build the tries of messages by id. One that was never sent, such as an unreadable row, has none."""
    tries = {}
    for message in messages:
        one = recorded.get((message.message_id, message.destination))
        if one is not None and one.sent and one.first_at is not None:
            tries[message.id] = Tries(one.sent + one.ends, one.first_at)
    return tries


def attach_tries(
    groups: Iterable[FailureGroup], recorded: Mapping[tuple[UUID, str], RecordedTries]
) -> list[FailureGroup]:
    """Return groups of failures with the tries of their examples."""
    return [
        msgspec.structs.replace(group, tries=build_tries([group.example], recorded).get(group.example.id))
        for group in groups
    ]


# --- rollups ---


def build_rollup(destination: str, minute: datetime, values: Sequence[Any]) -> Rollup:
    """Build a rollup from the values of `ROLLUP_COLUMNS`. MySQL gives sums as decimals."""
    delivered, failed, retried, discarded, returned, backlog = (int(value) for value in values[:6])
    latency_sum, latency_max, end_to_end_sum, end_to_end_max = (float(value) for value in values[6:10])
    return Rollup(
        destination=destination, minute=minute, delivered=delivered, failed=failed, retried=retried,
        discarded=discarded, returned=returned, backlog=backlog,
        latency_sum=latency_sum, latency_max=latency_max, end_to_end_sum=end_to_end_sum,
        end_to_end_max=end_to_end_max, latencies=[int(value) for value in values[10:]],
    )  # fmt: skip


def add_rollups(rollups: Iterable[Rollup], *, step: timedelta) -> list[Rollup]:
    """Add up the counters of each destination and step, in the order of the steps. A step is of whole minutes."""
    seconds = check_step(step)
    sums: dict[tuple[datetime, str], Rollup] = {}
    for rollup in rollups:
        minute = datetime.fromtimestamp(rollup.minute.timestamp() // seconds * seconds, UTC)
        known = sums.get((minute, rollup.destination))
        sums[minute, rollup.destination] = (
            msgspec.structs.replace(rollup, minute=minute) if known is None else _add_rollup(known, rollup)
        )
    return [sums[key] for key in sorted(sums)]


def check_step(step: timedelta) -> int:
    """Return the seconds of a step of rollups; `ValueError` if it is not of whole minutes."""
    seconds = int(step.total_seconds())
    if seconds < 60 or step % timedelta(minutes=1):
        raise ValueError(f"A step of rollups is of whole minutes, not {step}.")
    return seconds


def _add_rollup(one: Rollup, other: Rollup) -> Rollup:
    sums = ("delivered", "failed", "retried", "discarded", "returned", "latency_sum", "end_to_end_sum")
    highest = ("backlog", "latency_max", "end_to_end_max")
    return msgspec.structs.replace(
        one,
        latencies=[mine + others for mine, others in zip(one.latencies, other.latencies, strict=True)],
        **{name: getattr(one, name) + getattr(other, name) for name in sums},
        **{name: max(getattr(one, name), getattr(other, name)) for name in highest},
    )


def count_deliveries(rollup: Rollup, times: Sequence[tuple[float, float]]) -> Rollup:
    """Add deliveries, each given as its latency and end-to-end time in seconds."""
    times = [(clamp_seconds(latency), clamp_seconds(end_to_end)) for latency, end_to_end in times]
    latencies = list(rollup.latencies)
    for latency, _ in times:
        latencies[bisect_right(LATENCY_BOUNDS, latency)] += 1
    return msgspec.structs.replace(
        rollup,
        delivered=rollup.delivered + len(times),
        latency_sum=rollup.latency_sum + sum(latency for latency, _ in times),
        latency_max=max([rollup.latency_max, *(latency for latency, _ in times)]),
        end_to_end_sum=rollup.end_to_end_sum + sum(end_to_end for _, end_to_end in times),
        end_to_end_max=max([rollup.end_to_end_max, *(end_to_end for _, end_to_end in times)]),
        latencies=latencies,
    )


def count_below(
    delivered: float,
    latency_sum: float,
    latency_max: float,
    end_to_end_sum: float,
    end_to_end_max: float,
    *below: float,
) -> dict[str, float]:
    """Return the counters of deliveries by column, from the numbers of those below each bound of the latencies."""
    sums = (delivered, 0, 0, 0, 0, 0, latency_sum, latency_max, end_to_end_sum, end_to_end_max)
    buckets = (high - low for low, high in pairwise((0, *below, delivered)))
    return dict(zip(ROLLUP_COLUMNS, (*sums, *buckets), strict=True))


def clamp_seconds(seconds: float) -> float:
    """Return a time that can be counted. A clock can be set back: a time below 0 becomes 0."""
    return max(0.0, min(seconds, _LONGEST))


_STATE_COLUMNS: Final[Mapping[State, str]] = {State.FAILED: "failed", State.DISCARDED: "discarded"}
_WAITS_COLUMNS: Final[Mapping[Waits, str]] = {Waits.HELD: "failed", Waits.RETRY: "retried"}


def classify_failure(failure: FailedOutcome) -> str | None:
    """Return the column that counts this outcome; None if none does. What waits unsent was not retried."""
    if failure.state is State.PENDING and not failure.tried:
        return None
    return _STATE_COLUMNS.get(failure.state) or (None if failure.waits is None else _WAITS_COLUMNS.get(failure.waits))
