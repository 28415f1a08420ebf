"""What can go wrong, and how often it does in one seed."""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Final

__all__ = ["Weather"]


class Weather(StrEnum):
    """A kind of trouble. Each seed has some of them, so that none hides behind another."""

    # processes, per second and process
    KILL = "relay killed"
    FREEZE = "relay frozen"
    STOP = "relay stopped"
    CUT = "relay cut off the store"
    LAG = "renewals heard late, then lost"
    AMBUSH = "relay struck at work"
    """As a share of the moments at which a write lands, a message arrives, or an answer is heard."""
    # destinations, per second and destination
    OUTAGE = "destination down"
    # the store, per second
    JUMP = "store clock set"
    RESTART = "store restarted"
    # people, per second
    OPERATE = "person acts"
    # single calls, as a share of all
    STORE_ERROR = "store call fails"
    STORE_SLOW = "store call slow"
    NACK = "message refused"
    LOST_ANSWER = "answer lost"
    SEND_SLOW = "send slow"
    # messages, as a share of all
    BAD = "message rejected"
    SOUR = "message always refused"
    POISON = "message deadly"
    DEFERRED = "message deferred"
    ROLLBACK = "transaction rolled back"

    @classmethod
    def drawn(cls, dice: Random) -> dict[Weather, float]:
        """Which of them this time, and how often. Some storms spare the leases: then none may be lost."""
        drawn = {kind: dice.choice(often) for kind, often in _OFTEN.items() if dice.random() < 0.35}
        return drawn if dice.random() < 0.9 else {kind: often for kind, often in drawn.items() if not kind.costs_leases}

    @property
    def costs_leases(self) -> bool:
        """Whether a relay can lose its lease by it through no fault of its own."""
        return self in _COSTLY


_COSTLY: Final = frozenset({
    Weather.FREEZE, Weather.CUT, Weather.LAG, Weather.AMBUSH, Weather.JUMP, Weather.RESTART, Weather.STORE_ERROR,
    Weather.STORE_SLOW,
})  # fmt: skip
_OFTEN: Final[dict[Weather, tuple[float, ...]]] = {
    Weather.KILL: (0.2, 0.5, 0.8),
    Weather.FREEZE: (0.2, 0.5, 0.8),
    Weather.STOP: (0.2, 0.5),
    Weather.CUT: (0.15, 0.4),
    Weather.LAG: (0.5, 1.0),
    Weather.AMBUSH: (0.02, 0.05, 0.1),
    Weather.OUTAGE: (0.2, 0.6),
    Weather.JUMP: (0.3,),
    Weather.RESTART: (0.3, 0.6),
    Weather.OPERATE: (1.0, 4.0),
    Weather.STORE_ERROR: (0.02, 0.05, 0.15),
    Weather.STORE_SLOW: (0.02, 0.1, 0.2),
    Weather.NACK: (0.05, 0.15, 0.3),
    Weather.LOST_ANSWER: (0.03, 0.1, 0.2),
    Weather.SEND_SLOW: (0.05, 0.2),
    Weather.BAD: (0.03, 0.1),
    Weather.SOUR: (0.03, 0.1),
    Weather.POISON: (0.02, 0.05),
    Weather.DEFERRED: (0.05, 0.2),
    Weather.ROLLBACK: (0.1, 0.3),
}
