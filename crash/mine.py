"""The end of a process, laid out in advance: when the work comes to its step for the nth time, SIGKILL."""

from __future__ import annotations

import os
import re
import signal
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import msgspec

from crash.points import Point
from crash.steps import STEPS, Call, Stage, Step

__all__ = ["Death", "Mine", "Trap"]

_COMMENTS: Final = re.compile(r"--[^\n]*")
_WRITES: Final = ("insert", "update", "delete", "with")


class Trap(msgspec.Struct, frozen=True):
    """Which point, at which of its occurrences, and the file that tells of the death."""

    point: str
    nth: int
    marker: str


class Death(msgspec.Struct, frozen=True):
    """What that file says."""

    point: str
    nth: int
    at: int
    """On the steady clock, in nanoseconds."""


class Mine:
    """Follows the calls of one process. Without a trap it does nothing. `step` is where, if the matrix does not say."""

    def __init__(self, trap: Trap | None, *, step: Step | None = None) -> None:
        self._trap = trap
        self._step = step if step is not None or trap is None else STEPS[Point.titled(trap.point)]
        self._passed = 0
        self.recorded = 0
        """Deliveries recorded so far."""
        self.current: ContextVar[Call | None] = ContextVar("call", default=None)
        """The call that the present code works for."""

    def at(self, stage: Stage, call: Call) -> None:
        """A call has come this far. Does not return where the trap is."""
        if self._step is not None and self._step.is_at(call, stage):
            self._passed += 1
            if self._trap is not None and self._passed >= self._trap.nth:
                _die(self._trap)

    def waits_for(self, stage: Stage) -> bool:
        """Whether the trap is at such a stage."""
        return self._step is not None and self._step.stage is stage

    def ran(self, sql: str, *, changed: int = 0) -> None:
        """A statement of the current call has run."""
        call = self.current.get()
        if call is not None and _COMMENTS.sub("", sql).lstrip().lower().startswith(_WRITES):
            call.writes += 1
            call.changed += changed
            if self._step is not None and call.writes == self._step.writes:
                self.at(Stage.HALFWAY, call)

    def commits(self) -> None:
        """The current call is about to commit."""
        call = self.current.get()
        if call is not None:
            self.at(Stage.UNCOMMITTED, call)


def _die(trap: Trap) -> None:
    death = Death(trap.point, trap.nth, time.monotonic_ns())
    Path(trap.marker).write_bytes(msgspec.json.encode(death))
    os.kill(os.getpid(), signal.SIGKILL)
