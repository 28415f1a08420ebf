"""Whoever works between A and C: started, killed, and started again until its deaths are used up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from chain.orders import Order
from chain.plan import Fate
from crash.mine import Trap
from crash.processes import Nursery, Program

__all__ = ["Worker"]

_TAIL: Final = 2_000


class Worker:
    """One role: one process at a time, life after life. The last life has no end."""

    def __init__(self, role: str, order: Order, *, nursery: Nursery, folder: Path, fates: Iterator[Fate]) -> None:
        self.role = role
        self._order = order
        self._nursery = nursery
        self._folder = folder
        self._fates = fates
        self._fate: Fate | None = None
        self._lives = 0
        self._began = 0.0
        self._program: Program | None = None
        self.kills = 0
        self.hits: Counter[str] = Counter()
        """How often somebody died at a point, by its name."""
        self.faults: list[str] = []

    @property
    def has_died_enough(self) -> bool:
        """It is in its last life."""
        return self._program is not None and self._fate is None

    def look(self) -> None:
        """Go on with what is due: a beginning, an end, or nothing."""
        if self._program is None:
            self._begin()
        elif self._program.has_ended:
            self._bury(self._program)
            self._begin()
        elif self._is_due():
            self._program.end()

    def end(self) -> None:
        """However it can be ended."""
        if self._program is not None:
            self._program.end()

    def told(self) -> str:
        """What the latest process logged, its end."""
        if self._program is None:
            return ""
        text = self._program.log.read_text(errors="replace") if self._program.log.exists() else ""
        return f"--- {self.role}, life {self._lives}\n{text[-_TAIL:]}"

    def _begin(self) -> None:
        self._lives += 1
        fate = self._fate = next(self._fates, None)
        trap = None
        if fate is not None and fate.point is not None:
            trap = Trap(fate.point, fate.nth, str(self._marker))
        order = msgspec.structs.replace(self._order, trap=trap)
        self._program = self._nursery.start(order, log=self._path("log"))
        self._began = time.monotonic()

    def _is_due(self) -> bool:
        fate = self._fate
        return fate is not None and fate.point is None and time.monotonic() - self._began > fate.after

    def _bury(self, program: Program) -> None:
        fate = self._fate
        if fate is None or not program.was_killed or (fate.point is not None and not self._marker.exists()):
            self.faults.append(f"{self.role} ended by itself, with code {program.exit_code}\n{self.told()}")
            return
        self.kills += 1
        if fate.point is not None:
            self.hits[fate.point] += 1

    @property
    def _marker(self) -> Path:
        return self._path("death")

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self.role.replace(' ', '-')}-{self._lives}.{kind}"
