"""What can go wrong, and how often it does in one seed."""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Final

__all__ = ["FaultKind"]


class FaultKind(StrEnum):
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
    def drawn(cls, dice: Random) -> dict[FaultKind, float]:
        """Which of them this time, and how often. Some storms spare the leases: then none may be lost."""
        drawn = {kind: dice.choice(often) for kind, often in _OFTEN.items() if dice.random() < 0.35}
        return drawn if dice.random() < 0.9 else {kind: often for kind, often in drawn.items() if not kind.costs_leases}

    @property
    def costs_leases(self) -> bool:
        """Whether a relay can lose its lease by it through no fault of its own."""
        return self in _COSTLY


_COSTLY: Final = frozenset({
    FaultKind.FREEZE, FaultKind.CUT, FaultKind.LAG, FaultKind.AMBUSH, FaultKind.JUMP, FaultKind.RESTART,
    FaultKind.STORE_ERROR, FaultKind.STORE_SLOW,
})  # fmt: skip
_OFTEN: Final[dict[FaultKind, tuple[float, ...]]] = {
    FaultKind.KILL: (0.2, 0.5, 0.8),
    FaultKind.FREEZE: (0.2, 0.5, 0.8),
    FaultKind.STOP: (0.2, 0.5),
    FaultKind.CUT: (0.15, 0.4),
    FaultKind.LAG: (0.5, 1.0),
    FaultKind.AMBUSH: (0.02, 0.05, 0.1),
    FaultKind.OUTAGE: (0.2, 0.6),
    FaultKind.JUMP: (0.3,),
    FaultKind.RESTART: (0.3, 0.6),
    FaultKind.OPERATE: (1.0, 4.0),
    FaultKind.STORE_ERROR: (0.02, 0.05, 0.15),
    FaultKind.STORE_SLOW: (0.02, 0.1, 0.2),
    FaultKind.NACK: (0.05, 0.15, 0.3),
    FaultKind.LOST_ANSWER: (0.03, 0.1, 0.2),
    FaultKind.SEND_SLOW: (0.05, 0.2),
    FaultKind.BAD: (0.03, 0.1),
    FaultKind.SOUR: (0.03, 0.1),
    FaultKind.POISON: (0.02, 0.05),
    FaultKind.DEFERRED: (0.05, 0.2),
    FaultKind.ROLLBACK: (0.1, 0.3),
}
