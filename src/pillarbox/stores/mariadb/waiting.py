"""Searches for waiting messages in many lanes and keys at once.

The server spends more on planning a small select than on running it. So one select serves as many keys as possible,
and none is made for kinds of messages that a destination does not have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pillarbox.stores.sync_sql.database import Transaction

__all__ = ["choose_step", "find_blocked", "find_due", "walk_blocked_keys"]

_FEW: Final = 4
"""Most blocked messages of a key, on average in its lane, that are found together with those of other keys."""
_FIRST_STEP: Final = 64
_LONGEST_STEP: Final = 1_024
_STEP_GROWTH: Final = 4
"""Entries of a lane that one step of a walk over blocked keys reads."""


def find_due(tx: Transaction, each: Sequence[Mapping[str, object]]) -> Sequence[Any]:
    """Find the next due messages of each lane, deferred and retrying ones, in as few selects as possible."""
    kinds = [waits for (waits,) in tx.query("due_kinds", {"destination": each[0]["destination"]})]
    rows = tx.union("find_due", [{**one, "waits": waits} for waits in kinds for one in each]) if kinds else []
    if len(kinds) < 2:
        return rows
    limits: dict[Any, Any] = {one["partition"]: one["limit"] for one in each}
    of_lane: dict[int, list[Any]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row[4], row[0])):
        of_lane[row[1]].append(row)
    return [row for lane, found in of_lane.items() for row in found[: limits[lane]]]


def find_blocked(tx: Transaction, each: Sequence[Mapping[str, object]]) -> Sequence[Any]:
    """Find the first blocked messages of each key, by the number of the key.

    The keys of a lane are looked up together. Only if they have more messages than a few, each is looked up alone.
    """
    lanes: dict[object, dict[str, Mapping[str, object]]] = defaultdict(dict)
    for one in each:
        lanes[one["partition"]][str(one["key"])] = one
    together = [
        {"destination": each[0]["destination"], "partition": lane, "keys": list(keys), "limit": _FEW * len(keys) + 1}
        for lane, keys in lanes.items()
    ]
    of_lane: dict[object, list[Any]] = defaultdict(list)
    for row in tx.union("find_few_blocked", together):
        of_lane[row[0]].append(row)
    found: list[Any] = []
    alone: list[Mapping[str, object]] = []
    for lane, keys in lanes.items():
        if len(of_lane[lane]) > _FEW * len(keys):
            alone += keys.values()
            continue
        counts: dict[str, int] = defaultdict(int)
        for _, key, id_, size in of_lane[lane]:
            counts[key] += 1
            if counts[key] <= keys[key]["limit"]:  # type: ignore[operator]
                found.append((keys[key]["number"], id_, size))
    return [*found, *(tx.union("find_blocked", alone) if alone else ())]


def walk_blocked_keys(tx: Transaction, destination: str, partitions: Sequence[int]) -> list[tuple[int, str, str]]:
    """Return each key with a blocked message, its lane, and what the first of its messages waits for.

    Each step reads some entries of every lane that may have more, and the next one goes on behind the last key. Steps
    grow where most entries are keys of their own, and shrink where many messages wait behind each key.
    """
    # The walk begins behind the empty key, which comes before all others.
    empty: list[dict[str, object]] = [
        {"destination": destination, "partition": lane, "keys": [""], "limit": 1} for lane in partitions
    ]
    firsts = {(lane, key): id_ for lane, key, id_, _ in tx.union("find_few_blocked", empty)} if empty else {}
    marks: dict[int, tuple[str | bytes, int]] = dict.fromkeys(partitions, (b"", _FIRST_STEP))
    while marks:
        each = [
            {"destination": destination, "partition": lane, "after": after, "limit": step}
            for lane, (after, step) in marks.items()
        ]
        found: dict[int, list[str]] = {lane: [] for lane in marks}
        for lane, key, id_ in tx.union("walk_blocked", each):
            found[lane].append(key)
            firsts.setdefault((lane, key), id_)
        marks = {
            lane: (keys[-1], choose_step(step, keys=len(set(keys))))
            for lane, keys in found.items()
            if len(keys) == (step := marks[lane][1])
        }
    fronts = dict(tx.query("fronts", {"ids": list(firsts.values())})) if firsts else {}
    return [(lane, key, fronts[id_]) for (lane, key), id_ in firsts.items()]


def choose_step(step: int, *, keys: int) -> int:
    """Return how many entries to read after a step of so many, in which there were so many keys."""
    return min(_STEP_GROWTH * step, _LONGEST_STEP) if 2 * keys > step else 2 * keys
