"""What the writers of these tests publish: numbers, counted up for each key."""

from __future__ import annotations

from typing import Final

import msgspec

from pillarbox.events import Types
from pillarbox.message import Names
from pillarbox.outbox import Outbox

__all__ = ["DESTINATION", "Tick", "outbox"]

DESTINATION: Final = "sink"
_TYPES: Final = Types()


@_TYPES.event("test.tick", key="key")
class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The committed ticks of a key are numbered 1, 2, 3 and so on, without a gap."""

    key: str
    number: int
    written_at: int
    """On the steady clock, which all processes of a machine share, in nanoseconds."""
    kept: bool = True
    """False: its transaction is rolled back."""
    deadly: bool = False
    """The relay that delivers it dies."""


def outbox(names: Names) -> Outbox:
    return Outbox(routes=DESTINATION, source="/t", schema=names.schema, prefix=names.prefix, types=_TYPES)
