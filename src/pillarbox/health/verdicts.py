"""Whether a relay is alive and ready, by the truth in the tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.durations import duration_text
from pillarbox.message import SKIPPED_DESTINATION
from pillarbox.monitor import STUCK_AFTER
from pillarbox.protocols import OpenClaim, Registry

__all__ = ["Seen", "Verdict", "is_live", "is_ready"]

MOST_STUCK: Final = 50


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one relay at one moment."""

    relay_id: UUID | None
    """None: it has not entered the registry yet."""
    stopping: bool
    idle_for: float
    """Seconds for which the relay's loop has not turned, as the process itself has it."""
    lease: timedelta
    registry: Registry | None
    """None: the store cannot be reached."""
    stuck: Sequence[OpenClaim] = ()
    """Its own claims that are older than they should be."""
    trouble: str | None = None
    """Why the store cannot be reached."""


class Verdict(msgspec.Struct, frozen=True):
    """The answer to a probe, and every reason for it."""

    good: bool
    reasons: Sequence[str] = ()


def is_live(seen: Seen) -> Verdict:
    """False only for what a restart would mend: a loop that hangs, messages that are stuck in its hands.

    A database that is away is no reason: a new process would not reach it either.
    """
    reasons = []
    if seen.idle_for > 3 * seen.lease.total_seconds():
        reasons.append(f"its loop has not turned for {duration_text(_seconds(seen.idle_for))}")
    elif seen.registry is not None and seen.relay_id is not None and not seen.stopping and not _is_alive(seen):
        reasons.append("it is not alive in the registry: it did not renew its lease")
    if len(seen.stuck) > 0:
        count = sum(len(claim.message_ids) for claim in seen.stuck)
        reasons.append(f"{count} messages have been in its hands for over {duration_text(STUCK_AFTER)}")
    return Verdict(not reasons, reasons)


def is_ready(seen: Seen) -> Verdict:
    """True when it lives, and reaches the store and every destination it serves."""
    if seen.stopping:
        return Verdict(False, ["it is stopping"])
    if seen.registry is None:
        return Verdict(False, [f"the store cannot be reached: {seen.trouble}"])
    if seen.relay_id is None:
        return Verdict(False, ["it is starting"])
    own = [relay for relay in seen.registry.relays if relay.relay_id == seen.relay_id]
    if not own:
        return Verdict(False, ["it is not alive in the registry: it did not renew its lease"])
    away = sorted(set(own[0].destinations) - set(own[0].reachable) - {SKIPPED_DESTINATION})
    reasons = [f"the destination {name} cannot be reached" for name in away]
    return Verdict(not reasons, reasons)


def _is_alive(seen: Seen) -> bool:
    return seen.registry is not None and any(relay.relay_id == seen.relay_id for relay in seen.registry.relays)


def _seconds(count: float) -> timedelta:
    return timedelta(seconds=round(count))
