"""What a broker's row of the table says, and whether it may. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from pillarbox.message import Message, State
from tests.support.faults.faults import Arrival

__all__ = ["Verdict", "verdict"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the messages under one fault."""

    sent: int
    strikes: int
    """How often the fault was really there."""
    felt: int
    """How often a send felt it. A client that connects and sends again by itself hides a short one."""
    lost: int
    """Neither at the far side nor kept as failed."""
    ghosts: int
    """At the far side, and never published."""
    duplicates: int
    out_of_order: int
    """First arrivals behind a later message of their key."""
    attempts: int
    """Spent, by messages that were delivered in the end."""
    failed: int
    wrongly_failed: int
    """Of them, those that the far side would have taken."""


def verdict(
    messages: Sequence[Message], arrivals: Sequence[Arrival], *, strikes: int, felt: int, spoiled: Collection[int]
) -> Verdict:
    """Weigh what the store knows against what the far side has. `spoiled`: ids of messages nobody would take."""
    taken = {one.message_id for one in arrivals}
    failed = [message for message in messages if message.state is State.FAILED]
    kept = taken | {str(message.message_id) for message in failed}
    return Verdict(
        sent=len(messages),
        strikes=strikes,
        felt=felt,
        lost=sum(str(message.message_id) not in kept for message in messages),
        ghosts=len(taken - {str(message.message_id) for message in messages}),
        duplicates=len(arrivals) - len(taken),
        out_of_order=_out_of_order(arrivals),
        attempts=sum(message.attempts for message in messages if message.state is State.DELIVERED),
        failed=len(failed),
        wrongly_failed=sum(message.id not in spoiled for message in failed),
    )


def _out_of_order(arrivals: Sequence[Arrival]) -> int:
    highest: dict[str, int] = {}
    seen: set[str] = set()
    count = 0
    for one in arrivals:
        if one.message_id not in seen:
            seen.add(one.message_id)
            count += one.number < highest.get(one.key, -1)
            highest[one.key] = max(one.number, highest.get(one.key, -1))
    return count
