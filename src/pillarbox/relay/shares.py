"""Fair shares of one window among many: pure.

Messages in flight are what a relay's memory, its transports and its stores are busy with, so whoever shares the
window fairly shares these. Each taker has a small part for itself at any time, so that it can begin at once. The rest
is divided evenly among those that have work: a taker with a flood gets its share, and all of it while no other has
work. What is in flight never exceeds the window, for a share grows only by what others have given back: a taker that
is new finds its part as soon as those that hold it have given it back, and one message at any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Demand", "Window", "divide_window", "sum_demands"]


class Demand(NamedTuple):
    """What a taker has in flight, and whether it would take more."""

    messages: int = 0
    bytes: int = 0
    wants: bool = False


class Window(NamedTuple):
    """Limit of what may be in flight."""

    messages: int
    bytes: int


def divide_window(window: Window, demands: Mapping[str, Demand]) -> Mapping[str, Window]:
    """Return the share of each taker. A share is at least 1 message and 1 byte."""
    active = [name for name, demand in demands.items() if demand.wants]
    messages = _divide(window.messages, {name: one.messages for name, one in demands.items()}, active)
    size = _divide(window.bytes, {name: one.bytes for name, one in demands.items()}, active)
    return {name: Window(messages[name], size[name]) for name in demands}


def sum_demands(demands: Mapping[str, Demand]) -> Demand:
    """Return the demand of several together."""
    return Demand(
        sum(one.messages for one in demands.values()),
        sum(one.bytes for one in demands.values()),
        any(one.wants for one in demands.values()),
    )


def _divide(capacity: int, used: Mapping[str, int], active: list[str]) -> dict[str, int]:
    """Divide one number: half of it is kept in equal parts for all, the other half is for those that have work."""
    own = max(1, capacity // (2 * max(1, len(used))))
    pool = max(0, capacity - own * len(used))
    share = own + (pool // len(active) if active else 0)
    kept = own
    if _sum_held(used, own) > capacity:  # some hold what is kept for others, who came later
        kept = max(1, bisect_right(range(1, own + 1), capacity, key=lambda level: _sum_held(used, level)))
    free = max(0, capacity - _sum_held(used, kept))
    shares = dict.fromkeys(used, kept)
    # Those that have least come first: what is free now goes to whoever is furthest from his share.
    for name in sorted(active, key=lambda name: used[name]):
        held = max(kept, used[name])
        grown = min(max(0, share - held), free)
        free -= grown
        shares[name] = min(share, held + grown)
    return shares


def _sum_held(used: Mapping[str, int], kept: int) -> int:
    """Return what is in flight, or kept for those that have less."""
    return sum(max(kept, taken) for taken in used.values())
