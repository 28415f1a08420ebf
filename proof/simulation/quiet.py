"""One bad message alone on a quiet destination, after all faults: a good one of another key must go at once."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Final

from pillarbox.message import Message
from proof.simulation.actors import Writers
from proof.simulation.checker import Promise
from proof.simulation.destination import MessageEffect
from proof.simulation.environment import Environment

__all__ = ["LONGEST_BREAKER", "QUIET_SECONDS", "QuietPhase", "has_quiet_phase"]

_SHARE: Final = 0.15
_ALONE_SECONDS: Final = 20.0
_PATIENCE: Final = 3.0
"""Seconds in which the good message must arrive: several polls. A breaker would be open for longer."""
QUIET_SECONDS: Final = _ALONE_SECONDS + 2 * _PATIENCE
LONGEST_BREAKER: Final = timedelta(seconds=20)


def has_quiet_phase(seed: int) -> bool:
    """Return whether a seed ends with a quiet phase, by dice of its own."""
    return Random(f"quiet {seed}").random() < _SHARE


class QuietPhase:
    """Writes a bad message to one destination when all else is closed, and later a good one."""

    def __init__(self, env: Environment, writers: Writers) -> None:
        self._env = env
        self._writers = writers
        self.is_done = not has_quiet_phase(env.scenario.seed)
        self._has_begun = False

    def begin(self) -> None:
        """Begin, unless it has begun."""
        if self._has_begun:
            return
        self._has_begun = True
        self._env.deliveries.seen["bad message alone"] += 1
        self._destination = self._env.rng.choice(list(self._env.brokers))
        self._writers.write_one(self._destination, "bad", MessageEffect.REFUSED_ALONE)
        self._env.timeline.after(_ALONE_SECONDS, self._write_good)

    def _write_good(self) -> None:
        good = self._writers.write_one(self._destination, "good", None)
        self._env.timeline.after(_PATIENCE, self._check, good)

    def _check(self, good: Message) -> None:
        env = self._env
        if not env.deliveries.taken[self._destination, good.id]:
            text = f"{good.id} waits behind a bad message of another key at {self._destination}"
            env.deliveries.report(Promise.DELAYED, env.timeline.now, text)
        for broker in env.brokers.values():  # the bad one may have gone on to a dead-letter destination
            broker.end_quiet()
        self.is_done = True
