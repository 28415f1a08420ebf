"""The words of the journal: what went wrong with a message, and what people did."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pillarbox.message import State, Waits
from pillarbox.protocols import Trouble

__all__ = ["Action", "action_of"]


class Action(StrEnum):
    """What a line of the journal says happened."""

    ATTEMPT_FAILED = "attempt_failed"
    FAILED = "failed"
    HELD = "held"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    REDRIVEN = "redriven"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    PAUSED = "paused"
    RESUMED = "resumed"
    PURGED = "purged"


_OF_WAITS: Final = {Waits.RETRY: Action.ATTEMPT_FAILED, Waits.HELD: Action.HELD, Waits.DEFERRED: Action.DEFERRED}
_OF_STATE: Final = {
    State.FAILED: Action.FAILED,
    State.SKIPPED: Action.SKIPPED,
    State.DISCARDED: Action.DISCARDED,
}


def action_of(trouble: Trouble) -> Action | None:
    """The line for a message that was not delivered; parking leaves none."""
    return _OF_STATE.get(trouble.state) or _OF_WAITS.get(trouble.waits or Waits.PARKED)
