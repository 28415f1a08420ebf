"""Service A: commits parcels of some keys, numbered without a gap, and now and then takes one back."""

from __future__ import annotations

import random
from typing import Final

from crash.backends import Place
from crash.parcels import parcel
from crash.writing import roll_back, write

__all__ = ["Writer"]

_KEYS: Final = tuple(f"k{number}" for number in range(8))
_AT_ONCE: Final = 3
_SELDOM: Final = 0.1


class Writer:
    """Business row and message in one transaction each time."""

    def __init__(self, place: Place, *, dice: random.Random) -> None:
        self._place = place
        self._dice = dice
        self.latest = dict.fromkeys(_KEYS, 0)
        """Key to the number of its latest parcel."""

    @property
    def committed(self) -> int:
        """How many parcels."""
        return sum(self.latest.values())

    def write_some(self) -> None:
        """One transaction; seldom one more, which thinks better of it."""
        self._write(self._dice.sample(_KEYS, self._dice.randint(1, _AT_ONCE)))
        if self._dice.random() < _SELDOM:
            roll_back(self._place, [parcel(key, self.latest[key] + 1_000_000) for key in _KEYS[:2]])

    def write_last(self) -> None:
        """One more of each key. When it has come through, so has all that was before it."""
        self._write(_KEYS)

    def _write(self, keys: list[str] | tuple[str, ...]) -> None:
        for key in keys:
            self.latest[key] += 1
        write(self._place, [parcel(key, self.latest[key]) for key in keys])
