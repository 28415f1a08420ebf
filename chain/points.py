"""Where a process of the chain dies, and what must be true afterwards. One name, one place, one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import unique
from types import MappingProxyType
from typing import Final

from crash.points import Point as RelayPoint
from crash.points import PointBase
from crash.steps import Call, Stage, Step

__all__ = ["RELAY_POINTS", "STEPS", "Point"]


@unique
class Point(PointBase):
    """In a consumer. `then` is what must happen to the message in hand."""

    BEFORE_ACCEPT = (
        "before accept: the message is in hand, and nothing is written",
        "it comes again, and is handled then",
    )
    ACCEPTED = (
        "after accept: the inbox record is written and not committed",
        "the record is gone with the transaction; it comes again, and is handled then",
    )
    HANDLED = (
        "after the handler: its effect and what it published are written and not committed",
        "all of it is gone with the transaction; it comes again, and is handled then",
    )
    UNCOMMITTED = (
        "before commit: the next statement would be COMMIT",
        "all of it is gone with the transaction; it comes again, and is handled then",
    )
    COMMITTED = (
        "after commit, before the acknowledgement",
        "effect, record and messages are there; it comes again, and does nothing",
    )
    ACKNOWLEDGING = (
        "during the acknowledgement: the client has it, the broker not yet",
        "the same, if it comes again at all",
    )


RELAY_POINTS: Final = (RelayPoint.CLAIMED, RelayPoint.SEND_CALLED, RelayPoint.ANSWERED, RelayPoint.SETTLED)
"""Those of the crash matrix that the relays of the chain die at."""


def _is_new(call: Call) -> bool:
    """It is not a duplicate."""
    return call.result is True


STEPS: Final[Mapping[str, Step]] = MappingProxyType(
    {
        Point.BEFORE_ACCEPT.title: Step("accept", Stage.CALLED),
        Point.ACCEPTED.title: Step("accept", Stage.ANSWERED, _is_new),
        Point.HANDLED.title: Step("handler", Stage.ANSWERED),
        Point.UNCOMMITTED.title: Step("handle", Stage.UNCOMMITTED, _is_new),
        Point.COMMITTED.title: Step("handle", Stage.ANSWERED, _is_new),
        Point.ACKNOWLEDGING.title: Step("acknowledge", Stage.HALFWAY),
    }
)
"""Where in the work each point is."""
