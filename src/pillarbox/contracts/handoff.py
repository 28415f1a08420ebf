"""Contract of a store whose messages another engine can deliver from the log of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from pillarbox.contracts.finding import Finding

__all__ = ["HandoffMark", "HandoffStore", "PruneStep", "ServerLog", "SlotStatus"]


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replication slot: who reads it, and up to which position of the log its reader has confirmed."""

    name: str
    is_active: bool
    confirmed: int | None
    """Position up to which the reader has passed everything on; None before it has confirmed anything."""
    kept_bytes: int = 0
    """Bytes of the log that are kept for it."""
    wal_status: str = "reserved"
    """`reserved`, `extended`, `unreserved` or `lost`."""
    safe_bytes: int | None = None
    """Bytes that can be written before the slot may be lost; None if there is no limit."""
    has_failover: bool | None = None
    """Whether it moves to a standby; None where the server cannot do that."""


class HandoffMark(msgspec.Struct, frozen=True):
    """Moment in the log: every message that is visible in the snapshot was committed before the position."""

    snapshot: str
    position: int


class PruneStep(NamedTuple):
    """One step of pruning: how many messages were deleted, and the last id it looked at; None at the end."""

    deleted: int
    last_id: int | None


@runtime_checkable
class HandoffStore(Protocol):
    """Store whose log a connector such as Debezium reads. Other stores do not have these methods."""

    async def describe_server(self) -> ServerLog:
        """Return what a connector must know about this server."""

    async def slot(self, name: str) -> SlotStatus | None:
        """Return the slot of that name; None if there is none."""

    async def mark_log(self) -> HandoffMark:
        """Return a moment that is not before any commit whose messages are visible now."""

    async def prune_handed_off(
        self,
        destination: str,
        *,
        mark: HandoffMark | None,
        older_than: timedelta,
        after: int,
        limit: int,
    ) -> PruneStep:
        """Delete open messages of a destination among the next `limit` ids, with their journal.

        Only those that are visible in the mark's snapshot, and were written at least that long ago. Without a mark
        the age alone decides.
        """

    async def inspect_handoff(self, destination: str, *, slot: str, publication: str) -> Sequence[Finding]:
        """List what could lose or delay the messages of a handed-off destination. Changes nothing."""


class ServerLog(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a server whose log a connector should read."""

    version: int
    """Major version."""
    level: str
    """How much the log holds: `logical` is needed."""
    schema: str
    """Schema of the outbox."""
    database: str
