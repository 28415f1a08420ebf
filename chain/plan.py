"""When whom death comes to: at each named point in turn, and at random in between. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain as joined
from itertools import cycle, islice
from typing import Final

import msgspec

from chain.points import RELAY_POINTS, Point

__all__ = ["Fate", "fates", "points_of"]

_LATEST: Final = 1.5
"""Seconds of a life that ends at random."""
_FIRST: Final = 3
"""A life that ends at the first passage brings nothing forward, and many of those in a row nothing at all."""
_MOST: Final = 4


class Fate(msgspec.Struct, frozen=True):
    """How one life ends: at the nth passage of a point, or after so many seconds."""

    point: str | None = None
    nth: int = 1
    after: float = 0.0


def points_of(role: str) -> Sequence[str]:
    """The points that a role dies at, by name."""
    points = RELAY_POINTS if role.startswith("relay") else Point
    return [point.title for point in points]


def fates(role: str, kills: int, *, dice: random.Random) -> Iterator[Fate]:
    """So many ends: each point once, then points and chance take turns."""
    points = points_of(role)
    by_chance = ((Fate(point, dice.randint(1, _MOST)), Fate(after=_LATEST * dice.random())) for point in cycle(points))
    return islice(joined((Fate(point, _FIRST) for point in points), joined.from_iterable(by_chance)), kills)
