"""The promises, as what can break them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Breach", "Fault"]


class Breach(StrEnum):
    """Which promise was broken."""

    LOST = "lost"
    """Committed, and at the end neither delivered nor visible as failed, skipped or discarded."""
    GHOST = "ghost"
    """Delivered, and never committed, or not yet, or not for that destination."""
    OUT_OF_ORDER = "out of order"
    """Taken for the first time while an earlier message of its key was still to come."""
    SPENT = "attempt spent"
    """An attempt was spent without a sign that the destination works."""
    INNOCENT = "innocent failed"
    """Failed, and neither rejected, nor out of attempts, nor deadly often enough."""
    FENCE = "written after takeover"
    """Recorded in a lane that belonged to another relay."""
    OVERRUN = "sent after lease"
    """Sending went on when the lease had ended."""
    STARVED = "lease lost"
    """A lease ran out, or a write was refused, while nothing was wrong."""
    STUCK = "stuck"
    """Still open long after everything was well again."""
    CRASHED = "relay crashed"
    """A relay ended by an error of its own, or spun."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken promise: which, when, and what a person needs to know."""

    breach: Breach
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.breach.value}, {self.at:.3f} s: {self.text}"
