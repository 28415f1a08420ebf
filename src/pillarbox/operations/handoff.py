"""Pruning of messages that another engine delivered: what its slot has confirmed, and nothing else, is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.handoff import HandoffMark, HandoffStore, SlotStatus
from pillarbox.contracts.store import Action, OperatorStore
from pillarbox.durations import check_duration, format_duration
from pillarbox.errors import HandoffRefused

__all__ = ["HandoffPruner", "PruneResult", "PrunedStore"]

_POLL: Final = 0.2
"""Seconds between two looks at the slot."""
_BATCH: Final = 1_000


class PrunedStore(HandoffStore, OperatorStore, Protocol):
    """Store of one hand-off."""


class PruneResult(msgspec.Struct, frozen=True):
    """Result of one run."""

    deleted: int
    confirmed_at: str | None
    """Position of the log that the slot had confirmed; None if it was not asked."""


class HandoffPruner:
    """Deletes the messages of one handed-off destination that were delivered.

    A message goes when it was committed before a moment that the slot's reader has confirmed, as Debezium does when
    Kafka has acknowledged all before it. The moment is taken after the slot was found: so what was in the outbox when
    the slot was made, and was read by the connector's snapshot, stays until something later is confirmed.
    """

    def __init__(
        self,
        store: PrunedStore,
        destination: str,
        *,
        slot: str,
        lease: timedelta,
        clock: Clock | None = None,
        batch: int = _BATCH,
    ) -> None:
        self._store = store
        self._destination = destination
        self._slot = slot
        self._lease = lease
        self._clock = clock or SystemClock()
        self._batch = batch

    async def run(
        self,
        *,
        by: str,
        older_than: timedelta = timedelta(0),
        wait: timedelta = timedelta(seconds=30),
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> PruneResult:
        """Delete what the slot has confirmed. Raise `HandoffRefused` if it is missing, unread, lost or behind.

        `wait` is how long its reader may take to confirm the moment of the call.
        """
        check_duration(older_than, "older_than")
        check_duration(wait, "wait")
        await self._check_unserved()
        mark = await self._wait_for_confirmation(wait)
        position = _format_position(mark.position)
        detail = f"confirmed by slot {self._slot} at {position}"
        deleted = await self._prune(mark, older_than, by=by, detail=detail, on_progress=on_progress)
        return PruneResult(deleted, position)

    async def run_unconfirmed(
        self, *, by: str, older_than: timedelta, on_progress: Callable[[int], None] = lambda _: None
    ) -> PruneResult:
        """Delete what is older than that, delivered or not: no slot is asked."""
        await self._check_unserved()
        detail = f"older than {format_duration(older_than)}, not confirmed by a slot"
        return PruneResult(await self._prune(None, older_than, by=by, detail=detail, on_progress=on_progress), None)

    async def _check_unserved(self) -> None:
        registry = await self._store.registry(lease=self._lease)
        if serving := [relay.service for relay in registry.relays if self._destination in relay.destinations]:
            raise HandoffRefused(
                f"A relay serves {self._destination} ({serving[0]}), and closes its messages itself: stop it, or leave "
                f"{self._destination} out of its destinations, before you prune."
            )

    async def _wait_for_confirmation(self, wait: timedelta) -> HandoffMark:
        slot = await self._read_slot()
        mark = await self._store.mark_log()
        until = self._clock.monotonic() + wait.total_seconds()
        while slot.confirmed is None or slot.confirmed < mark.position:
            if self._clock.monotonic() >= until:
                behind = "anything" if slot.confirmed is None else f"the last {mark.position - slot.confirmed:,} bytes"
                raise HandoffRefused(
                    f"The reader of slot {self._slot} has not confirmed {behind} of the log within "
                    f"{format_duration(wait)}: look at the connector's lag and its heartbeat.interval.ms, or wait "
                    "longer with --wait."
                )
            await asyncio.sleep(_POLL)
            slot = await self._read_slot()
        return mark

    async def _read_slot(self) -> SlotStatus:
        """Return the slot. Raise `HandoffRefused` if nobody could confirm anything by it."""
        slot = await self._store.slot(self._slot)
        if slot is None:
            raise HandoffRefused(
                f"There is no slot {self._slot} in this database, so nothing shows what was delivered to "
                f"{self._destination}: start the connector, name its slot with --slot, or use --older-than and --force."
            )
        if slot.wal_status == "lost":
            raise HandoffRefused(
                f"The slot {self._slot} has lost its place in the log, so messages may not have been delivered: drop "
                "it and restart the connector, which reads the outbox again."
            )
        if not slot.is_active:
            raise HandoffRefused(
                f"Nobody reads the slot {self._slot}, so nothing more will be confirmed: start the connector of "
                f"{self._destination}."
            )
        return slot

    async def _prune(
        self,
        mark: HandoffMark | None,
        older_than: timedelta,
        *,
        by: str,
        detail: str,
        on_progress: Callable[[int], None],
    ) -> int:
        """Delete in batches. What was deleted is noted in the journal, even if it was interrupted half-way."""
        deleted, after = 0, 0
        try:
            while True:
                step = await self._store.prune_handed_off(
                    self._destination, mark=mark, older_than=older_than, after=after, limit=self._batch
                )
                if step.last_id is None:
                    return deleted
                deleted, after = deleted + step.deleted, step.last_id
                on_progress(deleted)
        finally:
            if deleted:
                text = f"{deleted} handed-off messages, {detail}"
                await self._store.note(Action.PURGED, by=by, detail=text, destination=self._destination)


def _format_position(position: int) -> str:
    """Write a position of the log as PostgreSQL does."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
