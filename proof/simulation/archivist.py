"""Archivist: writes closed messages to an archive slowly, and then deletes them, while operators redrive some."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from pillarbox.contracts.store import Selection
from pillarbox.message import Message, State
from proof.simulation.environment import Environment

__all__ = ["Archivist"]

T = TypeVar("T")
_CLOSED = (State.DELIVERED, State.FAILED, State.DISCARDED)


class Archivist:
    """Works in some of the seeds, drawn from dice of its own: all else in the others stays as it was."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._rng = Random(f"archive {env.scenario.seed}")
        self._store = env.connect()
        if self._rng.random() < 0.15:
            self._wait()

    def _wait(self) -> None:
        env = self._env
        at = env.timeline.now + self._rng.expovariate(2.0)
        if at < env.scenario.fault_seconds:
            env.timeline.at(at, self._begin)

    def _begin(self) -> None:
        before = self._env.clock.now() - timedelta(seconds=0.05)
        closed = Selection(states=_CLOSED, changed_before=before)
        found = _run(self._store.find(closed, limit=self._rng.choice([1, 3, 20])))
        self._env.timeline.after(self._rng.random(), self._end, [one for one in found if one.waits is None])

    def _end(self, archived: Sequence[Message]) -> None:
        """The archive is on disk: delete what it has."""
        if archived:
            count = _run(self._store.purge_archived(archived))
            self._env.deliveries.seen["archived"] += count
            self._env.deliveries.seen["closed again"] += len(archived) - count
            self._env.trace("archivist", f"deletes {count} of {len(archived)} archived messages")
        self._wait()


def _run(action: Coroutine[Any, Any, T]) -> T:
    """Run a call at once: this connection is not under test."""
    try:
        action.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a call of the memory store waited")
